"""Aligned-MTL: gradients made orthogonal and equally long."""

from __future__ import annotations

from typing import Literal

from typing_extensions import Unpack

from equipoise.gradient.base import Combination, Game, GradientOptions
from equipoise.gradient.solved import SolvedBalancer
from equipoise.gradient.solvers import aligned


class AlignedMTL(SolvedBalancer):
    """Aligned-MTL: the sum of the gradients after the nearest matrix with orthogonal, equally long rows is taken.

    J'w with w = s V diag(lambda^-1/2) V' 1, lambda and V the eigenvalues of J J' that are more than rounding
    and their vectors, s^2 the least of them (or `scale`). w may be negative. "regularised" in `status` says
    that gradients depend on each other, so that only as many directions as they span are aligned.
    The heads get the plain sum of the losses.

    scale: s^2 is the "min", the "median" (the lower middle) or the mean ("rmse") of the eigenvalues.

    >>> import torch, equipoise as eq
    >>> x = torch.tensor([1.0, 1.0], requires_grad=True)
    >>> eq.AlignedMTL(num_tasks=2)([x[0], 3 * x[1]], shared=[x]).backward()
    >>> x.grad
    tensor([1., 1.])
    """

    def __init__(
        self,
        num_tasks: int | None = None,
        *,
        scale: Literal["min", "median", "rmse"] = "min",
        **options: Unpack[GradientOptions],
    ) -> None:
        super().__init__(num_tasks, **options)
        if scale not in ("min", "median", "rmse"):
            raise ValueError(f"`scale` must be 'min', 'median' or 'rmse'; found {scale!r}.")
        self.scale = scale

    def combine(self, game: Game) -> Combination:
        solution = aligned(game.gram, game.active, self.scale)
        self.status = {"residual": solution.residual, "regularised": solution.degenerate}
        return Combination(solution.weights, solution.weights)
