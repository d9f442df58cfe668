"""Eigenvalues of a positive semidefinite matrix, without waiting for the device."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.gradient.solvers.common import TINY, may_look

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
    late. Then, in each round, every column is in one pair, and all pairs turn at once; the pairs change from round to
    round like the games of a tournament. Rows of `both` are the columns of the turned matrix, each followed
    by the column of the product of all turns.
    """
    size = matrix.shape[0]
    half = (size + 1) // 2  # one player rests if the number is odd: a column of zeros
    both = matrix.new_zeros(2 * half, 2 * size)
    vectors = torch.eye(size, dtype=matrix.dtype, device=matrix.device)
    for _ in range(_PREPARE):
        vectors = torch.linalg.qr(matrix @ vectors)[0]
    both[:size, :size] = (matrix @ vectors).mT
    both[:size, size:] = vectors.mT
    player = torch.arange(2 * half, device=matrix.device)
    top, bottom = player[:half], player[half:]
    seats = torch.cat([top[:1], bottom[:1], top[1:-1], bottom[1:], top[-1:]]) if half > 1 else player
    for _ in range(_SWEEPS * max(2 * half - 1, 1)):
        one, other = both[:half], both[half:]
        twice = 2 * (one[:, :size] * other[:, :size]).sum(1, keepdim=True)
        squares = both[:, :size].square().sum(1, keepdim=True)
        longer = squares[half:] - squares[:half]
        tangent = twice * torch.copysign(torch.ones_like(longer), longer)
        tangent = tangent / (longer.abs() + torch.hypot(longer, twice)).clamp(min=TINY)
        cosine = (1 + tangent * tangent).rsqrt()
        sine = cosine * tangent
        both = torch.cat([cosine * one - sine * other, sine * one + cosine * other])[seats]
    values = both[:, :size].norm(dim=1)
    # the column of zeros, if any, has no part in any eigenvector: it goes first and out
    order = torch.where(both[:, size:].square().sum(1) > 0.5, values, -1.0).argsort()[2 * half - size :]
    return values[order], both[order, size:].mT
