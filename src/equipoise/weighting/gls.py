"""Geometric loss strategy: the geometric mean of the losses."""

from __future__ import annotations

from torch import Tensor

from equipoise.balancer import Balancer
from equipoise.losses import Batch


class GLS(Balancer):
    """Geometric loss strategy: (l_1 ... l_K)^(1/K), which weights each loss by GLS / (K l).

    Computed through logarithms: the product itself underflows in float32 with forty losses of 0.1.

    >>> import torch, equipoise as eq
    >>> round(eq.GLS(num_tasks=2)(torch.tensor([2.0, 8.0], requires_grad=True)).item(), 4)
    4.0
    """

    needs_positive = True

    def objective(self, batch: Batch, shared: list[Tensor] | None) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        mean = (batch.only(batch.losses.log()).sum() / batch.num_present).exp()
        return mean, batch.only(mean.detach() / (batch.num_present * batch.values))
