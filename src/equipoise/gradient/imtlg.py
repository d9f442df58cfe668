"""Impartial multi-task learning, its gradient half."""

from __future__ import annotations

from equipoise.gradient.base import Combination, Game
from equipoise.gradient.solved import SolvedBalancer
from equipoise.gradient.solvers import equal_projections


class IMTLG(SolvedBalancer):
    """IMTL-G: J'w with sum w = 1 and the same projection on every task's unit gradient; w may be negative.

    (u_1 - u_k) . J'w = 0 for every k and sum w = 1, u_k = g_k / |g_k|, by least squares of least norm: where
    gradients depend on each other (two opposite ones, duplicates) there is still an answer, and one only.
    The heads get the plain sum of the losses (`heads="weighted"`: w, as in the nash-mtl line of code).

    Not taken over from the reference code: a matrix inverse, retried with 1e-8 on the diagonal where it failed;
    weights of the heads that may be negative, by default. TorchJD's closed form misses opposite gradients.

    >>> import torch, equipoise as eq
    >>> x = torch.tensor([1.0, 1.0], requires_grad=True)
    >>> eq.IMTLG(num_tasks=2)([x[0], 3 * x[1]], shared=[x]).backward()
    >>> x.grad
    tensor([0.7500, 0.7500])
    """

    def combine(self, game: Game) -> Combination:
        solution = equal_projections(game.gram, game.active)
        self._say(solution, "they are met as nearly as they can be", "its equations contradict each other")
        return Combination(solution.weights, solution.weights)
