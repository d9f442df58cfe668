"""Conflict-averse gradient descent."""

from __future__ import annotations

from typing import Literal

from typing_extensions import Unpack

from equipoise.gradient.base import Combination, Game, GradientOptions
from equipoise.gradient.solved import SolvedBalancer
from equipoise.gradient.solvers import cagrad


class CAGrad(SolvedBalancer):
    """Conflict-averse gradient descent: K d / (1 + c^2), d the best worst improvement near the mean gradient.

    d = g0 + c |g0| g_w / |g_w| with g0 the mean gradient, g_w = J'w and w the point of the simplex that
    minimises g_w . g0 + c |g0| |g_w|, solved exactly. Where the best g_w is 0 its direction is undetermined
    and d = g0. Tasks with no gradient count in neither; K d does not depend on that.
    The heads get the plain sum of the losses.

    Not taken over from the reference code: SLSQP with an absolute tolerance, which returns equal weights when the
    gradients are small; 1e-8 under the roots; a graph kept alive one backward too long.
    TorchJD's CAGrad is d itself, without K / (1 + c^2).

    c: the radius of the ball around g0, as a part of |g0|; from 0 (the mean) to below 1.
    rescale: divide by 1 (0), 1 + c^2 (1) or 1 + c (2).

    >>> import torch, equipoise as eq
    >>> x = torch.tensor([1.0, 1.0], requires_grad=True)
    >>> eq.CAGrad(num_tasks=2, c=0.5)([x[0], x[1]], shared=[x]).backward()
    >>> x.grad
    tensor([1.2000, 1.2000])
    """

    def __init__(
        self,
        num_tasks: int | None = None,
        *,
        c: float = 0.4,
        rescale: Literal[0, 1, 2] = 1,
        **options: Unpack[GradientOptions],
    ) -> None:
        super().__init__(num_tasks, **options)
        if not 0 <= c < 1:
            raise ValueError(f"`c` must be from 0 to below 1; found {c}.")
        if rescale not in (0, 1, 2):
            raise ValueError(f"`rescale` must be 0, 1 or 2; found {rescale!r}.")
        self.c = c
        self.rescale = rescale

    def combine(self, game: Game) -> Combination:
        solution = cagrad(game.gram, game.active, self.c)
        self._say(solution, "the step is the mean gradient")
        size = game.active.sum() / (1.0, 1 + self.c**2, 1 + self.c)[self.rescale]
        weights = solution.weights * size
        return Combination(weights, weights)
