"""NYU-v2 as a suite: thirteen classes, depth and surface normals of rooms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from equipoise.suites.nyuv2.data import CLASSES, load, load_pack
from equipoise.suites.suite import Metric, Preset, Protocol
from equipoise.suites.vision.cache import Arrays
from equipoise.suites.vision.dense import (
    DenseSuite,
    DenseTask,
    dense_protocol,
    depth,
    normal,
    published_rows,
    segmentation,
)

_PUBLISHED = published_rows(
    (
        "mIoU", "pixel accuracy", "absolute error", "relative error", "mean angle", "median angle", "within 11.25",
        "within 22.5", "within 30", "delta_m",
    ),
    {
        "ls": (0.3929, 0.6533, 0.5493, 0.2263, 28.15, 23.96, 0.2209, 0.4750, 0.6108, 5.59),
        "si": (0.3845, 0.6427, 0.5354, 0.2201, 27.60, 23.37, 0.2253, 0.4857, 0.6232, 4.39),
        "rlw": (0.3717, 0.6377, 0.5759, 0.2410, 28.27, 24.18, 0.2226, 0.4705, 0.6062, 7.78),
        "dwa": (0.3911, 0.6531, 0.5510, 0.2285, 27.61, 23.18, 0.2417, 0.5018, 0.6239, 3.57),
        "uw": (0.3687, 0.6317, 0.5446, 0.2260, 27.04, 22.61, 0.2354, 0.4905, 0.6365, 4.05),
        "famo": (0.3888, 0.6490, 0.5474, 0.2194, 25.06, 19.57, 0.2921, 0.5661, 0.6898, -4.10),
        "go4align": (0.4042, 0.6537, 0.5492, 0.2167, 24.76, 18.94, 0.3054, 0.5787, 0.6984, -6.08),
        "mgda": (0.3047, 0.5990, 0.6070, 0.2555, 24.88, 19.45, 0.2918, 0.5688, 0.6936, 1.38),
        "pcgrad": (0.3806, 0.6464, 0.5550, 0.2325, 27.41, 22.80, 0.2386, 0.4983, 0.6314, 3.97),
        "graddrop": (0.3939, 0.6512, 0.5455, 0.2279, 27.48, 22.96, 0.2338, 0.4944, 0.6287, 3.58),
        "cagrad": (0.3979, 0.6549, 0.5486, 0.2250, 26.31, 21.58, 0.2561, 0.5236, 0.6558, 0.20),
        "imtl-g": (0.3935, 0.6560, 0.5426, 0.2256, 26.02, 21.19, 0.2620, 0.5313, 0.6624, -0.76),
        "moco": (0.4030, 0.6607, 0.5575, 0.2135, 26.67, 21.83, 0.2561, 0.5178, 0.6485, 0.16),
        "nash-mtl": (0.4013, 0.6593, 0.5261, 0.2171, 25.26, 20.08, 0.2840, 0.5547, 0.6815, -4.04),
        "fairgrad": (0.3974, 0.6601, 0.5377, 0.2236, 24.84, 19.60, 0.2926, 0.5658, 0.6916, -4.66),
        # The table prints the mIoU again in place of the pixel accuracy, which is left out here.
        "ldc": (0.3804, None, 0.5402, 0.2278, 24.70, 19.19, 0.2997, 0.5744, 0.6969, -4.40),
    },
)  # fmt: skip


class NYUv2(DenseSuite):
    """Thirteen classes, depth and surface normals of rooms, 795 to train on and 654 to test on.

    `data` is the folder with train and val, of .npy files as MTAN prepared them.

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

    published: ClassVar[Mapping[str, Mapping[str, float]]] = _PUBLISHED

    def load(self) -> Arrays:
        return load(self.data)


class NYUv2Pack(NYUv2):
    """NYU-v2 from a pack: depth of 8 bits, normals fitted to it. NOT the published benchmark.

    >>> NYUv2Pack.comparable
    False
    """

    name: ClassVar[str] = "nyuv2-pack"
    comparable: ClassVar[bool] = False

    def load(self) -> Arrays:
        return load_pack(self.data)
