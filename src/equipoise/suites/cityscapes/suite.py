"""Cityscapes as suites: as published, and with instance offsets in place of depth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from equipoise.suites.cityscapes.data import CLASSES, load, load_offsets
from equipoise.suites.suite import Metric, Preset, Protocol
from equipoise.suites.vision.cache import Arrays
from equipoise.suites.vision.dense import DenseSuite, DenseTask, dense_protocol, depth, offset, segmentation

_PRESETS: Mapping[str, Preset] = {
    "ldc": Preset("ldc", {"preset": "cityscapes"}, lr=3e-4),
    "ls-0.3-0.7": Preset("ls", {"weights": [0.3, 0.7]}, lr=3e-4),  # what the published LDC comes to; see its docs
    "famo": Preset("famo", {"gamma": 1e-2}),
    "fairgrad": Preset("fairgrad", {"alpha": 2.0, "max_norm": 1.0}),
}


class Cityscapes(DenseSuite):
    """Seven classes and inverse depth of street scenes, 2,975 to train on and 500 to test on.

    `data` is the folder with train and val, of .npy files as MTAN prepared them.

    >>> [metric.name for metric in Cityscapes.metrics]
    ['mIoU', 'pixel accuracy', 'absolute error', 'relative error']
    """

    name: ClassVar[str] = "cityscapes"
    dense: ClassVar[tuple[DenseTask, ...]] = (segmentation(CLASSES), depth())
    tasks: ClassVar[tuple[str, ...]] = tuple(task.name for task in dense)
    metrics: ClassVar[tuple[Metric, ...]] = tuple(metric for task in dense for metric in task.metrics)
    stl: ClassVar[Mapping[str, float]] = {
        "mIoU": 0.7401, "pixel accuracy": 0.9316, "absolute error": 0.0125, "relative error": 27.77,
    }  # fmt: skip
    protocol: ClassVar[Protocol] = dense_protocol(batch_size=8)
    presets: ClassVar[Mapping[str, Preset]] = _PRESETS

    def load(self) -> Arrays:
        return load(self.data)


class CityscapesOffset(DenseSuite):
    """Seven classes and the offset to each instance's centre: NOT the published benchmark, which has depth instead.

    `data` is a pack of images, labels and instances.

    >>> CityscapesOffset.tasks
    ('segmentation', 'offset')
    """

    name: ClassVar[str] = "cityscapes-offset"
    dense: ClassVar[tuple[DenseTask, ...]] = (segmentation(CLASSES), offset())
    tasks: ClassVar[tuple[str, ...]] = tuple(task.name for task in dense)
    metrics: ClassVar[tuple[Metric, ...]] = tuple(metric for task in dense for metric in task.metrics)
    protocol: ClassVar[Protocol] = dense_protocol(batch_size=8)
    presets: ClassVar[Mapping[str, Preset]] = _PRESETS

    def load(self) -> Arrays:
        return load_offsets(self.data)
