"""Cityscapes as suites: as published, and with instance offsets in place of depth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from equipoise.suites.cityscapes.data import CLASSES, load, load_offsets
from equipoise.suites.suite import Metric, Preset, Protocol
from equipoise.suites.vision.cache import Arrays
from equipoise.suites.vision.dense import (
    DenseSuite,
    DenseTask,
    dense_protocol,
    depth,
    offset,
    published_rows,
    segmentation,
)

_PRESETS: Mapping[str, Preset] = {
    "ldc": Preset("ldc", {"preset": "cityscapes"}, lr=3e-4),
    "ls-0.3-0.7": Preset("ls", {"weights": [0.3, 0.7]}, lr=3e-4),  # what the published LDC comes to; see its docs
    "famo": Preset("famo", {"gamma": 1e-2}),
    "fairgrad": Preset("fairgrad", {"alpha": 2.0, "max_norm": 1.0}),
}
_PUBLISHED = published_rows(
    ("mIoU", "pixel accuracy", "absolute error", "relative error", "delta_m"),
    {
        "ls": (0.7518, 0.9349, 0.0155, 46.77, 22.60),
        "si": (0.7095, 0.9173, 0.0161, 33.83, 14.11),
        "rlw": (0.7457, 0.9341, 0.0158, 47.79, 24.38),
        "dwa": (0.7524, 0.9352, 0.0160, 44.37, 21.45),
        "uw": (0.7202, 0.9285, 0.0140, 30.13, 5.89),
        "famo": (0.7454, 0.9329, 0.0145, 32.59, 8.13),
        "go4align": (0.7263, 0.9303, 0.0164, 27.58, 8.11),
        "mgda": (0.6884, 0.9154, 0.0309, 33.50, 44.14),
        "pcgrad": (0.7513, 0.9348, 0.0154, 42.07, 18.29),
        "graddrop": (0.7527, 0.9353, 0.0157, 47.54, 23.73),
        "cagrad": (0.7516, 0.9348, 0.0141, 37.60, 11.64),
        "imtl-g": (0.7533, 0.9349, 0.0135, 38.41, 11.10),
        "moco": (0.7542, 0.9355, 0.0149, 34.19, 9.90),
        "nash-mtl": (0.7541, 0.9366, 0.0129, 35.02, 6.82),
        "fairgrad": (0.7572, 0.9368, 0.0134, 32.25, 5.18),
        "ldc": (0.7453, 0.9342, 0.0128, 26.79, -0.57),
    },
)


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
    published: ClassVar[Mapping[str, Mapping[str, float]]] = _PUBLISHED

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
    comparable: ClassVar[bool] = False

    def load(self) -> Arrays:
        return load_offsets(self.data)
