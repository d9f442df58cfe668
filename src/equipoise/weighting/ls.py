"""Linear scalarisation: fixed weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import Unpack

from equipoise.balancer import Balancer, CommonOptions
from equipoise.losses import Batch, alike


class LS(Balancer):
    """Linear scalarisation: the sum of the losses, each with a fixed weight (1 by default).

    >>> import torch, equipoise as eq
    >>> losses = [torch.tensor(2.0, requires_grad=True), torch.tensor(3.0, requires_grad=True)]
    >>> eq.LS(num_tasks=2, weights=(0.5, 1.0))(losses).item()
    4.0
    """

    def __init__(
        self,
        num_tasks: int | None = None,
        *,
        weights: Tensor | Sequence[float] | None = None,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(num_tasks, **common)
        fixed = torch.ones(self.num_tasks) if weights is None else torch.as_tensor(weights).float().clone()
        if fixed.shape != (self.num_tasks,) or not bool(torch.isfinite(fixed).all()):
            raise ValueError(f"`weights` must be {self.num_tasks} finite numbers; found {weights!r}.")
        self.permutation_equivariant = bool((fixed == fixed[0]).all())
        self.fixed: Tensor
        self.register_buffer("fixed", fixed)

    def objective(self, batch: Batch, shared: list[Tensor] | None) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        weights = batch.only(self.fixed)
        return torch.dot(alike(weights, batch.losses), batch.losses), weights
