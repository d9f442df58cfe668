"""ConFIG: the direction with the same cosine to every gradient."""

from __future__ import annotations

from equipoise.gradient.base import Combination, Game
from equipoise.gradient.solved import SolvedBalancer
from equipoise.gradient.solvers import equal_cosines


class ConFIG(SolvedBalancer):
    """ConFIG: d = (sum_i g_i . u) u, u the unit vector along pinv(U) 1 with U the unit gradients in rows.

    u has the same cosine with every gradient where they do not depend on each other. Where pinv(U) 1 = 0
    (two opposite gradients, for one) there is no such direction: d = 0, where the reference returns rounding.
    The heads get the plain sum of the losses.

    >>> import torch, equipoise as eq
    >>> x = torch.tensor([1.0, 1.0], requires_grad=True)
    >>> eq.ConFIG(num_tasks=2)([x[0], 3 * x[1]], shared=[x]).backward()
    >>> x.grad
    tensor([2., 2.])
    """

    def combine(self, game: Game) -> Combination:
        solution = equal_cosines(game.gram, game.active)
        self._say(solution, "the step is 0")
        return Combination(solution.weights, solution.weights)
