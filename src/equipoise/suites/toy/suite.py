"""The toy problem as a suite: one run is one starting point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from equipoise.suites.suite import Metric, Part, Preset, Protocol, Suite
from equipoise.suites.toy.problem import SCALES, STARTS, Sign, toy_losses

_LDC = {"tau": "ones", "normalize": list(SCALES), "discrepancy": 0.5}


class Point(nn.Module):
    """A model that is one point in the plane."""

    def __init__(self, start: Sequence[float]) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.tensor(start, dtype=torch.float32))

    def forward(self) -> Tensor:
        return self.position


class Toy(Suite):
    """Two losses of a point; the seed picks one of the five starts (seed 5 is the first again).

    >>> suite = Toy(seed=3)
    >>> suite.losses(suite.model(), None)[0].shape
    torch.Size([2])
    """

    name: ClassVar[str] = "toy"
    tasks: ClassVar[tuple[str, ...]] = ("first", "second")
    metrics: ClassVar[tuple[Metric, ...]] = (Metric("first loss", "first"), Metric("second loss", "second"))
    protocol: ClassVar[Protocol] = Protocol(epochs=50, batch_size=1, lr=1e-3)
    # l / l0 cannot work here: l0 is 0 at one start and negative at another. Fixed scales can.
    presets: ClassVar[Mapping[str, Preset]] = {
        "ldc": Preset("ldc", {"router": "sigmoid", "router_objective": "both", **_LDC}),
        "ldc-no-router": Preset("ldc", {"router": None, **_LDC}),
        "famo": Preset("famo", {"gamma": 0.0, "min_losses": [-2.1, -21.0]}),
    }

    def __init__(
        self,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        data: Path | None = None,
        batch_size: int | None = None,
        sign: Sign = "code",
        steps_per_epoch: int = 1000,
    ) -> None:
        super().__init__(seed=seed, device=device, data=data, batch_size=batch_size)
        if sign not in ("code", "paper"):
            raise ValueError(f"`sign` must be 'code' or 'paper'; found {sign!r}.")
        self.sign: Sign = sign
        self.steps_per_epoch = steps_per_epoch

    def model(self) -> nn.Module:
        return Point(STARTS[self.seed % len(STARTS)]).to(self.device)

    def shared_parameters(self, model: nn.Module) -> Sequence[nn.Parameter]:
        return list(model.parameters())

    def batches(self, epoch: int) -> Sequence[Any]:  # noqa: ARG002
        return [None] * self.steps_per_epoch

    def losses(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        position = model()
        return toy_losses(position, self.sign), position

    def evaluate(self, model: nn.Module, part: Part) -> dict[str, float]:  # noqa: ARG002
        values = toy_losses(model(), self.sign).tolist()
        return {metric.name: value for metric, value in zip(self.metrics, values, strict=True)}
