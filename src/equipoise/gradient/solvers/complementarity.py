"""Quadratic problems over u >= 0: z = G u + q - theta >= 0 and u . z = 0, for positive semidefinite G.

These are the optimality conditions behind the min-norm point, the projections on the dual cone and CAGrad,
which differ in what theta is. Three methods work together:

Pivoting guesses which entries of u are positive, solves the linear system of that guess, and moves every
entry that came out with the wrong sign to the other side. From "all positive" 1 to 10 guesses do nearly
always, but nothing proves that it ends: on many dependent gradients it may cycle.
Where it did not end, an interior point method (Mehrotra's predictor and corrector) finds u instead.

Proximal steps make the answer independent of rounding: with dependent gradients there are many u with the
same G u. Each step solves with a little of |u - last u|^2 added, starting from u = 0, and so takes the same one
of them whatever the scale of the gradients; without the last step's u it would be off where G is nearly
singular.

Vectors are columns, [..., K, 1], so that a batch of problems is solved like one.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from equipoise.gradient.solvers.common import TINY, may_look

_PROXIMAL = 1e-8  # of |g_i|^2: well above rounding, well below the eigenvalues that matter
_SINGULAR = 1e-14  # the same for the interior point method, which starts only once
_FLOOR = 1e-30  # stands for |g_i|^2 of a gradient that is exactly zero
_STEPS, _FIRST_GUESSES, _GUESSES, _ITERATIONS = 8, 16, 3, 30


class Problem(NamedTuple):
    """One problem or a batch.

    kind: "cone": theta = 0. "simplex": theta is such that sum u = 1. "ball": theta is the least value of
        q'w + sqrt(radius w'Gw) over w >= 0 that sum to 1; u is then proportional to that w.
    gram, squares: G, and |g_i|^2 on its diagonal, never 0; 0 and 1 for tasks out of the game.
    cost, active: q; 1 for the tasks in the game and 0 for others.
    unique: G is far from singular, so that one solution without a proximal term is the only one.
    """

    kind: Literal["cone", "simplex", "ball"]
    gram: Tensor
    squares: Tensor
    cost: Tensor
    active: Tensor
    radius: Tensor
    unique: bool


def problem(
    kind: Literal["cone", "simplex", "ball"],
    gram: Tensor,
    active: Tensor,
    cost: Tensor | None = None,
    radius: Tensor | None = None,
    unique: bool = False,
) -> Problem:
    """The problem on the active tasks: `gram` is normalised and 0 elsewhere, `active` a bool [K]."""
    inside = active.to(gram.dtype).unsqueeze(-1)
    squares = gram.diagonal(dim1=-2, dim2=-1).clamp(min=_FLOOR).unsqueeze(-1)
    squares = torch.where(inside > 0, squares, 1.0)
    cost = torch.zeros_like(inside) if cost is None else cost * inside
    radius = inside.new_zeros(1, 1) if radius is None else radius
    return Problem(kind, gram, squares, cost, inside, radius, unique)


def solve(p: Problem) -> Tensor:
    """u, a column of each problem."""
    near = p.squares * (0.0 if p.unique else _PROXIMAL) + (1 - p.active)
    matrix = p.gram + torch.diag_embed(near.squeeze(-1))
    eye = torch.eye(p.gram.shape[-1], dtype=p.gram.dtype, device=p.gram.device)
    lengths = p.squares.sqrt() * p.active
    u = torch.zeros_like(p.cost)
    free = (p.active > 0).expand(p.cost.shape)
    done = p.radius < 0  # no: nothing is
    for step in range(1 if p.unique else _STEPS):
        pull = near * u - p.cost
        for _ in range(_FIRST_GUESSES if step == 0 else _GUESSES):
            factor = torch.linalg.cholesky_ex(torch.where(free & free.mT, matrix, eye))[0]
            new, z, size = _stationary(p, matrix, factor, pull, free)
            parts = new * lengths
            sizes = parts.abs()
            rounding = lengths * (1e-12 * size + 4e-15 * sizes.sum(-2, keepdim=True))
            wrong = torch.where(free, parts < -1e-13 * sizes.amax(-2, keepdim=True), z < -rounding)
            bad = wrong.any(-2, keepdim=True)
            if may_look(u) and not bool(bad.any()):
                break
            free = free ^ wrong
        new = new.clamp(min=0.0)
        if step > 0:
            new = torch.where(bad | done, u, new)
            # what counts is G u: along dependent gradients rounding would never stop moving u
            least = 1e-13 * sizes.sum(-2, keepdim=True).square()
            done = _square(p.gram, new - u) <= 1e-15 * _square(p.gram, new).clamp(min=least)
        elif not (may_look(u) and not bool(bad.any())):
            inner, support = _interior(p)
            new, free = torch.where(bad, inner, new), torch.where(bad, support, free)
        u = new
        if may_look(u) and bool(done.all()):
            break
    return u


def _square(gram: Tensor, u: Tensor) -> Tensor:
    """u'Gu, one entry."""
    return (u * (gram @ u)).sum(-2, keepdim=True)


def _stationary(
    p: Problem, matrix: Tensor, factor: Tensor, pull: Tensor, free: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """u on the free entries with z = 0 there; z; and the length of the gradient that z is made of."""
    inside = free.to(pull.dtype)
    if p.kind == "cone":
        u = torch.cholesky_solve(pull * inside, factor)
        product = matrix @ u
        return u, product - pull, (u * product).sum(-2, keepdim=True).clamp(min=0.0).sqrt()
    a, b = torch.cholesky_solve(torch.cat([inside, pull * inside], -1), factor).chunk(2, -1)
    of_a, of_b = a.sum(-2, keepdim=True).clamp(min=TINY), b.sum(-2, keepdim=True)
    if p.kind == "simplex":
        theta = (1 - of_b) / of_a
    else:  # u = theta a + b in theta sum(u) = q'u + radius, which u'Gu + 2 q'u + radius = 2 theta sum(u) becomes
        half = ((p.cost * a).sum(-2, keepdim=True) - of_b) / 2
        rest = (p.cost * b).sum(-2, keepdim=True) + p.radius
        theta = (half + (half * half + of_a * rest).clamp(min=0.0).sqrt()) / of_a
    u = theta * a + b
    product = matrix @ u
    size = (u * product).sum(-2, keepdim=True).clamp(min=0.0).sqrt() + p.radius.sqrt()
    return u, product - pull - theta * p.active, size


def _interior(p: Problem) -> tuple[Tensor, Tensor]:
    """u, and where it is positive, by following the central path u z = mu down to mu = 0.

    For the simplex theta is 1 and the result is divided by its sum.
    """
    matrix = p.gram + torch.diag_embed((p.squares * torch.where(p.active > 0, _SINGULAR, 1.0)).squeeze(-1))
    start = 1 / (p.squares + 1e-3)
    # a task out of the game stays at u = z = 1
    z = torch.where(p.active > 0, 1 / start, 1.0).expand(p.cost.shape)
    if p.kind == "ball":
        start = start / (start * p.active).sum(-2, keepdim=True)
    u = torch.where(p.active > 0, start, 1.0).expand(p.cost.shape)
    count = p.active.sum(-2, keepdim=True).clamp(min=1.0)
    for _ in range(_ITERATIONS):
        product = matrix @ u
        inside = u * p.active
        miss = product + p.cost - z
        if p.kind == "simplex":
            miss = miss - p.active
        elif p.kind == "ball":
            # theta at the present u is off by the square of u's error only, so the path is not disturbed
            norm = (p.radius * (inside * product).sum(-2, keepdim=True)).clamp(min=0.0).sqrt()
            theta = ((p.cost * inside).sum(-2, keepdim=True) + norm) / inside.sum(-2, keepdim=True)
            miss = miss - theta * p.active
        gap = (inside * z).sum(-2, keepdim=True)
        done = (gap < 1e-19) & (miss.abs().amax(-2, keepdim=True) < 1e-12 * (1 + product.abs().amax(-2, keepdim=True)))
        if may_look(u) and bool(done.all()):
            break
        ratio = z / u
        factor = torch.linalg.cholesky_ex(matrix + torch.diag_embed(ratio.squeeze(-1)))[0]
        step_u, step_z = _newton(p, factor, u, ratio, miss, -u * z)
        most = torch.maximum(_reach(u, step_u), _reach(z, step_z)).clamp(min=1.0)
        predicted = (inside + step_u / most) * (z + step_z / most)
        centre = (predicted.sum(-2, keepdim=True) / gap) ** 3 * gap / count
        step_u, step_z = _newton(p, factor, u, ratio, miss, centre - u * z - step_u * step_z)
        most = (torch.maximum(_reach(u, step_u), _reach(z, step_z)) / 0.99).clamp(min=1.0)
        u, z = torch.where(done, u, u + step_u / most), torch.where(done, z, z + step_z / most)
    support = (u * p.squares > z) & (p.active > 0)
    u = u * p.active
    return (u / u.sum(-2, keepdim=True).clamp(min=TINY) if p.kind == "simplex" else u), support


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
