"""CelebA as a suite: forty losses read off one feature vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.metrics.attributes import AttributeF1
from equipoise.suites.celeba.data import ATTRIBUTES, Faces, load, load_pack
from equipoise.suites.celeba.model import FaceNet
from equipoise.suites.suite import Metric, Part, Preset, Protocol, Suite
from equipoise.suites.vision.batches import Batches, Rows, shuffled
from equipoise.suites.vision.networks import seeded

_PART = {"train": 0, "validation": 1, "test": 2}
_TEST_BATCH = 1024

# Published single-task F1. They were measured with BatchNorm in training mode (the reference's single-task trainer
# never calls eval()), so multi-task numbers, which are not, compare with them only as the published ones do.
_STL = (
    0.6736886, 0.68121034, 0.81524944, 0.5760289, 0.7205613, 0.8555076, 0.38203922, 0.58225113, 0.787647, 0.8321292,
    0.5029583, 0.68694085, 0.6781237, 0.5240381, 0.5161666, 0.95694304, 0.6968786, 0.67976356, 0.8808315, 0.8582131,
    0.97034, 0.93267566, 0.5057539, 0.40307626, 0.9703734, 0.48644206, 0.60786104, 0.5261031, 0.56907415, 0.59815097,
    0.6858371, 0.924108, 0.5424991, 0.7406311, 0.71019936, 0.87365365, 0.9305602, 0.33704284, 0.7647628, 0.91907,
)  # fmt: skip


class FaceBatch(NamedTuple):
    """Images [B, 3, 64, 64], channels last, and attributes [B, 40], both uint8."""

    images: Tensor
    attributes: Tensor


class CelebA(Suite):
    """Forty attributes of a face; the metric is F1 per attribute.

    `data` is the folder with Img, Anno and Eval. Training batches are always full: the last images of an
    epoch's order, fewer than a batch, wait for another epoch.

    >>> CelebA(seed=0).model().heads
    Linear(in_features=512, out_features=40, bias=True)
    """

    name: ClassVar[str] = "celeba"
    tasks: ClassVar[tuple[str, ...]] = ATTRIBUTES
    metrics: ClassVar[tuple[Metric, ...]] = tuple(Metric(name, name, higher_is_better=True) for name in ATTRIBUTES)
    stl: ClassVar[Mapping[str, float]] = dict(zip(ATTRIBUTES, _STL, strict=True))
    protocol: ClassVar[Protocol] = Protocol(epochs=15, batch_size=256, lr=3e-4)
    presets: ClassVar[Mapping[str, Preset]] = {
        "ldc": Preset("ldc", {"preset": "celeba"}, lr=1e-3, schedule=("step", {"step_size": 3, "gamma": 0.3})),
        "famo": Preset("famo", {"gamma": 1e-3}),
        "fairgrad": Preset("fairgrad", {"alpha": 2.0, "max_norm": 1.0}),
    }

    published: ClassVar[Mapping[str, Mapping[str, float]]] = {
        method: {"delta_m": value}
        for method, value in {
            "ls": 4.15, "si": 7.20, "rlw": 1.46, "dwa": 3.20, "uw": 3.23, "famo": 1.21, "go4align": 0.88,
            "mgda": 14.85, "pcgrad": 3.17, "cagrad": 2.48, "imtl-g": 0.84, "nash-mtl": 2.84, "fairgrad": 0.37,
            "ldc": -1.31,
        }.items()
    }  # fmt: skip

    @cached_property
    def faces(self) -> Faces:
        return load(self.data)

    @cached_property
    def rows(self) -> Rows:
        arrays = {"images": self.faces.images, "attributes": self.faces.attributes}
        return Rows(arrays, self.device)

    def model(self) -> nn.Module:
        net = seeded(lambda: FaceNet(len(self.tasks)), self.seed)
        return net.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def shared_parameters(self, model: nn.Module) -> Sequence[nn.Parameter]:
        return list(model.get_submodule("trunk").parameters())

    def batches(self, epoch: int) -> Batches[FaceBatch]:
        order = self.rows.place(shuffled(self._part("train"), self.seed, epoch))
        return Batches(order, self.batch_size, self._batch, whole=True)

    def losses(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        logits, features = model(batch.images.float() / 255)
        each = F.binary_cross_entropy_with_logits(logits, batch.attributes.float(), reduction="none")
        return each.mean(0), features

    @torch.no_grad()
    def evaluate(self, model: nn.Module, part: Part) -> dict[str, float]:
        scores = AttributeF1(len(self.tasks)).to(self.device)
        was_training = model.training
        model.eval()
        for images, attributes in Batches(self.rows.place(self._part(part)), _TEST_BATCH, self._batch, whole=False):
            scores.update(model(images.float() / 255)[0], attributes)
        model.train(was_training)
        return dict(zip(self.tasks, scores.compute().tolist(), strict=True))

    def _part(self, part: str) -> Tensor:
        index = torch.from_numpy(self.faces.part == _PART[part]).nonzero()[:, 0]
        if not len(index):
            raise ValueError(f"`data` should have images of the part {part!r}. Found none in {self.data}.")
        return index

    def _batch(self, index: Tensor) -> FaceBatch:
        rows = self.rows.take(index)
        return FaceBatch(rows["images"].permute(0, 3, 1, 2), rows["attributes"])


class CelebAPack(CelebA):
    """CelebA on the images of a pack, however many: NOT the published benchmark, whose set is whole.

    >>> CelebAPack.comparable
    False
    """

    name: ClassVar[str] = "celeba-pack"
    comparable: ClassVar[bool] = False

    @cached_property
    def faces(self) -> Faces:
        return load_pack(self.data)
