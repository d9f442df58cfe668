"""Projections on the dual cone of the gradients: the directions that conflict with no task."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.gradient.solvers.common import Solution, normalise
from equipoise.gradient.solvers.complementarity import problem, solve

_ENTRIES = 2**26  # of the matrices solved at once, one a column of `starts`: K^3 of them do not fit for K = 1,000


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
    total, violation = torch.zeros_like(inside), torch.zeros_like(inside[..., 0])
    for some in starts.split(max(1, _ENTRIES // gram.numel()), -3):  # type: ignore[no-untyped-call]
        p = problem("cone", gram, active.unsqueeze(-2), gram @ some, unique=ridge >= 1e-6)
        u = solve(p)
        v = some + u
        slope = gram @ v
        total = total + v.sum(-3).squeeze(-1)
        violation = torch.maximum(violation, torch.maximum(-slope * p.active, (u * slope).abs()).amax((-3, -2, -1)))
    return Solution(total, violation / inside.sum(-1).clamp(min=1.0), torch.zeros_like(active[..., 0]))
