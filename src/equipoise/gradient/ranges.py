"""Which gradients are too large or too small for their squares to be float32."""

from __future__ import annotations

from torch import Tensor

_RANGE = 1e-24, 1e30  # of squared norms that float32 sums hold with all their digits


def out_of_range(squares: Tensor, rows: Tensor) -> bool:
    """Whether squared norms of float32 rows overflowed, or lost digits to underflow; not asked of a GPU, which does
    its sums in float64.

    >>> import torch
    >>> from equipoise.gradient.ranges import out_of_range
    >>> rows = torch.tensor([[1e30, 0.0], [0.0, 0.0]])
    >>> out_of_range(rows.square().sum(1), rows), out_of_range(torch.zeros(1), rows[1:])
    (True, False)
    """
    if squares.is_cuda or rows.element_size() == 8:
        return False
    low, high = _RANGE
    if all(low <= square <= high for square in squares.tolist()):
        return False  # the usual case, in one cheap look
    inside = (squares >= low) & (squares <= high)
    return not bool(inside.all()) and bool(rows[~inside].any())  # a row of zeros is what it seems
