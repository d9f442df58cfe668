"""UPGrad: each task's gradient projected on the dual cone."""

from __future__ import annotations

import torch
from typing_extensions import Unpack

from equipoise.gradient.base import Combination, Game, GradientOptions
from equipoise.gradient.solved import SolvedBalancer
from equipoise.gradient.solvers import dual_cone


class UPGrad(SolvedBalancer):
    """UPGrad: the sum over tasks of the gradient's projection on the dual cone, {d: g_i . d >= 0 for every i}.

    Each projection is J'v with v >= e_t minimising v'(G / tr G + ridge I) v; the K problems are solved together.
    The heads get the plain sum of the losses.

    Not taken over from the reference code (TorchJD, where it is the mean over tasks): gradients whose squares sum to
    less than 1e-4 are taken as zero there. The answer here does not change with the scale of the gradients.

    ridge: makes the projection unique in v and its problem well conditioned; 0 is the projection itself.

    >>> import torch, equipoise as eq
    >>> x = torch.tensor([1.0, 1.0], requires_grad=True)
    >>> eq.UPGrad(num_tasks=2, ridge=0.0)([x[0] + x[1], -x[0]], shared=[x]).backward()
    >>> x.grad
    tensor([-0.5000,  1.5000])
    """

    def __init__(
        self, num_tasks: int | None = None, *, ridge: float = 1e-4, **options: Unpack[GradientOptions]
    ) -> None:
        super().__init__(num_tasks, **options)
        check_ridge(ridge)
        self.ridge = ridge

    def combine(self, game: Game) -> Combination:
        each = torch.eye(self.num_tasks, dtype=game.gram.dtype, device=game.gram.device)
        solution = dual_cone(game.gram, game.active, each, self.ridge)
        self.status = {"residual": solution.residual, "regularised": solution.degenerate}
        return Combination(solution.weights, solution.weights)


def check_ridge(ridge: float) -> None:
    """Refuse a ridge that is not one."""
    if not 0 <= ridge < float("inf"):
        raise ValueError(f"`ridge` must be at least 0 and finite; found {ridge}.")
