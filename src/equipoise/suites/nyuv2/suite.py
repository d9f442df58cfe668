"""NYU-v2 as a suite: thirteen classes, depth and surface normals of rooms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from equipoise.suites.nyuv2.data import CLASSES, load
from equipoise.suites.suite import Metric, Preset, Protocol
from equipoise.suites.vision.cache import Arrays
from equipoise.suites.vision.dense import DenseSuite, DenseTask, dense_protocol, depth, normal, segmentation


class NYUv2(DenseSuite):
    """Thirteen classes, depth and surface normals of rooms, 795 to train on and 654 to test on.

    `data` is the folder with train and val, of .npy files as MTAN prepared them; or a pack, whose depth has 8 bits
    and whose normals are fitted to it, so that normal errors do not compare with published ones.

    >>> NYUv2.tasks, len(NYUv2.metrics), NYUv2.protocol.batch_size
    (('segmentation', 'depth', 'normal'), 9, 2)
    """

    name: ClassVar[str] = "nyuv2"
    dense: ClassVar[tuple[DenseTask, ...]] = (segmentation(CLASSES), depth("m"), normal())
    tasks: ClassVar[tuple[str, ...]] = tuple(task.name for task in dense)
    metrics: ClassVar[tuple[Metric, ...]] = tuple(metric for task in dense for metric in task.metrics)
    stl: ClassVar[Mapping[str, float]] = {
        "mIoU": 0.3830, "pixel accuracy": 0.6376, "absolute error": 0.6754, "relative error": 0.2780,
        "mean angle": 25.01, "median angle": 19.21, "within 11.25": 0.3014, "within 22.5": 0.5720,
        "within 30": 0.6915,
    }  # fmt: skip
    protocol: ClassVar[Protocol] = dense_protocol(batch_size=2)
    presets: ClassVar[Mapping[str, Preset]] = {
        "ldc": Preset("ldc", {"preset": "nyuv2"}, lr=8e-5, batch_size=8),  # the paper's table
        "ldc-code": Preset("ldc", {"preset": "nyuv2-code"}, lr=8e-5),  # what the authors' code does
        "famo": Preset("famo", {"gamma": 1e-3}),
        "fairgrad": Preset("fairgrad", {"alpha": 2.0, "max_norm": 1.0}),
    }

    def load(self) -> Arrays:
        return load(self.data)
