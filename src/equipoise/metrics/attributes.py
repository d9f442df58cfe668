"""F1 per attribute, from counts over the whole set."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric


class AttributeF1(Metric):
    """F1 of each of several yes-or-no attributes, from global counts: [num_attributes].

    `update(logits, target)`: logits [B, K], an attribute is predicted where its logit is above 0 (a probability
    above 0.5); target [B, K] of zeros and ones. An attribute that neither occurs nor is predicted has F1 0.

    >>> metric = AttributeF1(2)
    >>> metric.update(torch.tensor([[1.0, -1.0], [1.0, 1.0]]), torch.tensor([[1, 0], [0, 1]]))
    >>> metric.compute()
    tensor([0.6667, 1.0000])
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    def __init__(self, num_attributes: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_attributes = num_attributes
        self.hits: Tensor
        self.marked: Tensor
        self.add_state("hits", torch.zeros(num_attributes, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("marked", torch.zeros(num_attributes, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, logits: Tensor, target: Tensor) -> None:
        if logits.shape != target.shape or logits.shape[1:] != (self.num_attributes,):
            raise ValueError(
                f"`logits` and `target` should both be [B, {self.num_attributes}]. "
                f"Found {list(logits.shape)} and {list(target.shape)}."
            )
        predicted, true = logits > 0, target > 0
        self.hits += (predicted & true).sum(0)
        self.marked += predicted.sum(0) + true.sum(0)

    def compute(self) -> Tensor:
        # 2 tp / (2 tp + fp + fn): marked counts tp twice, fp and fn once.
        return 2 * self.hits / self.marked.clamp(min=1)
