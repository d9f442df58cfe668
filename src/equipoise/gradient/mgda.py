"""Multiple gradient descent."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from typing_extensions import Unpack

from equipoise.gradient.base import Combination, Game, GradientOptions
from equipoise.gradient.solved import SolvedBalancer, present
from equipoise.gradient.solvers import min_norm
from equipoise.gradient.solvers.common import TINY, diagonal


class MGDA(SolvedBalancer):
    """Multiple gradient descent: K J'w, w the exact point of least norm in the convex hull of the gradients.

    w >= 0, sum w = 1, |J'w| least; then g_i . J'w >= |J'w|^2 for every task, so a step along it harms none.
    If the hull contains 0 the model is Pareto stationary and the shared update is 0: `status["stationary"]`
    says so. In particular a task whose own gradient is 0 stops the shared tensors.
    `status["residual"]` is the largest violation, in units of the mean squared gradient norm.
    The heads get K w (`heads="sum"`: 1).

    Not taken over from the reference code: its search stops at a change of 1e-5 and keeps every w_i above 0.001 for two
    tasks, up to 7 % above the least norm; its cap on iterations is never counted; squared norms above 1e8
    fail; its "l2" and "loss+" normalisations do not run on torch of today.

    normalize: the gradients are divided by their norms ("l2") or by the loss values ("loss") before w is
        computed; the step is still made of the gradients as they are.

    >>> import torch, equipoise as eq
    >>> x = torch.tensor([1.0, 1.0], requires_grad=True)
    >>> eq.MGDA(num_tasks=2)([x[0], 2 * x[1]], shared=[x]).backward()
    >>> x.grad
    tensor([1.6000, 0.8000])
    """

    default_heads = "weighted"

    def __init__(
        self,
        num_tasks: int | None = None,
        *,
        normalize: Literal["l2", "loss"] | None = None,
        **options: Unpack[GradientOptions],
    ) -> None:
        super().__init__(num_tasks, **options)
        if normalize not in (None, "l2", "loss"):
            raise ValueError(f"`normalize` must be None, 'l2' or 'loss'; found {normalize!r}.")
        self.normalize = normalize
        self.needs_positive = normalize == "loss"

    def combine(self, game: Game) -> Combination:
        gram, active = game.gram, present(game)
        if self.normalize == "l2":
            gram, active = _divide(gram, diagonal(gram).sqrt()), game.active  # a zero gradient has no direction
        elif self.normalize == "loss":
            gram = _divide(gram, game.losses)
        solution = min_norm(gram, active)
        self.status = {
            "residual": solution.residual,
            "regularised": torch.zeros_like(solution.degenerate),
            "stationary": solution.degenerate,
        }
        weights = solution.weights * game.batch.num_present
        return Combination(weights, weights)


def _divide(gram: Tensor, scales: Tensor) -> Tensor:
    """The Gram matrix of the gradients divided by `scales`."""
    inverse = 1 / scales.clamp(min=TINY)
    return torch.where(gram == 0, 0.0, gram * inverse.unsqueeze(-2) * inverse.unsqueeze(-1))
