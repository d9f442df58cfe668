"""The fair point: weights w > 0 with G w = w^(-1/alpha). alpha = 1 is the Nash bargaining solution."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.gradient.solvers.common import TINY, Solution, may_look, normalise

_DELTA = 1e-8  # added to the diagonal, in units of the mean squared gradient norm, where there is no solution
_ITERATIONS = 30


def fair(gram: Tensor, active: Tensor, alpha: float) -> Solution:
    """The w > 0 with G w = w^(-1/alpha), entry by entry.

    They minimise 1/2 w'Gw - sum h(w_i), h' = w^(-1/alpha), which is convex: damped Newton steps, each kept
    inside w > 0, each followed by the best common factor. The equation is first written for unit gradients,
    so that neither the scale of all gradients nor that of each moves the path.
    There is a solution unless 0 is in the convex hull of the gradients. Then G + delta tr(G) / K I is
    solved, delta = 1e-8, and `degenerate` says so.
    The residual is the largest relative error in the K equations.

    >>> import torch
    >>> from equipoise.gradient.solvers import fair
    >>> G = torch.diag(torch.tensor([4.0, 16.0], dtype=torch.float64))
    >>> fair(G, torch.ones(2, dtype=torch.bool), alpha=1.0).weights
    tensor([0.5000, 0.2500], dtype=torch.float64)
    """
    gram, unit = normalise(gram, active)
    inside = active.to(gram.dtype)
    power = 1 / alpha
    gram = gram + torch.diag(1 - inside)  # a task out of the game plays alone
    firmer = gram + torch.diag(_DELTA * inside)
    if may_look(gram):
        weights, residual = _newton(gram, power)
        degenerate = _degenerate(gram, weights, residual, inside)
        if bool(degenerate):
            weights, residual = _newton(firmer, power)
    else:
        both, residuals = _newton(torch.stack([gram, firmer]), power)
        degenerate = _degenerate(gram, both[0], residuals[0], inside)
        weights = torch.where(degenerate, both[1], both[0])
        residual = torch.where(degenerate, residuals[1], residuals[0])
    return Solution(weights * inside * unit ** (-1 / (1 + power)), residual, degenerate)


def _newton(gram: Tensor, power: float) -> tuple[Tensor, Tensor]:
    """w and the largest relative error of G w = w^(-power), for a batch of matrices."""
    lengths = gram.diagonal(dim1=-2, dim2=-1).sqrt().unsqueeze(-1)
    cosines = gram / (lengths * lengths.mT)
    share = lengths ** (power - 1)
    b = share ** (1 / (1 + power))  # b = w |g|, exact for orthogonal gradients
    last = float("inf")
    for _ in range(_ITERATIONS):
        product = cosines @ b
        wanted = share * b**-power
        products = torch.cat([wanted * b, product * b], -1).sum(-2, keepdim=True)
        factor = (products[..., :1] / products[..., 1:].clamp(min=TINY)) ** (1 / (1 + power))
        factor = factor.clamp(max=1e3)
        b, product, wanted = b * factor, product * factor, wanted * factor**-power
        missing = wanted - product
        residual = (missing / wanted).abs().amax((-2, -1))
        if may_look(b):
            now = float(residual.amax())
            if now <= 1e-12 or not now < float("inf") or (now < 1e-6 and now > last / 2):
                break
            last = now
        curvature = (power * wanted / b).squeeze(-1)
        triangle = torch.linalg.cholesky_ex(cosines + torch.diag_embed(curvature))[0]
        step = torch.cholesky_solve(missing, triangle) / b
        b = b * (1 + step / (-step / 0.9).amax(-2, keepdim=True).clamp(min=1.0))
    return (b / lengths).squeeze(-1), residual


def _degenerate(gram: Tensor, weights: Tensor, residual: Tensor, inside: Tensor) -> Tensor:
    """Whether the weights solve nothing, or only what rounding left of gradients that cancel."""
    weights = weights * inside
    square = torch.dot(weights, gram @ weights)
    lengths = torch.dot(weights, gram.diagonal().sqrt())
    return ~((residual < 1e-4) & ((square > 1e-13 * lengths * lengths) | (inside.sum() == 0)))
