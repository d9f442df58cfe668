"""FairGrad: alpha-fair utility of the tasks' improvements."""

from __future__ import annotations

from typing_extensions import Unpack

from equipoise.gradient.base import Combination, Game, GradientOptions
from equipoise.gradient.nashmtl import check_max_norm
from equipoise.gradient.solved import SolvedBalancer
from equipoise.gradient.solvers import fair


class FairGrad(SolvedBalancer):
    """FairGrad: K J'w with w > 0 and (G w)_i = w_i^(-1 / alpha), G = J J'.

    alpha = 1 is the equation of Nash-MTL; larger alpha gives more to tasks that improve less.
    There is no solution when 0 is in the convex hull of the gradients: then G + delta tr(G) / K I is solved,
    delta = 1e-8. The heads get the plain sum of the losses (`heads="weighted"`: K w).

    Not taken over from the reference code: SciPy's least squares on gradients as they come, unsolved when they are
    small (relative residual 6e-4 at a scale of 1e-4, 1.0 at 1e-8); LibMTL's version leaves out K and weights the heads.

    max_norm: clip to this norm (the reference's training clips to 1; at a representation it is the
        representation's gradient that is clipped, not the trunk's).

    >>> import torch, equipoise as eq
    >>> x = torch.tensor([1.0, 1.0], requires_grad=True)
    >>> eq.FairGrad(num_tasks=2)([x[0], 8 * x[1]], shared=[x]).backward()
    >>> x.grad
    tensor([2., 1.])
    """

    def __init__(
        self,
        num_tasks: int | None = None,
        *,
        alpha: float = 2.0,
        max_norm: float | None = None,
        **options: Unpack[GradientOptions],
    ) -> None:
        super().__init__(num_tasks, **options)
        if not 0 < alpha < float("inf"):
            raise ValueError(f"`alpha` must be above 0 and finite; found {alpha}.")
        check_max_norm(max_norm)
        self.alpha = alpha
        self.max_norm = max_norm

    def combine(self, game: Game) -> Combination:
        solution = fair(game.gram, game.active, self.alpha)
        self._say(solution, "1e-8 of the mean squared gradient norm is added to the diagonal of their Gram matrix")
        weights = solution.weights * game.batch.num_present
        return Combination(weights, weights, self.max_norm)
