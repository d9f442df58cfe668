"""Suites that predict something for every pixel: their tasks, each with its loss and metrics, and the data they share.

A task's name is the name of its field in the data: "segmentation", "depth", "normal", "offset".
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
import torchmetrics
from torch import Tensor, nn

from equipoise.metrics.depth import DepthErrors
from equipoise.metrics.normals import NormalErrors
from equipoise.metrics.offsets import OffsetError
from equipoise.metrics.segmentation import SegmentationScores
from equipoise.suites.suite import Metric, Part, Protocol, Suite
from equipoise.suites.vision.augment import augment, draw_crops
from equipoise.suites.vision.batches import Batches, Rows, generator, shuffled
from equipoise.suites.vision.cache import Arrays
from equipoise.suites.vision.networks import SegNet, seeded

_CROPS = 1  # draws of an epoch's crops are apart from those of its order
_PART = {"train": 0, "test": 1}
_TEST_BATCH = 16


@dataclass(frozen=True)
class DenseTask:
    """A task: channels of its prediction, which pixels of a target have a label, its loss, how its metrics are found.

    scores: makes the torchmetrics object whose `compute` gives one number for each of `metrics`, in their order.
    """

    name: str
    channels: int
    labelled: Callable[[Tensor], Tensor]
    loss: Callable[[Tensor, Tensor], Tensor]
    scores: Callable[[], torchmetrics.Metric]
    metrics: tuple[Metric, ...]


def classed(labels: Tensor) -> Tensor:
    """Which pixels have a class, 0 and up."""
    return labels >= 0


def measured(target: Tensor) -> Tensor:
    """Which pixels have a target other than 0 in any channel."""
    return (target != 0).any(1)


def segmentation_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy over the pixels that have a label (0 and up).

    >>> segmentation_loss(torch.zeros(1, 2, 1, 2), torch.tensor([[[0, -1]]]))
    tensor(0.6931)
    """
    return F.cross_entropy(scores, labels, ignore_index=-1, reduction="sum") / classed(labels).sum().clamp(min=1)


def distance_loss(prediction: Tensor, target: Tensor) -> Tensor:
    """Mean over the pixels with a target other than 0 of the absolute error, summed over channels.

    >>> distance_loss(torch.zeros(1, 1, 1, 2), torch.tensor([[[[3.0, 0.0]]]]))
    tensor(3.)
    """
    valid = measured(target)[:, None]
    return ((prediction - target).abs() * valid).sum() / valid.sum().clamp(min=1)


def normal_loss(prediction: Tensor, target: Tensor) -> Tensor:
    """1 - mean cosine between prediction and target over the pixels whose target is not (0, 0, 0).

    >>> normal_loss(torch.ones(1, 3, 1, 1), torch.eye(3)[0].view(1, 3, 1, 1))
    tensor(0.4226)
    """
    valid = measured(target)
    cosine = (F.normalize(prediction, dim=1) * target).sum(1)
    return 1 - (cosine * valid).sum() / valid.sum().clamp(min=1)


def segmentation(classes: int) -> DenseTask:
    return DenseTask(
        "segmentation", classes, classed, segmentation_loss, lambda: SegmentationScores(classes),
        (Metric("mIoU", "segmentation", True), Metric("pixel accuracy", "segmentation", True)),
    )  # fmt: skip


def depth(unit: str = "") -> DenseTask:
    return DenseTask(
        "depth", 1, measured, distance_loss, DepthErrors,
        (Metric("absolute error", "depth", unit=unit), Metric("relative error", "depth")),
    )  # fmt: skip


def normal() -> DenseTask:
    shares = tuple(Metric(f"within {limit}", "normal", True) for limit in ("11.25", "22.5", "30"))
    angles = tuple(Metric(f"{name} angle", "normal", unit="degrees", digits=2) for name in ("mean", "median"))
    return DenseTask("normal", 3, measured, normal_loss, NormalErrors, (*angles, *shares))


def offset() -> DenseTask:
    error = Metric("offset error", "offset", unit="pixels")
    return DenseTask("offset", 2, measured, distance_loss, OffsetError, (error,))


class DenseSuite(Suite):
    """What Cityscapes and NYU-v2 have in common: SegNet with task attention, seeded augmentation, no validation set.

    attention: task attention (MTAN), as published; False is plain SegNet.
    augmentation: the published random zoom and mirror of training images.
    """

    dense: ClassVar[tuple[DenseTask, ...]]

    def __init__(
        self,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        data: Path | None = None,
        batch_size: int | None = None,
        attention: bool = True,
        augmentation: bool = True,
    ) -> None:
        super().__init__(seed=seed, device=device, data=data, batch_size=batch_size)
        self.attention = attention
        self.augmentation = augmentation

    @abstractmethod
    def load(self) -> Arrays:
        """Arrays with a row an image: "image" [N, H, W, 3] uint8, "part" (0 train, 1 test), and one a task."""

    @cached_property
    def arrays(self) -> Arrays:
        return self.load()

    @cached_property
    def rows(self) -> Rows:
        return Rows({name: self.arrays[name] for name in ("image", *self.tasks)}, self.device)

    def model(self) -> nn.Module:
        net = seeded(lambda: SegNet([task.channels for task in self.dense], attention=self.attention), self.seed)
        return net.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def shared_parameters(self, model: nn.Module) -> Sequence[nn.Parameter]:
        """Everything but the heads, as in the published code: with attention that includes each task's own gates."""
        return list(model.get_submodule("trunk").parameters())

    def batches(self, epoch: int) -> Batches[dict[str, Tensor]]:
        order = self.rows.place(shuffled(self._part("train"), self.seed, epoch))
        if not self.augmentation:
            return Batches(order, self.batch_size, self._batch, whole=True)
        height, width = self.arrays["image"].shape[1:3]
        crops = draw_crops(len(order), height, width, generator(self.seed, epoch, _CROPS))

        def make(place: Tensor) -> dict[str, Tensor]:
            return augment(self._batch(order[place]), crops[place].to(self.device))

        crops = self.rows.place(crops)
        return Batches(self.rows.place(torch.arange(len(order))), self.batch_size, make, whole=True)

    def losses(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        predictions, features = model(batch["image"])
        pairs = zip(self.dense, predictions, strict=True)
        return torch.stack([task.loss(prediction, batch[task.name]) for task, prediction in pairs]), features

    def share(self, batch: Any, rank: int, ranks: int) -> tuple[Any, Sequence[float] | Tensor]:
        """Counts the pixels that have a label: the losses are means over them."""
        mine, images = super().share(batch, rank, ranks)
        pixels = torch.stack([task.labelled(mine[task.name]).sum() for task in self.dense])
        return mine, pixels * torch.as_tensor(images, device=pixels.device).clamp(max=1)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, part: Part) -> dict[str, float]:
        if part != "test":
            raise ValueError(f"`part` should be 'test': {self.name} has no validation images. Found {part!r}.")
        scores = [task.scores().to(self.device) for task in self.dense]
        was_training = model.training
        model.eval()
        for batch in Batches(self.rows.place(self._part("test")), _TEST_BATCH, self._batch, whole=False):
            for task, score, prediction in zip(self.dense, scores, model(batch["image"])[0], strict=True):
                score.update(prediction, batch[task.name])
        model.train(was_training)
        return dict(
            pair for task, score in zip(self.dense, scores, strict=True) for pair in _named(task, score).items()
        )

    def _part(self, part: str) -> Tensor:
        return torch.from_numpy(self.arrays["part"] == _PART[part]).nonzero()[:, 0]

    def _batch(self, index: Tensor) -> dict[str, Tensor]:
        """Rows as the network and the losses want them: [B, C, H, W] in float32, labels [B, H, W] in int64."""
        rows = self.rows.take(index)
        batch = {"image": rows["image"].permute(0, 3, 1, 2).float() / 255}
        for task in self.tasks:
            field = rows[task]
            if task == "segmentation":
                batch[task] = field.long()
            else:
                batch[task] = field[:, None].float() if field.ndim == 3 else field.permute(0, 3, 1, 2).float()
        return batch


def _named(task: DenseTask, score: torchmetrics.Metric) -> Mapping[str, float]:
    found = score.compute()
    values = found.values() if isinstance(found, dict) else [found]
    return {metric.name: value.item() for metric, value in zip(task.metrics, values, strict=True)}


def dense_protocol(batch_size: int) -> Protocol:
    """The published one of both sets; the rate halves half way."""
    return Protocol(
        epochs=200, batch_size=batch_size, lr=1e-4, schedule=("step", {"step_size": 100, "gamma": 0.5}),
        report="last-ten", shared="parameters",
    )  # fmt: skip


def published_rows(
    names: Sequence[str], rows: Mapping[str, Sequence[float | None]]
) -> Mapping[str, Mapping[str, float]]:
    """Published results by method and metric; None where a value is not given.

    >>> published_rows(("a", "b"), {"ls": (1.0, None)})
    {'ls': {'a': 1.0}}
    """
    return {
        method: {name: value for name, value in zip(names, row, strict=True) if value is not None}
        for method, row in rows.items()
    }
