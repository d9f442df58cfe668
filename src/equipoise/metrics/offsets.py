"""How far predicted instance offsets point from the instance's centre."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric


class OffsetError(Metric):
    """Mean length of the error of a 2-D offset, in pixels, over the pixels that belong to an instance.

    `update(prediction, target)`: offsets [B, 2, H, W] in image widths; a target of (0, 0) is of no instance.

    >>> metric = OffsetError()
    >>> target = torch.full((1, 2, 1, 4), 0.1)
    >>> metric.update(target + torch.tensor([3.0, 4.0]).view(1, 2, 1, 1) / 4, target)
    >>> metric.compute()
    tensor(5.)
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sum: Tensor
        self.count: Tensor
        self.add_state("sum", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, prediction: Tensor, target: Tensor) -> None:
        if prediction.shape != target.shape or target.ndim != 4:
            raise ValueError(
                "`prediction` and `target` should both be [B, 2, H, W]. "
                f"Found {list(prediction.shape)} and {list(target.shape)}."
            )
        inside = (target != 0).any(1)
        length = (prediction.double() - target).norm(dim=1) * target.shape[-1]
        self.sum += torch.where(inside, length, 0.0).sum()
        self.count += inside.sum()

    def compute(self) -> Tensor:
        return (self.sum / self.count).float()
