"""Conflict-averse gradient descent: the best worst improvement in a ball around the mean gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.gradient.solvers.common import TINY, Solution, dot, normalise, times
from equipoise.gradient.solvers.complementarity import problem, solve


def cagrad(gram: Tensor, active: Tensor, c: float) -> Solution:
    """The coefficients of d = g0 + c |g0| g_w / |g_w|, g0 the mean gradient and g_w = J'w.

    w minimises g0 . g_w + c |g0| |g_w| over the simplex. With u = w / |g_w| times c |g0| the conditions are
    those of complementarity with one more unknown, theta = the least value, in place of the constraint.
    Where the best g_w is 0 its direction is anybody's: d = g0, and `degenerate` says so (also where g0 is 0).
    The residual is the largest violation of the conditions of w, in units of the mean squared gradient norm.

    >>> import torch
    >>> from equipoise.gradient.solvers import cagrad
    >>> G = torch.eye(2, dtype=torch.float64)
    >>> cagrad(G, torch.ones(2, dtype=torch.bool), c=0.4).weights
    tensor([0.7000, 0.7000], dtype=torch.float64)
    """
    gram, _ = normalise(gram, active)
    inside = active.to(gram.dtype)
    mean = inside / inside.sum(-1, keepdim=True).clamp(min=1.0)
    if c == 0:
        return Solution(mean, torch.zeros_like(mean[..., 0]), torch.zeros_like(active[..., 0]))
    cost = times(gram, mean)
    radius = c * dot(mean, cost).clamp(min=0.0).sqrt()
    u = solve(problem("ball", gram, active, cost.unsqueeze(-1), (radius * radius)[..., None, None])).squeeze(-1)
    weights = u / u.sum(-1, keepdim=True).clamp(min=TINY)
    product = times(gram, weights)
    square = dot(weights, product).clamp(min=0.0)
    # |J'u| = c |g0| at a solution; without one u runs away along gradients that cancel and |J'u| stays behind
    degenerate = ~(dot(u, times(gram, u)) > (1 - 1e-4) * radius * radius)
    pull = (radius / torch.where(degenerate, 1.0, square.clamp(min=TINY)).sqrt()).unsqueeze(-1)
    slope = cost + pull * product
    violation = ((dot(weights, slope).unsqueeze(-1) - slope) * inside).amax(-1).clamp(min=0.0)
    degenerate = degenerate | (violation > 1e-4 * slope.abs().amax(-1)) | (radius <= 3e-8 * c)  # or g0 = 0
    degenerate = degenerate & active.any(-1)
    coefficients = mean + torch.where(degenerate.unsqueeze(-1), 0.0, pull * weights)
    return Solution(coefficients, torch.where(degenerate, 0.0, violation), degenerate)
