"""Eigenvalues of a positive semidefinite matrix, without waiting for the device."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.gradient.solvers.common import may_look

_PREPARE, _SWEEPS = 3, 7  # each sweep squares the error once it is small


def eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues in rising order and the eigenvectors in columns.

    torch.linalg.eigh asks a GPU whether it converged; there, a fixed number of sweeps of `jacobi` is run.

    >>> import torch
    >>> from equipoise.gradient.solvers.eigen import eigen
    >>> eigen(torch.diag(torch.tensor([4.0, 1.0])))[0]
    tensor([1., 4.])
    """
    return torch.linalg.eigh(matrix) if may_look(matrix) else jacobi(matrix)


def jacobi(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The same by one-sided Jacobi rotations: columns are turned, in pairs, until all are orthogonal.

    A few steps of the QR iteration first sort the columns by length, without which small eigenvalues come
    late. Then, in each round, every column is in one pair, and all pairs turn at once; the pairs change from
    round to round like the games of a tournament. `pairs` holds two columns of the turned matrix a pair, each
    followed by the column of the product of all turns.
    """
    size = matrix.shape[0]
    half = (size + 1) // 2  # one player rests if the number is odd: a column of zeros
    vectors = torch.eye(size, dtype=matrix.dtype, device=matrix.device)
    for _ in range(_PREPARE):
        vectors = torch.linalg.qr(matrix @ vectors)[0]
    pairs = matrix.new_zeros(2 * half, 2 * size)
    pairs[:size] = torch.cat([(matrix @ vectors).mT, vectors.mT], 1)
    pairs = pairs.view(half, 2, 2 * size)
    seats = _next_round(half, matrix.device)
    for _ in range(_SWEEPS * max(2 * half - 1, 1)):
        columns = pairs[..., :size]
        products = columns @ columns.mT
        twice = 2 * products[:, 0, 1] / (products[:, 1, 1] - products[:, 0, 0])
        angle = 0.5 * torch.atan(twice.nan_to_num(0.0))  # two columns of zeros stay
        cosine, sine = angle.cos(), angle.sin()
        turn = torch.stack([cosine, -sine, sine, cosine], -1).view(half, 2, 2)
        pairs = (turn @ pairs).view(2 * half, 2 * size)[seats].view(half, 2, 2 * size)
    both = pairs.view(2 * half, 2 * size)
    values = both[:, :size].norm(dim=1)
    # the column of zeros, if any, has no part in any eigenvector: it goes first and out
    order = torch.where(both[:, size:].square().sum(1) > 0.5, values, -1.0).argsort()[2 * half - size :]
    return values[order], both[order, size:].mT


def _next_round(half: int, device: torch.device) -> Tensor:
    """Where each seat's next player sits now: the first stays, the others move on around the tables."""
    seat = torch.arange(2 * half, device=device)  # 0 and 1 at the first table, and so on
    if half == 1:
        return seat
    seats = torch.where(seat % 2 == 1, seat + 2, seat - 2)
    # Written without assignments to single entries, each of which would wait for a copy to the device.
    for place, player in ((0, 0), (2, 1), (2 * half - 1, 2 * half - 2)):
        seats = torch.where(seat == place, player, seats)
    return seats
