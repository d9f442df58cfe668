"""The fair point: weights w > 0 with G w = w^(-1/alpha). alpha = 1 is the Nash bargaining solution."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from equipoise.gradient.solvers.common import TINY, Solution, diagonal, dot, may_look, normalise, solve_definite, times
from equipoise.gradient.solvers.two import fair_of_two

_DELTA = 1e-8  # added to the diagonal, in units of the mean squared gradient norm, where there is no solution
_ITERATIONS, _BLIND_ITERATIONS = 30, 18  # the second where they cannot end early


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
    plain = fair_of_two(gram, active, alpha)
    if plain is not None:
        return plain
    gram, unit = normalise(gram, active)
    inside = active.to(gram.dtype)
    power = 1 / alpha
    gram = gram + torch.diag_embed(1 - inside)  # a task out of the game plays alone
    firmer = gram + torch.diag_embed(_DELTA * inside)
    if may_look(gram):
        weights, residual = _newton(gram, power)
        degenerate = _degenerate(gram, weights, residual, inside)
        if bool(degenerate.any()):
            firm, firm_residual = _newton(firmer, power)
            weights = torch.where(degenerate.unsqueeze(-1), firm, weights)
            residual = torch.where(degenerate, firm_residual, residual)
    else:
        both, residuals = _newton(torch.stack([gram, firmer]), power)
        degenerate = _degenerate(gram, both[0], residuals[0], inside)
        weights = torch.where(degenerate.unsqueeze(-1), both[1], both[0])
        residual = torch.where(degenerate, residuals[1], residuals[0])
    return Solution(weights * inside * unit.unsqueeze(-1) ** (-1 / (1 + power)), residual, degenerate)


def _newton(gram: Tensor, power: float) -> tuple[Tensor, Tensor]:
    """w and the largest relative error of G w = w^(-power), for a batch of matrices."""
    lengths = diagonal(gram).sqrt().unsqueeze(-1)
    cosines = gram / (lengths * lengths.mT)
    share = lengths ** (power - 1)
    b = share ** (1 / (1 + power))  # b = w |g|, exact for orthogonal gradients
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    last, settled = [math.inf] * gram[..., 0, 0].numel(), [False] * gram[..., 0, 0].numel()
    for step in range(_ITERATIONS):
        product = cosines @ b
        wanted = share * b**-power
        of_wanted, of_product = (torch.cat([wanted, product], -1) * b).sum(-2, keepdim=True).chunk(2, -1)
        factor = (of_wanted / of_product.clamp(min=TINY)).pow(1 / (1 + power)).clamp(max=1e3)
        b, product, wanted = b * factor, product * factor, wanted * factor**-power
        missing = wanted - product
        if may_look(b):
            now = (missing / wanted).abs().amax((-2, -1)).flatten().tolist()
            settled = [s or _settled(error, before) for s, error, before in zip(settled, now, last, strict=True)]
            if all(settled):
                break
            last = now
        elif step == _BLIND_ITERATIONS:
            break
        change = solve_definite(torch.addcmul(cosines, eye, wanted / b, value=power), missing)
        away = (change / b).amin(-2, keepdim=True) / -0.9  # how often b would be taken away
        b = torch.addcdiv(b, change, away.clamp(min=1.0))
    return (b / lengths).squeeze(-1), (missing / wanted).abs().amax((-2, -1))


def _settled(error: float, before: float) -> bool:
    """Whether another step would not help: as good as it gets, lost, or rounding that no longer shrinks."""
    return error <= 1e-12 or not error < math.inf or (error < 1e-6 and error > before / 2)


def _degenerate(gram: Tensor, weights: Tensor, residual: Tensor, inside: Tensor) -> Tensor:
    """Whether the weights solve nothing, or only what rounding left of gradients that cancel."""
    weights = weights * inside
    square = dot(weights, times(gram, weights))
    lengths = dot(weights, diagonal(gram).sqrt())
    return ~((residual < 1e-4) & ((square > 1e-13 * lengths * lengths) | (inside.sum(-1) == 0)))
