"""Projections on the dual cone of the gradients: the directions that conflict with no task."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.gradient.solvers.common import Solution, normalise
from equipoise.gradient.solvers.complementarity import problem, solve


def dual_cone(gram: Tensor, active: Tensor, starts: Tensor, ridge: float) -> Solution:
    """The sum over the columns of `starts` of the v >= start that minimise v'(G / tr G + ridge I) v.

    J'v is the projection of J'start on the cone of directions d with J d >= 0. `starts` is [K, B].
    The residual is the largest violation of the conditions, in units of the trace of G.

    >>> import torch
    >>> from equipoise.gradient.solvers import dual_cone
    >>> G = torch.tensor([[1.0, -1.0], [-1.0, 4.0]], dtype=torch.float64)
    >>> dual_cone(G, torch.ones(2, dtype=torch.bool), torch.eye(2, dtype=torch.float64), ridge=0.0).weights
    tensor([2.0000, 1.2500], dtype=torch.float64)
    """
    gram, _ = normalise(gram, active)
    inside = active.to(gram.dtype)
    trace = inside.sum(-1, keepdim=True)  # of the normalised matrix: the count
    gram = gram + torch.diag_embed(ridge * trace * inside)
    starts = (starts * inside.unsqueeze(-1)).mT.unsqueeze(-1)  # [..., B, K, 1]: a batch of problems
    gram = gram.unsqueeze(-3)
    p = problem("cone", gram, active.unsqueeze(-2), gram @ starts, unique=ridge >= 1e-6)
    u = solve(p)
    v = starts + u
    slope = gram @ v
    violation = torch.maximum(-slope * p.active, (u * slope).abs()).amax((-3, -2, -1))
    residual = (violation / inside.sum(-1).clamp(min=1.0)).clamp(min=0.0)
    return Solution(v.sum(-3).squeeze(-1), residual, torch.zeros_like(active[..., 0]))
