"""Nash-MTL: the bargaining solution."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Unpack

from equipoise.gradient.base import Combination, Game, GradientOptions
from equipoise.gradient.solved import SolvedBalancer
from equipoise.gradient.solvers import fair


class NashMTL(SolvedBalancer):
    """Nash-MTL: J'alpha with alpha > 0 and G alpha = 1 / alpha, G = J J'; then clipped to `max_norm`.

    |J'alpha| = sqrt(K) always, so with the default `max_norm` the shared step has unit length. At a
    representation it is the representation's gradient that is clipped, not the trunk's.
    There is no solution when 0 is in the convex hull of the gradients: then G + delta tr(G) / K I is solved,
    delta = 1e-8. The heads get alpha (`heads="sum"`: 1); then multiplying a loss by a constant changes no gradient.

    Not taken over from the reference code: 20 rounds of cvxpy and ECOS whose stopping rule tests another equation
    (it returns ones for equal gradients), whose failures are swallowed and leave alpha = 1 for ever, and whose
    scaling depends on the gradients; no support for one task.

    max_norm: None does not clip.
    every: solve in every `every`-th step and keep alpha in between.

    >>> import torch, equipoise as eq
    >>> x = torch.tensor([1.0, 1.0], requires_grad=True)
    >>> balancer = eq.NashMTL(num_tasks=2, max_norm=None)
    >>> balancer([x[0], 4 * x[1]], shared=[x]).backward()
    >>> x.grad, balancer.alpha
    (tensor([1., 1.]), tensor([1.0000, 0.2500], dtype=torch.float64))
    """

    default_heads = "weighted"

    def __init__(
        self,
        num_tasks: int | None = None,
        *,
        max_norm: float | None = 1.0,
        every: int = 1,
        **options: Unpack[GradientOptions],
    ) -> None:
        super().__init__(num_tasks, **options)
        check_max_norm(max_norm)
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"`every` must be a whole number of at least 1; found {every!r}.")
        self.max_norm = max_norm
        self.every = every
        self.scale_invariant = self.heads == "weighted"
        self.alpha: Tensor
        self.register_buffer("alpha", torch.ones(self.num_tasks, dtype=torch.float64))

    def combine(self, game: Game) -> Combination:
        solution = fair(game.gram, game.active, alpha=1.0)
        self._say(solution, "1e-8 of the mean squared gradient norm is added to the diagonal of their Gram matrix")
        solve = (self.step % self.every == 0) & game.active
        alpha = torch.where(solve, solution.weights, self.alpha.to(solution.weights))
        if self.training:
            game.batch.keep(self.alpha, alpha, per_task=True)
        return Combination(alpha, alpha, self.max_norm)


def check_max_norm(max_norm: float | None) -> None:
    """Refuse a norm that nothing can be clipped to."""
    if max_norm is not None and not max_norm > 0:
        raise ValueError(f"`max_norm` must be above 0, or None; found {max_norm}.")
