"""QM9 as a suite: eleven regressions on one representation of a molecule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from equipoise.losses import nearest
from equipoise.suites.suite import Metric, Part, Preset, Protocol, Suite

from . import compact
from .data import Split, load, load_permutation, load_sample, split, statistics
from .dense import Batch, Resident, by_size, plan_layout
from .model import Network
from .molecules import TASK_SCALES, TASKS, Molecules
from .precision import Precision
from .published import PUBLISHED
from .rich import enrich

_UNITS = ("D", "a0^3", "meV", "meV", "a0^2", "meV", "meV", "meV", "meV", "meV", "cal/mol/K")
_DIGITS = (3, 3, 1, 1, 2, 2, 1, 1, 1, 1, 3)
_STL = (0.0671, 0.1814, 60.576, 53.915, 0.5027, 4.539, 58.838, 64.244, 63.852, 66.223, 0.07212)
_GROUPS = 4
_TEST_BATCH = 250


class QM9(Suite):
    """Eleven properties of 130,831 molecules; the metric is the mean absolute error of each.

    data: the cache's folder (built there from qm9pack if missing), or a file in the cache's format.
    tasks: some of the eleven, for a smaller problem.
    permutation: a file with a stored order of the molecules, in place of the order drawn from the seed: the first
        10,000 are the test part, the next 10,000 the validation part.
    rich: whether to tell aromatic atoms and bonds and sp, sp2 and sp3 atoms, which the published features leave out.
        RDKit (the extra `chem`) is asked once; its answer is kept beside the data.

    Targets are standardised with the training part's mean and deviation alone. (The reference code uses those of
    the full set, test molecules included.)
    """

    name: ClassVar[str] = "qm9"
    tasks: ClassVar[tuple[str, ...]] = TASKS
    metrics: ClassVar[tuple[Metric, ...]] = tuple(
        Metric(task, task, unit=unit, digits=digits) for task, unit, digits in zip(TASKS, _UNITS, _DIGITS, strict=True)
    )
    stl: ClassVar[Mapping[str, float]] = dict(zip(TASKS, _STL, strict=True))
    published: ClassVar[Mapping[str, Mapping[str, float]]] = PUBLISHED
    protocol: ClassVar[Protocol] = Protocol(
        epochs=300,
        batch_size=120,
        lr=1e-3,
        schedule=("plateau", {"mode": "min", "factor": 0.7, "patience": 5, "min_lr": 1e-5}),
    )
    presets: ClassVar[Mapping[str, Preset]] = {
        "ldc": Preset(
            "ldc",
            {
                "router": "sigmoid",
                "router_objective": "both",
                "tau": "weights",
                "normalize": "log",
                "discrepancy": 0.05,
            },
            lr=1e-3,
        ),
        "famo": Preset("famo", {"gamma": 1e-3}, lr=1e-3),
        "cagrad": Preset("cagrad", {"c": 0.4}, lr=1e-3),
        "nash-mtl": Preset("nash-mtl", {"max_norm": 1.0}, lr=1e-3),
        "fairgrad": Preset("fairgrad", {"alpha": 2.0, "max_norm": 1.0}, lr=1e-3),
    }

    def __init__(
        self,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        data: Path | None = None,
        batch_size: int | None = None,
        tasks: Sequence[str] = TASKS,
        permutation: Path | None = None,
        precision: Precision = "float32",
        rich: bool = False,
    ) -> None:
        super().__init__(seed=seed, device=device, data=data, batch_size=batch_size)
        if not isinstance(rich, bool):
            raise ValueError(f"`rich` should be True or False. Found {rich!r}.")
        for task in tasks:
            if task not in TASKS:
                raise ValueError(f"`tasks` should be names of QM9's targets; {nearest(task, TASKS)} Found {task!r}.")
        self.columns = [TASKS.index(task) for task in tasks]
        # A part of the tasks is this object's own; the class goes on describing all eleven.
        self.tasks = tuple(tasks)  # type: ignore[misc]
        self.metrics = tuple(QM9.metrics[c] for c in self.columns)  # type: ignore[misc]
        self.stl = {task: self.stl[task] for task in tasks if task in self.stl}  # type: ignore[misc]
        self.permutation = permutation
        self.precision: Precision = precision
        self.rich = rich

    @cached_property
    def molecules(self) -> Molecules:
        """Every molecule of the set, in QM9's order."""
        folder = self.data
        if folder is not None and folder.is_file():
            found, folder = compact.read(folder), folder.parent
        else:
            found = load(folder)
        return enrich(found, folder) if self.rich else found

    @cached_property
    def parts(self) -> Split:
        """Which molecules are for training, validation and test."""
        order = None if self.permutation is None else load_permutation(self.permutation)
        return split(len(self.molecules), seed=self.seed, permutation=order)

    @cached_property
    def resident(self) -> Resident:
        """The molecules on the device, with standardised targets."""
        return Resident(self.molecules, self.standardised()[None], self.device)

    def standardised(self) -> npt.NDArray[np.float64]:
        """Every molecule's targets, in deviations from the training part's mean, ``[M, T]``."""
        targets = self.molecules.targets()[:, self.columns]
        mean, std = statistics(targets, self.parts.train)
        standardised: npt.NDArray[np.float64] = (targets - mean) / std
        return standardised

    @cached_property
    def error_scale(self) -> Tensor:
        """From an error of a standardised target to the reported unit, ``[T]``."""
        _, std = statistics(self.molecules.targets()[:, self.columns], self.parts.train)
        reported = np.array(TASK_SCALES)[self.columns]
        return torch.from_numpy(std * reported).to(self.device, torch.float32)

    def model(self) -> Network:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            network = Network(len(self.tasks), self.precision)
        return network.to(self.device)

    def shared_parameters(self, model: nn.Module) -> Sequence[nn.Parameter]:
        return [parameter for name, parameter in model.named_parameters() if not name.startswith("heads.")]

    def batches(self, epoch: int) -> _Batches:
        return _Batches(self, self.training_rows(epoch))

    def training_rows(self, epoch: int) -> npt.NDArray[np.int64]:
        """The molecules of every batch of an epoch, ``[steps, batch]``, each batch sorted by size."""
        return by_size(self.training_order(epoch), self.resident.sizes, self.batch_size, self.resident.empty)

    def training_order(self, epoch: int) -> npt.NDArray[np.int64]:
        """The training molecules in the order of an epoch."""
        return np.random.RandomState([self.seed, epoch]).permutation(self.parts.train)

    def test_rows(self, part: Part) -> npt.NDArray[np.int64]:
        """The molecules of a part in batches of like size."""
        chosen: npt.NDArray[np.int64] = getattr(self.parts, part)
        order = chosen[np.argsort(self.resident.sizes[chosen], kind="stable")]
        return by_size(order, self.resident.sizes, min(_TEST_BATCH, len(order)), self.resident.empty)

    def losses(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """The mean squared error of every standardised target, and the shared representation ``[B, 64]``."""
        found, shared = model(batch)
        errors = (found - batch.targets[0]).square() * batch.share[0][:, None]
        return errors.sum(0), shared

    def share(self, batch: Batch, rank: int, ranks: int) -> tuple[Batch, Tensor]:
        if batch.layout.molecules < ranks:
            raise ValueError(f"`batch_size` must be at least the {ranks} ranks; found {batch.layout.molecules}.")
        part = batch.part(rank, ranks)  # of small and large molecules alike: ranks wait for each other
        return part, (part.atoms[0] > 0).sum().expand(len(self.tasks))

    @torch.no_grad()
    def evaluate(self, model: nn.Module, part: Part) -> dict[str, float]:
        total = torch.zeros(len(self.tasks), device=self.device)
        batches = _Batches(self, self.test_rows(part))
        for batch in batches:
            errors = (model(batch)[0] - batch.targets[0]).abs() * (batch.atoms[0] > 0)[:, None]
            total += errors.sum(0)
        mean = total * self.error_scale / len(getattr(self.parts, part))
        return dict(zip(self.tasks, mean.tolist(), strict=True))


class QM9Sample(QM9):
    """The 5,000 molecules that ship with the package: no download, an epoch in seconds on one core.

    Its numbers are real but not QM9's: it trains on 1,000 molecules, tests on 500, for 20 epochs. Its delta-m is
    against the published single-task networks, which saw 110,831.

    >>> suite = QM9Sample(tasks=("mu", "cv"))
    >>> batch = next(iter(suite.batches(0)))
    >>> losses, shared = suite.losses(suite.model(), batch)
    >>> losses.shape, shared.shape
    (torch.Size([2]), torch.Size([60, 64]))
    """

    name: ClassVar[str] = "qm9-sample"
    comparable: ClassVar[bool] = False
    protocol: ClassVar[Protocol] = Protocol(epochs=20, batch_size=60, lr=1e-3, schedule=QM9.protocol.schedule)

    @cached_property
    def molecules(self) -> Molecules:
        return enrich(load_sample()) if self.rich else load_sample()

    @cached_property
    def parts(self) -> Split:
        whole = split(len(self.molecules), seed=self.seed)
        return Split(train=whole.train[:1000], validation=whole.validation, test=whole.test)


class _Batches:
    """The batches of some rows of molecules, gathered on the device one at a time."""

    def __init__(self, suite: QM9, rows: npt.NDArray[np.int64]) -> None:
        self.suite = suite
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Batch]:
        resident = self.suite.resident
        for row in self.rows:
            layout = plan_layout(resident.sizes[row][None], _GROUPS)
            index = torch.from_numpy(row[None]).to(self.suite.device)
            yield resident.gather(index, layout)
