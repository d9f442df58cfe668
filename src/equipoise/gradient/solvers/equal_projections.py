"""Weights whose direction has the same projection on every task's unit gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.gradient.solvers.common import TINY, Solution, normalise

_CUT = 1e-13  # singular values below this part of the largest are rounding


def equal_projections(gram: Tensor, active: Tensor) -> Solution:
    """The w with sum 1 and equal u_k . J'w, u_k the unit gradients, by least squares of least norm.

    The equations are (u_k - mean u) . J'w = 0 for every k, which says the same as (u_1 - u_k) . J'w = 0
    whatever task comes first, and sum w = 1. Solved by singular values: where gradients depend on each other
    there are many such w, and the shortest is taken; weights may be negative.
    The residual is the length of what the equations leave, in units of the root mean square gradient norm.

    >>> import torch
    >>> from equipoise.gradient.solvers import equal_projections
    >>> G = torch.diag(torch.tensor([1.0, 9.0], dtype=torch.float64))
    >>> equal_projections(G, torch.ones(2, dtype=torch.bool)).weights
    tensor([0.7500, 0.2500], dtype=torch.float64)
    """
    gram, _ = normalise(gram, active)
    inside = active.to(gram.dtype)
    lengths = gram.diagonal().sqrt()
    projections = gram / torch.where(lengths > 0, lengths, 1.0).unsqueeze(-1)
    mean = projections.sum(0) / inside.sum().clamp(min=1.0)
    equations = torch.cat([projections - torch.outer(inside, mean), inside.unsqueeze(0)])
    left, values, right = torch.linalg.svd(equations, full_matrices=False)
    kept = values > _CUT * values[0]
    weights = right.mT @ torch.where(kept, left[-1] / values.clamp(min=TINY), 0.0)
    missing = equations @ weights
    missing[-1] -= torch.where(inside.sum() > 0, 1.0, 0.0)
    residual = missing.norm()
    return Solution(weights * inside, residual, residual > 1e-6)
