"""Absolute and relative depth error over the pixels that have a depth."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torchmetrics import Metric

Average = Literal["pixels", "batches"]


class DepthErrors(Metric):
    """Mean |p - d| and mean |p - d| / d, as {"absolute", "relative"}, over pixels whose depth d is not 0.

    average: "pixels" is the mean over all pixels of the set. "batches" is the form of the published tables, the mean
        over batches of each batch's mean, in which a pixel of a batch with few of them counts more.

    >>> metric = DepthErrors()
    >>> metric.update(torch.tensor([[1.0, 3.0, 5.0]]), torch.tensor([[2.0, 2.0, 0.0]]))
    >>> metric.compute()
    {'absolute': tensor(1.), 'relative': tensor(0.5000)}
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False

    def __init__(self, average: Average = "pixels", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.average = checked_average(average)
        self.sums: Tensor
        self.count: Tensor
        self.add_state("sums", torch.zeros(2, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, prediction: Tensor, target: Tensor) -> None:
        if prediction.shape != target.shape:
            raise ValueError(
                "`prediction` and `target` should have one shape. "
                f"Found {list(prediction.shape)} and {list(target.shape)}."
            )
        valid = target != 0
        error = torch.where(valid, (prediction.double() - target).abs(), 0.0)
        sums = torch.stack([error.sum(), (error / torch.where(valid, target, 1.0)).sum()])
        add(self.sums, self.count, sums, valid.sum(), self.average)

    def compute(self) -> dict[str, Tensor]:
        absolute, relative = (self.sums / self.count).float()
        return {"absolute": absolute, "relative": relative}


def checked_average(average: str) -> str:
    if average not in ("pixels", "batches"):
        raise ValueError(f"`average` should be 'pixels' or 'batches'. Found {average!r}.")
    return average


def add(sums: Tensor, count: Tensor, new: Tensor, pixels: Tensor, average: str) -> None:
    """Add a batch's sums over its pixels: as they are, or as one mean; a batch without pixels has none."""
    if average == "pixels":
        sums += new
        count += pixels
    else:
        sums += new / pixels.clamp(min=1)
        count += (pixels > 0).to(count)
