"""GradDrop: at each coordinate, keep the gradients of one sign."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import Unpack

from equipoise.gradient.base import Game, GradientBalancer, GradientOptions, Update
from equipoise.gradient.ranges import out_of_range
from equipoise.gradient.shared import Shared
from equipoise.random import make_seed, uniform

_COLUMNS, _ENTRIES = 2**16, 2**18  # of the Jacobian looked at together, at most


class GradDrop(GradientBalancer):
    """Gradient sign dropout: at each coordinate the tasks' gradients of one sign, drawn at random, are summed.

    The positive sign is drawn with probability P = (1 + sum g / sum |g|) / 2. There is no epsilon in the quotient, so
    small gradients are treated like large ones; where all gradients are 0 there is nothing to keep. With a
    representation as `shared`, its coordinates are the activations of each sample. The paper drops at an activation
    that all samples share (the sign of the activation times the gradient, summed over the batch); this is the
    coordinatewise form of the code everyone runs. On several ranks a representation has no twin in one
    process: each rank draws for its own samples; parameters do, as their gradients are joined first.

    The reported weight of a task is the part of its squared gradient that was kept, from 0 to 1.

    leak: the part of each task's gradient that is never dropped: one number, or one a task.
    seed: where the draws start; None takes a seed from torch's global generator.

    >>> import torch, equipoise as eq
    >>> x = torch.nn.Parameter(torch.ones(2))
    >>> eq.GradDrop(num_tasks=2, seed=0)([2 * x[0] + x[1], x[0] + 3 * x[1]], shared=[x]).backward()
    >>> x.grad  # no conflict: the sum
    tensor([3., 4.])
    """

    needs_rows = True

    def __init__(
        self,
        num_tasks: int | None = None,
        *,
        leak: float | Sequence[float] = 0.0,
        seed: int | None = None,
        **common: Unpack[GradientOptions],
    ) -> None:
        super().__init__(num_tasks, **common)
        leaks = torch.as_tensor(leak, dtype=torch.float32)
        if leaks.shape not in ((), (self.num_tasks,)) or not bool(((leaks >= 0) & (leaks <= 1)).all()):
            raise ValueError(f"`leak` must be a number from 0 to 1, or {self.num_tasks} of them; found {leak!r}.")
        self._leaks = bool(leaks.any())
        self.permutation_equivariant = bool((leaks == leaks.flatten()[0]).all())
        self.leak: Tensor
        self.seed: Tensor
        self.register_buffer("leak", leaks.expand(self.num_tasks).clone())
        self.register_buffer("seed", make_seed(seed))

    def update(self, rows: Tensor, shared: Shared, game: Game) -> Update:  # noqa: ARG002
        leak = self.leak.to(rows)
        ones = torch.ones_like(leak)
        rest, one = ones - leak, ones[0]
        direction, squares = torch.empty_like(rows[0]), torch.zeros_like(game.losses)
        whole = game.gram.diagonal()
        sums = torch.float64 if out_of_range(whole, rows) else rows.dtype
        columns = max(1, min(_COLUMNS, _ENTRIES // len(rows)))
        for start in range(0, rows.shape[1], columns):
            here = slice(start, start + columns)
            part = rows[:, here]
            draw = uniform(self.seed + start, self.step, part.shape[1:], rows.dtype)
            kept = part.clamp(min=0.0)
            plus, total = ones @ kept, ones @ part
            # P > U without a quotient that may be 0 / 0: plus - U (2 plus - total) > 0. The sign is copied, not chosen
            # by a condition, which a processor would guess wrong every second time.
            sign = torch.copysign(one, torch.addcmul(plus, draw, torch.sub(total, plus, alpha=2)))
            torch.mul(part, sign, out=kept).clamp_(min=0.0)
            torch.mul(rest @ kept, sign, out=direction[here])
            squares += torch.linalg.vector_norm(kept, dim=1, dtype=sums).double().square_()
        if self._leaks:
            direction += leak @ rows
        part = squares / torch.where(game.active, whole, 1.0)
        weights = torch.where(game.active, torch.lerp(part, torch.ones_like(part), leak.to(part)), 0.0)
        return Update(direction, weights, ones)
