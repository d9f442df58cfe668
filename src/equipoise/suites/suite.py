"""What a benchmark tells the rest of the library: data, network, losses, metrics and protocol."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal
from typing import Protocol as Interface

import torch
from torch import Tensor, nn

from equipoise.capture import tensors_in

Part = Literal["validation", "test"]


class Batches(Interface):
    """An epoch's batches: to be walked through once, and counted (a list, a torch DataLoader)."""

    def __iter__(self) -> Iterator[Any]: ...

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class Metric:
    """One column of the table. `digits` are shown; a metric belongs to a task."""

    name: str
    task: str
    higher_is_better: bool = False
    unit: str = ""
    digits: int = 4


@dataclass(frozen=True)
class Protocol:
    """How a suite is trained when nobody says otherwise: the published numbers.

    schedule: None, or ("plateau", options) stepped on the validation delta-m, or ("step", options) each epoch.
    report: the test row of the epoch with the best validation delta-m, or the mean of the last ten epochs.
    shared: what gradient methods take the tasks' gradients at; the parameters where tasks share no features.
    """

    epochs: int
    batch_size: int
    lr: float
    schedule: tuple[Literal["plateau", "step"], Mapping[str, Any]] | None = None
    report: Literal["best-validation", "last-ten"] = "best-validation"
    shared: Literal["features", "parameters"] = "features"


@dataclass(frozen=True)
class Preset:
    """A method with the options and the learning rates it was published with on this suite.

    The preset under a method's own name is what that method means on the suite; others are asked for by name.
    balancer_lr: the rate of the balancer's own parameters; the model's where None.
    schedule, batch_size: in place of the protocol's.
    """

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    lr: float | None = None
    balancer_lr: float | None = None
    schedule: tuple[Literal["plateau", "step"], Mapping[str, Any]] | None = None
    batch_size: int | None = None


class Suite(ABC):
    """A benchmark, ready to train on: one object holds one seed's data on one device.

    A suite knows nothing of balancers' insides, of run folders or of the command line. Everything random in it
    follows from `seed` (and the epoch), so that a resumed run sees the batches an unbroken one sees.
    """

    name: ClassVar[str]
    tasks: ClassVar[tuple[str, ...]]
    metrics: ClassVar[tuple[Metric, ...]]
    #: Published single-task results by metric name, the base of delta-m; empty where none are published.
    stl: ClassVar[Mapping[str, float]] = {}
    protocol: ClassVar[Protocol]
    presets: ClassVar[Mapping[str, Preset]] = {}
    #: Published rows by method name, each by metric name ("delta_m" as printed): shown beside ours when asked.
    published: ClassVar[Mapping[str, Mapping[str, float]]] = {}
    #: Whether published numbers may stand beside this suite's: the same data, trained on as published.
    comparable: ClassVar[bool] = True

    def __init__(
        self,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        data: Path | None = None,
        batch_size: int | None = None,
    ) -> None:
        self.seed = seed
        self.device = torch.device(device)
        self.data = data
        self.batch_size = batch_size or self.protocol.batch_size

    @abstractmethod
    def model(self) -> nn.Module:
        """A freshly initialised network on the device, its weights a function of the seed."""

    @abstractmethod
    def shared_parameters(self, model: nn.Module) -> Sequence[nn.Parameter]:
        """The trunk: what every task uses, for gradient methods with exact parameters."""

    @abstractmethod
    def batches(self, epoch: int) -> Batches:
        """The training batches of an epoch, as many each epoch, each one opaque to everybody but `losses`."""

    @abstractmethod
    def losses(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        """The tasks' losses [K] (or a tuple of scalars) on a batch and the shared representation."""

    @abstractmethod
    def evaluate(self, model: nn.Module, part: Part) -> dict[str, float]:
        """Every metric by name, over all of a part of the data; called in eval mode and without gradients."""

    def share(self, batch: Any, rank: int, ranks: int) -> tuple[Any, Sequence[float] | Tensor]:
        """A rank's part of a batch, and how many labels each task has in it: what its loss there is a mean over.

        Here every `ranks`-th row of the batch's tensors. A rank for which no row is left gets one of another's,
        with no label. A batch without tensors is everybody's.
        """
        rows = _rows(batch)
        if rows is None:
            return batch, [1.0] * len(self.tasks)
        mine = slice(rank, None, ranks) if rank < rows else slice(0, 1)
        return _cut(batch, mine), [float(len(range(rank, rows, ranks)))] * len(self.tasks)


def _rows(batch: Any) -> int | None:
    """Rows of the tensors of a batch; None where there are none."""
    return next((len(tensor) for tensor in tensors_in(batch)), None)


def _cut(batch: Any, rows: slice) -> Any:
    """Some rows of every tensor in nested sequences and mappings."""
    if isinstance(batch, Tensor):
        return batch[rows]
    if isinstance(batch, Mapping):
        return {name: _cut(part, rows) for name, part in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_cut(part, rows) for part in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(_cut(part, rows) for part in batch)
    return batch
