"""Scale-invariant weighting: the sum of the logarithms of the losses."""

from __future__ import annotations

from torch import Tensor

from equipoise.balancer import Balancer
from equipoise.losses import Batch


class SI(Balancer):
    """Scale-invariant weighting: the sum of log l, so that each loss is weighted by 1 / l.

    Multiplying a loss by a constant changes no gradient. A loss must be above zero: no epsilon hides one that is not.

    >>> import torch, equipoise as eq
    >>> losses = torch.tensor([2.0, 0.5], requires_grad=True)
    >>> balancer = eq.SI(num_tasks=2)
    >>> balancer(losses).item()
    0.0
    >>> balancer.weights
    tensor([0.5000, 2.0000])
    """

    scale_invariant = True
    needs_positive = True

    def objective(self, batch: Batch, shared: list[Tensor] | None) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        return batch.only(batch.losses.log()).sum(), batch.only(batch.values.reciprocal())
