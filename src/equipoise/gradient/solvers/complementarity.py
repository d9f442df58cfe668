"""Quadratic problems over u >= 0: z = G u + q - theta >= 0 and u . z = 0, for positive semidefinite G.

These are the optimality conditions behind the min-norm point, the projections on the dual cone and CAGrad,
which differ in what theta is. Three methods work together:

Pivoting guesses which entries of u are positive, solves the linear system of that guess, and moves the
entries that came out with the wrong sign to the other side: all of them at first, later those that are off by at
least half as much as the worst. From "all positive" 1 to 10 guesses do nearly always, but nothing proves
that it ends: on many dependent gradients it may cycle.
Where it did not end, an interior point method (Mehrotra's predictor and corrector) finds u instead; not on a
GPU, where it would have to run every time.

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

from equipoise.gradient.solvers.common import TINY, may_look, solve_definite

_PROXIMAL = 1e-8  # of |g_i|^2: well above rounding, well below the eigenvalues that matter
_SINGULAR = 1e-14  # the same for the interior point method, which starts only once
_FLOOR = 1e-30  # stands for |g_i|^2 of a gradient that is exactly zero
_LOOKING = (8, 16, 3)  # proximal steps; guesses in the first and in each later one
_BLIND = (5, 16, 1)  # the same where they cannot end early
_APART = 1e-5  # of |g_i|^2 outside the span of the gradients before it, where no proximal term is needed
_WHOLE_GUESSES = 5  # move all wrong entries
_ITERATIONS = 30


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
    looking = may_look(p.gram)
    if looking and not p.unique:
        certain = _certain(p)
        if certain is not None:
            return certain
        p = p._replace(gram=_definite(p))
    steps, first, later = _LOOKING if looking else _BLIND
    near = p.squares * (0.0 if p.unique else _PROXIMAL) + (1 - p.active)
    matrix = p.gram + torch.diag_embed(near.squeeze(-1))
    eye = torch.eye(p.gram.shape[-1], dtype=p.gram.dtype, device=p.gram.device)
    lengths = p.squares.sqrt()
    u = torch.zeros_like(p.cost)
    free = (p.active > 0).expand(p.cost.shape)
    done = p.radius < 0  # no: nothing is
    for step in range(1 if p.unique else steps):
        pull = near * u - p.cost
        sides = torch.cat([p.active.expand(pull.shape), pull], -1)
        for guess in range(later if step else first):
            new, z = _stationary(p, matrix, sides, free, eye)
            parts = new * lengths
            size = _size(p, parts)
            signed = torch.where(free, parts, z / lengths)
            limit = -1e-13 * size
            if guess >= _WHOLE_GUESSES:
                limit = torch.minimum(limit, 0.5 * signed.amin(-2, keepdim=True))
            wrong = signed <= limit
            bad = wrong.any(-2, keepdim=True)
            if looking and not bool(bad.any()):
                break
            free = free ^ wrong
        new = new.clamp(min=0.0)
        if step > 0:
            new = torch.where(bad | done, u, new)
            # what counts is G u: along dependent gradients rounding would never stop moving u
            near_by = 1e-15 * torch.maximum(_square(p.gram, new), 1e-13 * size * size)
            done = done | (~bad & (_square(p.gram, new - u) <= near_by))
        elif looking and bool(bad.any()):
            inner, support = _interior(p)
            new, free = torch.where(bad, inner, new), torch.where(bad, support, free)
        u = new
        if looking and bool(done.all()):
            break
    return u


def _certain(p: Problem) -> Tensor | None:
    """u by pivoting alone, where the gradients that make it are far from dependent: then nothing else is u.

    Most steps end here, at a third of the operators. None where it takes more.
    """
    matrix = p.gram + torch.diag_embed((1 - p.active).squeeze(-1))
    eye = torch.eye(p.gram.shape[-1], dtype=p.gram.dtype, device=p.gram.device)
    sides = torch.cat([p.active.expand(p.cost.shape), -p.cost], -1)
    lengths = p.squares.sqrt()
    free = (p.active > 0).expand(p.cost.shape)
    for _ in range(_WHOLE_GUESSES):
        block = torch.where(free & free.mT, matrix, eye)
        factor = torch.linalg.cholesky_ex(block)[0]
        apart = factor.diagonal(dim1=-2, dim2=-1).square() / block.diagonal(dim1=-2, dim2=-1)
        if not bool((apart > _APART).all()):
            return None
        u, z = _finish(p, matrix, sides, torch.cholesky_solve(torch.where(free, sides, 0.0), factor))
        parts = u * lengths
        wrong = torch.where(free, parts, z / lengths) <= -1e-13 * _size(p, parts)
        if not bool(wrong.any()):
            return u.clamp(min=0.0)
        free = free ^ wrong
    return None


def _definite(p: Problem) -> Tensor:
    """G, raised by what rounding took: products of float32 gradients may leave it with eigenvalues below 0."""
    raised = p.gram + torch.diag_embed((p.squares * _PROXIMAL).squeeze(-1))
    if not bool(torch.linalg.cholesky_ex(raised)[1].any()):
        return p.gram
    lengths = p.squares.sqrt()
    lowest = torch.linalg.eigvalsh(p.gram / (lengths * lengths.mT))[..., :1, None].clamp(max=0.0)
    return p.gram - torch.diag_embed((2 * lowest * p.squares * p.active).squeeze(-1))


def _size(p: Problem, parts: Tensor) -> Tensor:
    """What rounding is a part of: the entries u_i |g_i|, and q, which is of the size of a task each."""
    size: Tensor = torch.linalg.vector_norm(parts, 1, -2, keepdim=True)
    return size if p.kind == "simplex" else size + p.active.sum(-2, keepdim=True)


def _square(gram: Tensor, u: Tensor) -> Tensor:
    """u'Gu, one entry."""
    return (u * (gram @ u)).sum(-2, keepdim=True)


def _stationary(p: Problem, matrix: Tensor, sides: Tensor, free: Tensor, eye: Tensor) -> tuple[Tensor, Tensor]:
    """u on the free entries with z = 0 there, and z. `sides` are the factors of theta and what stands alone."""
    return _finish(
        p, matrix, sides, solve_definite(torch.where(free & free.mT, matrix, eye), torch.where(free, sides, 0.0))
    )


def _finish(p: Problem, matrix: Tensor, sides: Tensor, solved: Tensor) -> tuple[Tensor, Tensor]:
    """u and z from what the free entries are for each of `sides`."""
    active, pull = sides.chunk(2, -1)
    a, b = solved.chunk(2, -1)
    if p.kind == "cone":
        return b, matrix @ b - pull
    of_a, of_b = solved.sum(-2, keepdim=True).chunk(2, -1)
    of_a = of_a.clamp(min=TINY)
    if p.kind == "simplex":
        theta = (1 - of_b) / of_a
    else:  # u = theta a + b in theta sum(u) = q'u + radius, which u'Gu + 2 q'u + radius = 2 theta sum(u) becomes
        of_qa, of_qb = (p.cost * solved).sum(-2, keepdim=True).chunk(2, -1)
        half = (of_qa - of_b) / 2
        theta = (half + (half * half + of_a * (of_qb + p.radius)).clamp(min=0.0).sqrt()) / of_a
    u = torch.addcmul(b, theta, a)
    return u, torch.addcmul(matrix @ u - pull, theta, active, value=-1.0)


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
        if bool(done.all()):
            break
        ratio = z / u
        barrier = matrix + torch.diag_embed(ratio.squeeze(-1))
        step_u, step_z = _newton(p, barrier, u, ratio, miss, -u * z)
        most = torch.maximum(_reach(u, step_u), _reach(z, step_z)).clamp(min=1.0)
        predicted = (inside + step_u / most) * (z + step_z / most)
        centre = (predicted.sum(-2, keepdim=True) / gap) ** 3 * gap / count
        step_u, step_z = _newton(p, barrier, u, ratio, miss, centre - u * z - step_u * step_z)
        most = (torch.maximum(_reach(u, step_u), _reach(z, step_z)) / 0.99).clamp(min=1.0)
        u, z = torch.where(done, u, u + step_u / most), torch.where(done, z, z + step_z / most)
    support = (u * p.squares > z) & (p.active > 0)
    u = u * p.active
    return (u / u.sum(-2, keepdim=True).clamp(min=TINY) if p.kind == "simplex" else u), support


def _newton(
    p: Problem, barrier: Tensor, u: Tensor, ratio: Tensor, miss: Tensor, target: Tensor
) -> tuple[Tensor, Tensor]:
    """The step to z = G u + q - theta and u z + u dz + z du = target + u z."""
    push = target * p.active / u
    step = solve_definite(barrier, push - miss)
    return step, push - ratio * step


def _reach(x: Tensor, step: Tensor) -> Tensor:
    """The largest part of `x` that the step takes away."""
    return (-step / x).amax(-2, keepdim=True)
