"""Random loss weighting."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Unpack

from equipoise.balancer import Balancer, CommonOptions
from equipoise.losses import Batch
from equipoise.random import make_seed, normal


class RLW(Balancer):
    """Random loss weighting: each step the weights are the softmax of K standard normal draws, and sum to 1.

    The draws are a function of the seed and the step, so a resumed run continues them and all ranks share them.

    seed: where the draws start; None takes a seed from torch's global generator.

    >>> import torch, equipoise as eq
    >>> losses = torch.ones(3, requires_grad=True)
    >>> round(eq.RLW(num_tasks=3, seed=0)(losses).item(), 4)
    1.0
    """

    permutation_equivariant = False  # a task's draw goes with its place

    def __init__(
        self, num_tasks: int | None = None, *, seed: int | None = None, **common: Unpack[CommonOptions]
    ) -> None:
        super().__init__(num_tasks, **common)
        self.seed: Tensor
        self.register_buffer("seed", make_seed(seed))

    def objective(self, batch: Batch, shared: list[Tensor] | None) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        draws = normal(self.seed, self.step, (self.num_tasks,), batch.losses.dtype)
        weights = batch.only(draws, -torch.inf).softmax(0)
        return torch.dot(weights, batch.losses), weights
