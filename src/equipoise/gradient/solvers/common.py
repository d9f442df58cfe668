"""What the solvers share."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

TINY = 1e-300  # keeps a division by zero finite and changes nothing else


class Solution(NamedTuple):
    """What a solver found.

    weights: [K] float64, 0 for tasks out of the game.
    residual: how far the weights are from the problem's own equations, relative to its scale.
    degenerate: bool, whether the problem had no solution, so that `weights` answer its documented replacement.
    """

    weights: Tensor
    residual: Tensor
    degenerate: Tensor


def may_look(x: Tensor) -> bool:
    """Whether the host may look at values to stop early: on the CPU they cost nothing to look at."""
    return x.device.type == "cpu"


def normalise(gram: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    """The Gram matrix of the active tasks in units of their mean squared gradient norm, and that unit."""
    gram = torch.where(active.unsqueeze(-2) & active.unsqueeze(-1), gram, 0.0)
    unit = diagonal(gram).sum(-1) / active.sum(-1).clamp(min=1)
    unit = torch.where(unit > 0, unit, 1.0)
    return gram / unit[..., None, None], unit


def diagonal(gram: Tensor) -> Tensor:
    """Of a matrix or of each of a batch."""
    return gram.diagonal(dim1=-2, dim2=-1)


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Of two vectors or of each pair of a batch."""
    products: Tensor = torch.linalg.vecdot(a, b)
    return products


def times(gram: Tensor, weights: Tensor) -> Tensor:
    """G w, or that of each of a batch."""
    return (gram @ weights.unsqueeze(-1)).squeeze(-1)


def solve_definite(matrix: Tensor, sides: Tensor) -> Tensor:
    """The solution for a positive definite matrix, in a way that a CUDA graph can hold for batches too."""
    factor = torch.linalg.cholesky_ex(matrix)[0]
    half = torch.linalg.solve_triangular(factor, sides, upper=False)
    solution: Tensor = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    return solution
