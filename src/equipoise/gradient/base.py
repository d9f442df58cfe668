"""What every gradient method shares: the gradients are taken once, combined, and handed over by a carrier."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from typing_extensions import Unpack

from equipoise.balancer import Balancer, CommonOptions
from equipoise.balancer import Shared as Passed
from equipoise.gradient.carrier import carry
from equipoise.gradient.shared import Shared
from equipoise.gradient.solvers.common import diagonal, may_look
from equipoise.gradient.tasks import TaskGradients
from equipoise.losses import Batch
from equipoise.precision import full_precision

_OUT = 1e-12  # a task whose gradient norm is below this part of the largest leaves the game
_FIRST_SCALE, _GROWTH_STEPS = 2.0**16, 2000  # float16 gradients: where the scale starts, when it doubles


class Game(NamedTuple):
    """What a method sees of one step.

    gram: [K, K] float64, J J^T over the shared tensors, joined over ranks, always finite; rows and columns of
        tasks out of the game are 0.
    losses: [K] float64, joined, detached.
    active: bool [K]: present, with a gradient norm not below 1e-12 of the largest.
    batch: the losses as read; `keep` and `only` are for a method's state.
    full: every task is active, as far as the host knows: False says nothing.
    """

    gram: Tensor
    losses: Tensor
    active: Tensor
    batch: Batch
    full: bool = False


class Combination(NamedTuple):
    """What a method answers.

    shared: [K], the coefficients c: the shared tensors get J^T c.
    heads: [K], the method's own head weights, used with heads="weighted".
    max_norm: the norm that J^T c is clipped to.
    """

    shared: Tensor
    heads: Tensor
    max_norm: float | None = None


class Update(NamedTuple):
    """What reaches the shared tensors and the heads.

    direction: the gradient of the shared tensors, flat, as wide as a row of the Jacobian.
    weights: [K], what is reported as applied to the shared tensors.
    heads: [K], the method's own head weights.
    """

    direction: Tensor
    weights: Tensor
    heads: Tensor


class GradientOptions(CommonOptions, total=False):
    """Options every gradient method takes besides its own."""

    heads: Literal["sum", "weighted"] | None
    low_memory: bool


class GradientBalancer(Balancer):
    """A method that combines the tasks' gradients; a subclass fills in `combine`, or `update` if it needs the rows.

    Without gradients (`torch.no_grad()`, in an evaluation) the scalar is the losses' sum by the weights last applied,
    `shared` is not asked for, and nothing is kept.

    heads: what the heads get: "sum", each its own task's gradient, or "weighted", times the method's weight.
    low_memory: with parameters as `shared`, hold the gradients of a part of them at a time.
    """

    needs_shared = True
    default_heads: Literal["sum", "weighted"] = "sum"
    needs_rows: bool = False  # the Gram matrix is not enough
    _uncompiled: ClassVar[Callable[[GradientBalancer, Batch, Shared], tuple[Tensor, Tensor]] | None] = None

    def __init__(
        self,
        num_tasks: int | None = None,
        *,
        heads: Literal["sum", "weighted"] | None = None,
        low_memory: bool = False,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(num_tasks, **common)
        if heads not in (None, "sum", "weighted"):
            raise ValueError(f"`heads` must be 'sum' or 'weighted'; found {heads!r}.")
        if low_memory and self.needs_rows:
            raise ValueError(f"`low_memory` must be False for {type(self).__name__}, which needs whole gradients.")
        self.heads = heads or self.default_heads
        self.low_memory = low_memory
        self._rows: Tensor | None = None  # the Jacobian's memory, used again by the next step
        self._gram: Tensor | None = None  # of the step just taken, where all of it was needed, for who looks on
        self._ok: Tensor | None = None  # whether the step just taken had finite gradients, until it is kept
        self.gradient_scale: Tensor
        self.good_steps: Tensor
        self.register_buffer("gradient_scale", torch.tensor(_FIRST_SCALE))
        self.register_buffer("good_steps", torch.zeros((), dtype=torch.int64))

    # What a method fills in.

    def combine(self, game: Game) -> Combination:
        """The coefficients of the shared gradients, from their Gram matrix."""
        raise NotImplementedError

    def update(self, rows: Tensor, shared: Shared, game: Game) -> Update:
        """What reaches the shared tensors, from the rows themselves: for methods with `needs_rows`.

        rows: the Jacobian, one row a task, zeros for an absent one; valid during this call only. Where it is of
            parameters, the game's Gram matrix has its diagonal only.
        """
        raise NotImplementedError

    # The machinery.

    def objective(self, batch: Batch, shared: list[Tensor] | None) -> tuple[Tensor, Tensor]:
        if shared is None:  # evaluation: the scalar's value, by the weights last applied
            heads = self.last_weights if self.heads == "weighted" else torch.ones_like(self.last_weights)
            return torch.dot(batch.only(heads.to(batch.losses)), batch.losses), self.last_weights
        # Kept out of compiled graphs; wrapped at the first call, since torch's compiler takes a second to import.
        if GradientBalancer._uncompiled is None:
            outside = torch.compiler.disable(GradientBalancer._objective)  # type: ignore[no-untyped-call]
            GradientBalancer._uncompiled = staticmethod(outside)
        return GradientBalancer._uncompiled(self, batch, Shared(shared))

    def _shared_tensors(self, shared: Passed | None) -> list[Tensor] | None:
        return super()._shared_tensors(shared) if torch.is_grad_enabled() else None

    @torch.no_grad()
    def _objective(self, batch: Batch, shared: Shared) -> tuple[Tensor, Tensor]:
        tasks = TaskGradients(batch, shared, self.gradient_scale, self._group, whole=self.needs_rows)
        with full_precision(batch.losses.device):
            return self._combined(batch, tasks)

    def _combined(self, batch: Batch, tasks: TaskGradients) -> tuple[Tensor, Tensor]:
        shared = tasks.shared
        rows: Tensor | None = None
        if self.low_memory and shared.local == 0:
            gram = tasks.streamed(partial(self._memory, shared))
        else:
            rows = tasks.rows(self._memory(shared, tasks.width), tasks.parts)
            gram = tasks.norms(rows) if self.needs_rows and shared.local == 0 else tasks.gram(rows, tasks.parts)
        self._gram = None if self.needs_rows and shared.local == 0 else gram
        ok = self._finite(gram, batch, tasks.half)
        if ok is not None:
            if self.on_nonfinite == "skip" and not ok.is_cuda:
                self.skipped = True
            gram = torch.where(ok, gram, torch.eye(self.num_tasks, dtype=gram.dtype, device=gram.device))
        self._ok = ok
        game = play(gram, batch if ok is None else batch._replace(ok=ok))
        if self.needs_rows and rows is not None:
            update = self.update(rows, shared, game)
            own_weights, weights, gradients = update.heads, update.weights, shared.split(update.direction)
        else:
            combination = self.combine(game)
            own_weights, weights = combination.heads, applied(game, combination)
            gradients = tasks.weighted(weights, shared.tensors) if rows is None else tasks.combined(weights, rows)
        weighted = self.heads == "weighted"
        heads = torch.ones_like(game.losses)
        if weighted:
            heads = own_weights.double() if game.full else torch.where(game.active, own_weights.double(), heads)
        heads = batch.only(heads)
        leaves, of_leaves = tasks.heads(heads, plain=not weighted)
        value = torch.dot(heads, game.losses).to(batch.losses.dtype)
        gradients = [*gradients, *of_leaves]
        # Bad losses, where they could not raise, reach nothing. Bad gradients of good losses go on, so that a
        # GradScaler sees them, unless they are to be skipped.
        keep = ok if self.on_nonfinite == "skip" else batch.ok
        if keep is not None:
            gradients = [torch.where(keep, gradient, 0.0) for gradient in gradients]
            value = torch.where(keep, value, 0.0)
        with torch.enable_grad():
            scalar = carry(value, [*shared.tensors, *leaves], gradients)
        return scalar, weights

    def _memory(self, shared: Shared, width: int) -> Tensor:
        """Room for the Jacobian: one block, kept for the next step."""
        shape, device = (self.num_tasks, width), shared.tensors[0].device
        rows = self._rows
        if rows is None or rows.numel() < self.num_tasks * width or rows.dtype != shared.dtype or rows.device != device:
            self._rows = None  # let go before asking for more
            self._rows = rows = torch.empty(shape, dtype=shared.dtype, device=device)
        return rows if rows.shape == shape else rows.flatten()[: self.num_tasks * width].view(shape)

    def _finite(self, gram: Tensor, batch: Batch, half: bool) -> Tensor | None:
        """Whether all task gradients are finite, None where that is known; moves the scale of float16 gradients."""
        squares = gram.diagonal()
        if batch.ok is None and not half and may_look(squares) and all(map(math.isfinite, squares.tolist())):
            return None  # the usual case, in one cheap look
        ok = torch.isfinite(squares).all()
        if half and self.training:
            grown = self.good_steps + 1 >= _GROWTH_STEPS
            self.gradient_scale.mul_(torch.where(ok, torch.where(grown, 2.0, 1.0), 0.5))
            self.good_steps.copy_(torch.where(ok & ~grown, self.good_steps + 1, 0))
        if batch.ok is not None:
            return ok & batch.ok
        return None if not ok.is_cuda and bool(ok) else ok

    def _advance(self, batch: Batch, weights: Tensor) -> None:
        ok, self._ok = self._ok, None
        if torch.is_grad_enabled():
            super()._advance(batch if ok is None else batch._replace(ok=ok), weights)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_rows": None, "_gram": None, "_ok": None}


def play(gram: Tensor, batch: Batch) -> Game:
    """Leave out absent tasks and those with next to no gradient."""
    squares = diagonal(gram)
    if batch.present is None and gram.ndim == 2 and may_look(gram):
        known = squares.tolist()
        if min(known) > 0 and min(known) >= _OUT**2 * max(known):  # the usual case, in one cheap look
            return Game(gram, batch.values.double(), torch.ones_like(squares, dtype=torch.bool), batch, full=True)
    active = (squares > 0) & (squares >= _OUT**2 * squares.amax(-1, keepdim=True))
    if batch.present is not None:
        active = active & batch.present
    gram = torch.where(active.unsqueeze(-2) & active.unsqueeze(-1), gram, 0.0)
    return Game(gram, batch.values.double(), active, batch)


def applied(game: Game, combination: Combination) -> Tensor:
    """The coefficients for the tasks in the game, clipped as torch.nn.utils.clip_grad_norm_ does."""
    weights = combination.shared.double()
    if not game.full:
        weights = torch.where(game.active, weights, 0.0)
    if combination.max_norm is None:
        return weights
    square = torch.linalg.vecdot(weights, (game.gram @ weights.unsqueeze(-1)).squeeze(-1))
    norm = square.clamp(min=0.0).sqrt().unsqueeze(-1)
    clipped: Tensor = weights * (combination.max_norm / (norm + 1e-6)).clamp(max=1.0)
    return clipped
