"""Complementarity: u >= 0, z = G u + q - theta >= 0 and u . z = 0, for positive semidefinite G.

These are the optimality conditions of minimising 1/2 u'Gu + (q - theta)'u over u >= 0, the problem behind
the min-norm point, the projections on the dual cone and CAGrad. Two methods, one after the other:

Pivoting guesses which entries of u are positive, solves the linear system of that guess, and moves every
entry that came out with the wrong sign to the other side. From "all positive" it is exact after 1 to 10
guesses nearly always, but nothing proves that it ends: on many dependent gradients it may cycle.
Where it did not end, an interior point method (Mehrotra's predictor and corrector) decides.

Vectors are columns, [..., K, 1], so that a batch of problems is solved like one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.gradient.solvers.common import TINY, may_look

_PROXIMAL = (
    1e-14  # added to the diagonal, relative to it: singular matrices become solvable, answers move less than rounding
)
_FLOOR = 1e-30  # the same for a gradient that is exactly zero
_GUESSES, _ITERATIONS = 16, 30


class Problem(NamedTuple):
    """G (the proximal term included), q, 1 for the tasks in the game and 0 for others, and theta.

    radius: None for theta = 0. Else theta is an unknown too, the least value of
        (q'w + sqrt(radius w'Gw)) over w >= 0 that sum to 1, where u is proportional to that w.
    """

    gram: Tensor
    cost: Tensor
    active: Tensor
    radius: Tensor | None = None


def problem(gram: Tensor, cost: Tensor, active: Tensor, radius: Tensor | None = None) -> Problem:
    """The problem on the active tasks; `gram` is normalised and 0 elsewhere, `active` a bool [K]."""
    near = gram.diagonal(dim1=-2, dim2=-1) * _PROXIMAL + torch.where(active, _FLOOR, 1.0)
    inside = active.to(gram.dtype).unsqueeze(-1)
    return Problem(gram + torch.diag_embed(near), cost * inside, inside, radius)


def solve(p: Problem) -> Tensor:
    """u, a column of each problem."""
    u, solved = _pivot(p)
    if may_look(u) and bool(solved.all()):
        return u
    return torch.where(solved, u, _interior(p)) * p.active


def _pivot(p: Problem) -> tuple[Tensor, Tensor]:
    """u by guessing its support, and whether the last guess was right."""
    lengths = p.gram.diagonal(dim1=-2, dim2=-1).unsqueeze(-1).sqrt() * p.active
    eye = torch.eye(p.gram.shape[-1], dtype=p.gram.dtype, device=p.gram.device)
    free = (p.active > 0).expand(p.cost.shape)
    for _ in range(_GUESSES):
        u, z, size = _stationary(p, free, eye)
        parts = u * lengths
        wrong = torch.where(free, parts < -1e-13 * parts.abs().amax(-2, keepdim=True), z < -1e-12 * lengths * size)
        bad = wrong.any(-2, keepdim=True)
        if may_look(u) and not bool(bad.any()):
            break
        free = free ^ wrong
    return u.clamp(min=0.0), ~bad


def _stationary(p: Problem, free: Tensor, eye: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """u on the free entries with z = 0 there; z; and the length of the gradient that z is made of."""
    inside = free.to(p.gram.dtype)
    factor = torch.linalg.cholesky_ex(torch.where(free & free.mT, p.gram, eye))[0]
    if p.radius is None:
        u = torch.cholesky_solve(-p.cost * inside, factor)
        product = p.gram @ u
        return u, product + p.cost, (u * product).sum(-2, keepdim=True).clamp(min=0.0).sqrt()
    a, b = torch.cholesky_solve(torch.cat([inside, p.cost * inside], -1), factor).chunk(2, -1)
    # u = theta a - b; putting it into 2 theta sum(u) = u'Gu + 2 q'u + radius leaves a quadratic in theta
    sums = torch.cat([a, b, p.cost * b], -1).sum(-2, keepdim=True)
    of_a, of_b, of_qb = sums.chunk(3, -1)
    root = (of_b * of_b + of_a * (p.radius - of_qb)).clamp(min=0.0).sqrt()
    theta = (of_b + root) / of_a.clamp(min=TINY)
    u = theta * a - b
    product = p.gram @ u
    size = (u * product).sum(-2, keepdim=True).clamp(min=0.0).sqrt() + p.radius.sqrt()
    return u, product + p.cost - theta * p.active, size


def _interior(p: Problem) -> Tensor:
    """u by following the central path u z = mu down to mu = 0."""
    spread = p.active / (p.gram.diagonal(dim1=-2, dim2=-1).unsqueeze(-1) + 1e-3)
    u = (spread if p.radius is None else spread / spread.sum(-2, keepdim=True)) + (1 - p.active)
    u = u.expand(p.cost.shape)
    z = 1 / u  # 1 for a task out of the game, where u = z = 1 stays
    if p.radius is not None:
        z = p.active / spread.clamp(min=TINY) + (1 - p.active)
    count = p.active.sum(-2, keepdim=True).clamp(min=1.0)
    for _ in range(_ITERATIONS):
        product = p.gram @ u
        inside = u * p.active
        miss = product + p.cost - z
        if p.radius is not None:
            # theta at the present u is off by the square of u's error only, so the path is not disturbed
            norm = (p.radius * (inside * product).sum(-2, keepdim=True)).clamp(min=0.0).sqrt()
            theta = ((p.cost * inside).sum(-2, keepdim=True) + norm) / inside.sum(-2, keepdim=True)
            miss = miss - theta * p.active
        gap = (inside * z).sum(-2, keepdim=True)
        done = (gap < 1e-19) & (miss.abs().amax(-2, keepdim=True) < 1e-12 * (1 + product.abs().amax(-2, keepdim=True)))
        if may_look(u) and bool(done.all()):
            break
        ratio = z / u
        factor = torch.linalg.cholesky_ex(p.gram + torch.diag_embed(ratio.squeeze(-1)))[0]
        step_u, step_z = _newton(p, factor, u, ratio, miss, -u * z)
        most = torch.maximum(_reach(u, step_u), _reach(z, step_z)).clamp(min=1.0)
        predicted = (inside + step_u / most) * (z + step_z / most)
        centre = (predicted.sum(-2, keepdim=True) / gap) ** 3 * gap / count
        step_u, step_z = _newton(p, factor, u, ratio, miss, centre - u * z - step_u * step_z)
        most = (torch.maximum(_reach(u, step_u), _reach(z, step_z)) / 0.99).clamp(min=1.0)
        u, z = torch.where(done, u, u + step_u / most), torch.where(done, z, z + step_z / most)
    return u


def _newton(
    p: Problem, factor: Tensor, u: Tensor, ratio: Tensor, miss: Tensor, target: Tensor
) -> tuple[Tensor, Tensor]:
    """The step to z = G u + q - theta and u z + u dz + z du = target + u z."""
    push = target * p.active / u
    step = torch.cholesky_solve(push - miss, factor)
    return step, push - ratio * step


def _reach(x: Tensor, step: Tensor) -> Tensor:
    """The largest part of `x` that the step takes away."""
    return (-step / x).amax(-2, keepdim=True)
