"""Weights whose direction has the same projection on every task's unit gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.gradient.solvers.common import Solution, may_look, normalise

_RIDGE, _FIRM_RIDGE = 1e-9, 1e-5  # of the equations' size; the second where the equations contradict each other
_STEPS = 8


def equal_projections(gram: Tensor, active: Tensor) -> Solution:
    """The w with sum 1 and equal u_k . J'w, u_k the unit gradients, by least squares of least norm.

    The equations are (u_k - mean u) . J'w = 0 for every k, which says the same as (u_1 - u_k) . J'w = 0
    whatever task comes first, and sum w = 1. Where gradients depend on each other there are many such w, and the
    shortest is taken; weights may be negative.
    Solved by proximal steps from w = 0 (the least squares with a little of |w - last w|^2 added, by QR), which
    stay in the space where the shortest solution lies.
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
    target = torch.zeros_like(equations[:, :1])
    target[-1] = torch.where(inside.sum() > 0, 1.0, 0.0)
    weights, residual = _shortest(equations, target, _RIDGE)
    contradict = residual > 1e-6
    if not may_look(gram) or bool(contradict):
        nearest, distance = _shortest(equations, target, _FIRM_RIDGE)
        weights = torch.where(contradict, nearest, weights)
        residual = torch.where(contradict, distance, residual)
    return Solution(weights * inside, residual, contradict)


def _shortest(equations: Tensor, target: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """The least squares solution of least norm, and what it leaves."""
    size = (ridge * equations.norm()).clamp(min=ridge)
    eye = torch.eye(equations.shape[1], dtype=equations.dtype, device=equations.device)
    left, triangle = torch.linalg.qr(torch.cat([equations, size * eye]))
    left = left[: equations.shape[0]].mT
    w = torch.zeros_like(eye[:, :1])
    for _ in range(_STEPS):
        w = w + torch.linalg.solve_triangular(triangle, left @ (target - equations @ w), upper=True)
    return w.squeeze(-1), (target - equations @ w).norm()
