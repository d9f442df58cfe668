"""Methods whose weights solve a problem on the Gram matrix, and who say how well they did."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from typing_extensions import Unpack

from equipoise.gradient.base import Game, GradientBalancer, GradientOptions
from equipoise.gradient.solvers import Solution
from equipoise.gradient.solvers.common import may_look


class SolvedBalancer(GradientBalancer):
    """A gradient method with a solver.

    After each step `status` holds two tensors: "residual", how far the weights are from the equations of the
    method, and "regularised", whether the equations had no solution and the documented replacement was
    solved instead, of which the first time is also a warning (on a GPU, where a look would wait for the
    device, `status` alone says it).
    """

    def __init__(self, num_tasks: int | None = None, **options: Unpack[GradientOptions]) -> None:
        super().__init__(num_tasks, **options)
        self._told = False

    def _say(self, solution: Solution, replacement: str, because: str = "their convex hull contains 0") -> None:
        self.status = {"residual": solution.residual, "regularised": solution.degenerate}
        if not self._told and may_look(solution.degenerate) and bool(solution.degenerate.any()):
            self._told = True
            warnings.warn(
                f"{type(self).__name__} has no solution for these gradients ({because}): {replacement}. "
                "Said once; `status` says it for every step.",
                stacklevel=2,
            )


def present(game: Game) -> Tensor:
    """The tasks of this batch, those with a zero gradient among them, as bool [K]."""
    return torch.ones_like(game.active) if game.batch.present is None else game.batch.present
