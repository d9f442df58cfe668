"""The point of least norm in the convex hull of the gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.gradient.solvers.common import TINY, Solution, diagonal, dot, normalise, times
from equipoise.gradient.solvers.complementarity import problem, solve
from equipoise.gradient.solvers.two import min_norm_of_two


def min_norm(gram: Tensor, active: Tensor) -> Solution:
    """The w >= 0 with sum 1 that minimise w'Gw.

    Where gradients depend on each other there may be many such w: the one with the least sum of (w_i |g_i|)^2.
    A hull that holds 0 is no exception: the least norm is 0, `degenerate` says so.
    The residual is the largest violation of g_i . d >= |d|^2, in units of the mean squared gradient norm.

    >>> import torch
    >>> from equipoise.gradient.solvers import min_norm
    >>> J = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]], dtype=torch.float64)
    >>> min_norm(J @ J.T, torch.ones(3, dtype=torch.bool)).weights
    tensor([0.8000, 0.2000, 0.0000], dtype=torch.float64)
    """
    plain = min_norm_of_two(gram, active)
    if plain is not None:
        return plain
    gram, _ = normalise(gram, active)
    inside = active.to(gram.dtype)
    u = solve(problem("simplex", gram, active)).squeeze(-1) * inside
    weights = u / u.sum(-1, keepdim=True).clamp(min=TINY)  # the sum is 1 to rounding
    product = times(gram, weights)
    square = dot(weights, product).clamp(min=0.0)
    residual = ((square.unsqueeze(-1) - product) * inside).amax(-1).clamp(min=0.0)
    lengths = dot(weights, diagonal(gram).sqrt())
    nothing = torch.maximum(1e-12 * lengths * lengths, 1e-24 * diagonal(gram).amax(-1))  # cancelled, or never there
    return Solution(weights, residual, square <= nothing)
