"""GradNorm: weights learned so that the weighted gradients' norms follow the tasks' rates of training."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from equipoise.gradient.base import Combination, Game, GradientBalancer, GradientOptions
from equipoise.losses import Batch


class GradNorm(GradientBalancer):
    """Gradient normalisation: weights w, learned beside the model, that pull every w_k |g_k| to its target.

    The target is mean_j(w_j |g_j|) r_k^alpha, with r_k the task's loss over its first, relative to the mean of these:
    a task that lags behind gets larger gradients. The weights minimise the sum of the absolute distances, the targets
    held fixed. They are K softmax(logits), which keeps their sum at K at every step (the paper takes free weights
    and renormalises them after each step). The parameter `logits` goes to the optimizer:
    `[*model.parameters(), *balancer.parameters()]`, or `balancer.param_groups(lr=0.025)`. Heads get the weighted
    losses, as in the paper.

    alpha: the strength of the pull towards equal rates; 0 makes all weighted norms equal.

    >>> import torch, equipoise as eq
    >>> x = torch.nn.Parameter(torch.ones(2))
    >>> balancer = eq.GradNorm(num_tasks=2)
    >>> balancer([3 * x[0], x[1]], shared=[x]).backward()
    >>> balancer.logits.grad  # the first task's gradient is the larger: its weight is to fall
    tensor([ 2., -2.])
    """

    default_heads = "weighted"
    needs_positive = True

    def __init__(self, num_tasks: int | None = None, *, alpha: float = 1.5, **common: Unpack[GradientOptions]) -> None:
        super().__init__(num_tasks, **common)
        if not (math.isfinite(alpha) and alpha >= 0):
            raise ValueError(f"`alpha` must be at least 0; found {alpha}.")
        self.alpha = alpha
        self.logits = nn.Parameter(torch.zeros(self.num_tasks))
        self.first: Tensor
        self.register_buffer("first", torch.zeros(self.num_tasks, dtype=torch.float64))  # first losses; 0: none yet
        self._distance: Tensor | None = None  # what the logits descend, until `objective` adds it

    def objective(self, batch: Batch, shared: list[Tensor] | None) -> tuple[Tensor, Tensor]:
        scalar, weights = super().objective(batch, shared)
        distance, self._distance = self._distance, None
        if distance is not None and scalar.requires_grad:
            scalar = scalar + (distance - distance.detach()).to(scalar.dtype)
        return scalar, weights

    def combine(self, game: Game) -> Combination:
        batch = game.batch
        count = batch.num_present
        first = torch.where(self.first > 0, self.first.to(game.losses), game.losses)
        if self.training:
            batch.keep(self.first, first.to(self.first), per_task=True)
        progress = batch.only(game.losses / first)
        rate = (progress * count / progress.sum()) ** self.alpha
        sizes = game.gram.diagonal().sqrt()
        with torch.enable_grad():
            weights = batch.only(self.logits.to(sizes), -torch.inf).softmax(0) * count
            weighted = weights * sizes
            target = weighted.detach().sum() / count * rate
            # A task without gradient has no norm to move.
            self._distance = torch.where(game.active, (weighted - target).abs(), 0.0).sum()
        return Combination(weights.detach(), weights.detach())
