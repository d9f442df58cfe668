"""Gradients averaged over steps: the state of MoCo and DB-MTL."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from equipoise.gradient.base import Game, GradientBalancer
from equipoise.gradient.shared import Shared
from equipoise.gradient.solvers.common import may_look
from equipoise.gradient.tasks import gram
from equipoise.losses import OutOfRange


def decay(rate: float, power: float, step: Tensor) -> Tensor | float:
    """`rate` divided by a power of the number of this step, counted from 1."""
    count = int(step) + 1.0 if may_look(step) else (step + 1).double()
    return rate * count**-power


class RunningGradients(GradientBalancer):
    """Keeps a running average of the task gradients where they are parameters', and of their Gram matrix at a
    representation, which belongs to one batch."""

    needs_rows = True

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.average: Tensor
        self.gram_average: Tensor
        self.register_buffer("average", torch.zeros(0))  # [K, width] from the first step on
        self.register_buffer("gram_average", torch.zeros(self.num_tasks, self.num_tasks, dtype=torch.float64))

    def run(
        self, rows: Tensor, factors: Tensor, shared: Shared, game: Game, rate: Tensor | float
    ) -> tuple[Tensor | None, Tensor]:
        """Move the average towards the rows times `factors`, by the part `rate`; absent tasks' entries stay.

        Returns the average gradients, None at a representation, and the average's Gram matrix.
        """
        batch = game.batch
        ones = batch.only(torch.ones_like(game.losses))
        if shared.local:
            target = game.gram * (factors * factors.unsqueeze(1))
            moved = torch.lerp(self.gram_average.to(target), target, rate * (ones * ones.unsqueeze(1)))
            if self.training:
                batch.keep(self.gram_average, moved.to(self.gram_average))
            return None, moved
        self._check_range(game, factors, self.average if self.average.numel() else rows)
        average = self._room(rows)
        part = (rate * ones).to(average).unsqueeze(1)
        target = rows.to(average).mul_(factors.to(average).unsqueeze(1))
        if batch.ok is not None:
            part, target = torch.where(batch.ok, part, 0.0), torch.where(batch.ok, target, 0.0)
        average = average.lerp_(target, part) if self.training else torch.lerp(average, target, part)
        return average, gram(average)

    def _check_range(self, game: Game, factors: Tensor, average: Tensor) -> None:
        """Refuse, before anything is kept, what the average cannot hold; where it may be looked at."""
        most = torch.finfo(average.dtype).max
        longest = (game.gram.diagonal().sqrt().clamp(min=1.0) * factors.abs()).amax()  # factors are cast as well
        total = game.batch.only(game.losses.abs()).sum()
        if may_look(longest) and not bool((longest <= most) & (total <= most)):
            raise OutOfRange(
                f"the gradients that {type(self).__name__} averages, and the sum of the losses, must be at most "
                f"{most:g} in size; found {longest:g} and {total:g}. on_nonfinite='skip' drops such steps."
            )

    def _room(self, rows: Tensor) -> Tensor:
        if self.average.numel() == 0:
            if not self.training:  # looking leaves no mark
                return torch.zeros_like(rows)
            self.average = torch.zeros_like(rows)
        elif self.average.shape != rows.shape:
            raise ValueError(
                f"`shared` must be the same parameters at every step for {type(self).__name__}, which averages their "
                f"gradients: so far they had {self.average.shape[1]} entries; found {rows.shape[1]}."
            )
        return self.average

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        stored = state_dict.get(f"{prefix}average")
        fits = isinstance(stored, Tensor) and (stored.numel() == 0 or stored.shape[:-1] == (self.num_tasks,))
        if isinstance(stored, Tensor) and fits and stored.shape != self.average.shape:
            self.average = torch.zeros_like(stored, device=self.average.device)
        super()._load_from_state_dict(state_dict, prefix, *args)
