"""DB-MTL: gradients of log losses, averaged over steps and brought to one norm."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Unpack

from equipoise.gradient.base import Game, GradientOptions, Update
from equipoise.gradient.running import RunningGradients, decay
from equipoise.gradient.shared import Shared


class DBMTL(RunningGradients):
    """Dual balancing: running averages b of the gradients of log l, all brought to the norm of the largest.

    At step t: b <- h + beta t^-beta_sigma (b - h), with h the gradients of log l and b from 0; the shared parameters
    get sum_k (max_j |b_j| / |b_k|) b_k. A representation belongs to one batch, so there the norms are the running
    average's, kept as a Gram matrix, and the gradients this batch's. The heads get the gradients of log l
    (heads="sum": of l). Neither quotient has an epsilon, so that losses of any scale are alike.

    An absent task's average stays and is not applied.

    >>> import torch, equipoise as eq
    >>> x = torch.nn.Parameter(torch.ones(2))
    >>> eq.DBMTL(num_tasks=2)([2 * x[0], 5 * x[1]], shared=[x]).backward()
    >>> x.grad
    tensor([0.1000, 0.1000])
    """

    default_heads = "weighted"
    needs_positive = True
    scale_invariant = True

    def __init__(
        self,
        num_tasks: int | None = None,
        *,
        beta: float = 0.9,
        beta_sigma: float = 0.0,
        **common: Unpack[GradientOptions],
    ) -> None:
        super().__init__(num_tasks, **common)
        if not 0 <= beta < 1:
            raise ValueError(f"`beta` must be at least 0 and below 1; found {beta}.")
        if not beta_sigma >= 0:
            raise ValueError(f"`beta_sigma` must be at least 0; found {beta_sigma}.")
        self.beta, self.beta_sigma = beta, beta_sigma

    def update(self, rows: Tensor, shared: Shared, game: Game) -> Update:
        factors = 1.0 / game.losses
        rate = 1.0 - decay(self.beta, self.beta_sigma, self.step)
        average, gram = self.run(rows, factors, shared, game, rate)
        norms = game.batch.only(gram.diagonal().clamp(min=0.0).sqrt())
        alpha = torch.where(norms > 0, norms.max() / norms, 0.0)
        if average is not None:
            return Update(alpha.to(average) @ average, alpha, factors)
        weights = alpha * factors
        return Update(weights.to(rows) @ rows, weights, factors)
