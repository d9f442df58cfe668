"""Angles between predicted and true surface normals: mean, median, and the shares within some degrees."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from equipoise.metrics.depth import Average, add, checked_average

THRESHOLDS = (11.25, 22.5, 30.0)  # degrees
_BINS = 2**16  # of 180 degrees: the median of the set is right to 0.003 degrees


class NormalErrors(Metric):
    """Angles in degrees over the pixels that have a normal, as {"mean", "median", "within_11.25", ...}.

    `update(prediction, target)`: both [B, 3, H, W]; a pixel whose target is (0, 0, 0) is left out, the others need
    no unit length.

    average: "pixels" takes all pixels of the set together; the median is read off a histogram, which ranks can add
        up. "batches" is the form of the published tables, the mean over batches of each batch's mean, median and
        shares; a median of the set it is not.

    >>> metric = NormalErrors()
    >>> up = torch.tensor([0.0, 0.0, 1.0]).view(1, 3, 1, 1)
    >>> metric.update(torch.tensor([0.0, 1.0, 1.0]).view(1, 3, 1, 1), up)
    >>> metric.update(up, up)
    >>> {name: round(value.item(), 2) for name, value in metric.compute().items()}
    {'mean': 22.5, 'median': 0.0, 'within_11.25': 0.5, 'within_22.5': 0.5, 'within_30': 0.5}
    """

    is_differentiable = False
    full_state_update = False

    def __init__(self, average: Average = "pixels", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.average = checked_average(average)
        self.sums: Tensor
        self.count: Tensor
        self.histogram: Tensor
        size = 1 + len(THRESHOLDS) + (average == "batches")
        self.add_state("sums", torch.zeros(size, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        if average == "pixels":
            self.add_state("histogram", torch.zeros(_BINS, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, prediction: Tensor, target: Tensor) -> None:
        if prediction.shape != target.shape or prediction.ndim != 4 or prediction.shape[1] != 3:
            raise ValueError(
                "`prediction` and `target` should both be [B, 3, H, W]. "
                f"Found {list(prediction.shape)} and {list(target.shape)}."
            )
        prediction, target = prediction.float(), target.float()
        valid = (target != 0).any(1)
        angles = angles_between(prediction, target)[valid]
        limits = torch.tensor(THRESHOLDS, device=angles.device)
        within = (angles[:, None] < limits).sum(0)
        sums = torch.cat([angles.sum(dtype=torch.float64)[None], within])
        if self.average == "pixels":
            bins = (angles * (_BINS / 180)).long().clamp(0, _BINS - 1)
            self.histogram += torch.bincount(bins, minlength=_BINS)
        else:
            median = angles.median() if len(angles) else angles.new_zeros(())
            sums = torch.cat([sums, (median * len(angles))[None]])  # divided by the pixels again
        add(self.sums, self.count, sums, valid.sum(), self.average)

    def compute(self) -> dict[str, Tensor]:
        mean, *shares = (self.sums / self.count).float()
        median = self._median() if self.average == "pixels" else shares.pop()
        within = {f"within_{limit:g}": share for limit, share in zip(THRESHOLDS, shares, strict=True)}
        return {"mean": mean, "median": median, **within}

    def _median(self) -> Tensor:
        """The lower median, from where the counts pass half of all, on a straight line within that bin."""
        below = self.histogram.cumsum(0)
        rank = (below[-1] + 1) // 2  # as torch.median: the smaller of two in the middle
        found = torch.searchsorted(below, rank)
        inside = self.histogram[found]
        part = (rank - (below[found] - inside) - 0.5) / inside
        return ((found + part) * (180 / _BINS)).float()


def angles_between(a: Tensor, b: Tensor) -> Tensor:
    """Degrees between the vectors along dimension 1, of any length; accurate near 0 and 180, where arccos is not.

    >>> x, y = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[1.0, 1e-4, 0.0]])
    >>> round(angles_between(x, y).item(), 6)
    0.00573
    """
    a = a / a.norm(dim=1, keepdim=True).clamp(min=1e-20)
    b = b / b.norm(dim=1, keepdim=True).clamp(min=1e-20)
    degrees: Tensor = torch.linalg.cross(a, b, dim=1).norm(dim=1).atan2((a * b).sum(1)) * (180 / math.pi)
    return degrees
