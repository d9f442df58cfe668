"""Uncertainty weighting."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from equipoise.balancer import Balancer, CommonOptions
from equipoise.losses import Batch, alike

MOST = 80.0  # float32 holds exp(80)


class UW(Balancer):
    """Uncertainty weighting: 1/2 sum(exp(-s) l + s), with s = log sigma^2 learned beside the model.

    The parameter `log_variance` goes to the optimizer: `[*model.parameters(), *balancer.parameters()]`, or
    `balancer.param_groups(lr=0.025)`. The same form serves regression and classification, as in the code
    everyone runs (the paper has 1 / sigma^2 without the half for classification). The weights are exp(-s) / 2.

    init: where every s starts.

    >>> import torch, equipoise as eq
    >>> balancer = eq.UW(num_tasks=2)
    >>> balancer(torch.tensor([2.0, 4.0], requires_grad=True)).item()
    3.0
    >>> balancer.weights
    tensor([0.5000, 0.5000])
    """

    def __init__(self, num_tasks: int | None = None, *, init: float = 0.0, **common: Unpack[CommonOptions]) -> None:
        super().__init__(num_tasks, **common)
        if not -MOST <= init <= MOST:
            raise ValueError(f"`init` must be from {-MOST:g} to {MOST:g}; found {init}.")
        self.log_variance = nn.Parameter(torch.full((self.num_tasks,), float(init)))

    def objective(self, batch: Batch, shared: list[Tensor] | None) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        # The values are the joined batch's, so the gradient of log_variance agrees over the ranks by itself.
        s = alike(self.log_variance, batch.losses)
        precision = torch.exp(-s)
        scalar = batch.only(precision * batch.losses + s).sum() / 2
        return scalar, batch.only(precision.detach() / 2)
