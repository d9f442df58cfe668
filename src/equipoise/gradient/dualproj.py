"""DualProj: the mean gradient projected on the dual cone."""

from __future__ import annotations

import torch
from typing_extensions import Unpack

from equipoise.gradient.base import Combination, Game, GradientOptions
from equipoise.gradient.solved import SolvedBalancer
from equipoise.gradient.solvers import dual_cone
from equipoise.gradient.upgrad import check_ridge


class DualProj(SolvedBalancer):
    """DualProj: the summed gradient, projected on the dual cone {d: g_i . d >= 0 for every i}.

    J'v with v >= 1 minimising v'(G / tr G + ridge I) v. With one gradient at a time it is GEM.
    The heads get the plain sum of the losses. As for UPGrad, and unlike TorchJD (where it is the mean),
    the answer does not change with the scale of the gradients.

    ridge: makes the projection unique in v and its problem well conditioned; 0 is the projection itself.

    >>> import torch, equipoise as eq
    >>> x = torch.tensor([1.0, 1.0], requires_grad=True)
    >>> eq.DualProj(num_tasks=2, ridge=0.0)([2 * x[0] + x[1], -x[0]], shared=[x]).backward()
    >>> x.grad
    tensor([0., 1.])
    """

    def __init__(
        self, num_tasks: int | None = None, *, ridge: float = 1e-4, **options: Unpack[GradientOptions]
    ) -> None:
        super().__init__(num_tasks, **options)
        check_ridge(ridge)
        self.ridge = ridge

    def combine(self, game: Game) -> Combination:
        together = torch.ones(self.num_tasks, 1, dtype=game.gram.dtype, device=game.gram.device)
        solution = dual_cone(game.gram, game.active, together, self.ridge)
        self.status = {"residual": solution.residual, "regularised": solution.degenerate}
        return Combination(solution.weights, solution.weights)
