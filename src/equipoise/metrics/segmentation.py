"""Mean intersection over union and pixel accuracy, both from one confusion matrix over the whole set."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric


class SegmentationScores(Metric):
    """mIoU and pixel accuracy of a segmentation, as {"miou", "pixel_accuracy"}.

    `update(prediction, target)`: prediction [B, C, H, W] of scores, or [B, H, W] of classes; target [B, H, W], where
    a pixel outside 0 to C - 1 has no label and is left out. The mean is over the classes that occur in the targets
    or the predictions of the set.

    >>> metric = SegmentationScores(3)
    >>> metric.update(torch.tensor([[[0, 1, 1, 0]]]), torch.tensor([[[0, 1, 0, -1]]]))
    >>> {name: round(value.item(), 3) for name, value in metric.compute().items()}
    {'miou': 0.5, 'pixel_accuracy': 0.667}
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    def __init__(self, num_classes: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_classes = num_classes
        self.confusion: Tensor
        self.add_state("confusion", torch.zeros(num_classes, num_classes, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, prediction: Tensor, target: Tensor) -> None:
        if prediction.ndim == target.ndim + 1:
            prediction = prediction.argmax(1)
        if prediction.shape != target.shape:
            raise ValueError(
                "`prediction` should be [B, C, H, W] or [B, H, W] beside a `target` [B, H, W]. "
                f"Found {list(prediction.shape)} and {list(target.shape)}."
            )
        classes, target = self.num_classes, target.long()
        cell = torch.where((target >= 0) & (target < classes), target * classes + prediction, classes**2)
        counts = torch.bincount(cell.flatten(), minlength=classes**2 + 1)
        self.confusion += counts[:-1].view(classes, classes)

    def compute(self) -> dict[str, Tensor]:
        counts = self.confusion.double()
        hits = counts.diagonal()
        union = counts.sum(0) + counts.sum(1) - hits
        occurs = union > 0
        iou = hits / union.clamp(min=1)
        return {
            "miou": (iou.sum() / occurs.sum()).float(),
            "pixel_accuracy": (hits.sum() / counts.sum()).float(),
        }
