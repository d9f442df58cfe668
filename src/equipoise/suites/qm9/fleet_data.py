"""What a fleet reads: the molecules on the device, every seed's split and order, and a layout all batches fit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from equipoise.runs.config import RunConfig
from equipoise.suites import suite_class

from .dense import Layout, Resident, by_size, plan_layout
from .suite import QM9

HeldOut = Literal["validation", "test"]
HELD_OUT: tuple[HeldOut, ...] = ("validation", "test")
_GROUPS = 6


class FleetData:
    """The data of the seeds that occur in `configs`; several fleets of these seeds can share it.

    configs: the runs; suite, epochs, batch size and the suite's options must be the same for all.
    data: where the suite reads, as its own `data`.
    """

    def __init__(self, configs: Sequence[RunConfig], device: torch.device | str, data: Path | None = None) -> None:
        self.device = torch.device(device)
        self.suites = _suites(configs, data)
        first = next(iter(self.suites.values()))
        self.tasks, self.batch_size, self.epochs = first.tasks, first.batch_size, configs[0].epochs
        targets = np.stack([suite.standardised() for suite in self.suites.values()])
        self.resident = Resident(first.molecules, targets, device)
        self.steps = -(-len(first.parts.train) // self.batch_size)
        self.layout = self._plan()

    def which(self, seeds: Sequence[int]) -> list[int]:
        """For each seed the place of its standardisation among the resident targets."""
        known = list(self.suites)
        return [known.index(seed) for seed in seeds]

    def epoch_rows(self, seeds: Sequence[int], epoch: int) -> npt.NDArray[np.int64]:
        """The molecules of every run's batches in an epoch, ``[steps, R, B]``, for runs of these seeds."""
        rows = {seed: self._batches(self.suites[seed].training_order(epoch)) for seed in set(seeds)}
        return np.stack([rows[seed] for seed in seeds], axis=1)

    def held_out_rows(self, seeds: Sequence[int], part: HeldOut) -> npt.NDArray[np.int64]:
        """A part of the data in batches that mix sizes as the training batches do, so that their layout fits."""
        rows = {}
        for seed in set(seeds):
            chosen = getattr(self.suites[seed].parts, part)
            rows[seed] = self._batches(np.random.RandomState(seed).permutation(chosen))
        return np.stack([rows[seed] for seed in seeds], axis=1)

    def _batches(self, order: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return by_size(order, self.resident.sizes, self.batch_size, self.resident.empty)

    def _plan(self) -> Layout:
        """The cheapest layout that fits every batch of every epoch."""
        widest = np.zeros(self.batch_size, dtype=np.int64)
        sizes = self.resident.sizes.astype(np.uint8)
        for suite in self.suites.values():
            for epoch in range(self.epochs):
                order = suite.training_order(epoch)
                filled = np.zeros(self.steps * self.batch_size, dtype=np.uint8)
                filled[: len(order)] = sizes[order]
                widest = np.maximum(widest, np.sort(filled.reshape(-1, self.batch_size), axis=1).max(0))
        for part in HELD_OUT:
            held_out = self.resident.sizes[self.held_out_rows(list(self.suites), part)]
            widest = np.maximum(widest, held_out.max((0, 1)))
        return plan_layout(widest[None], most=_GROUPS)


def _suites(configs: Sequence[RunConfig], data: Path | None) -> dict[int, QM9]:
    """The data of every seed, on the CPU; molecules read once."""
    for name in ("suite", "epochs", "batch_size", "suite_options"):
        values = [getattr(config, name) for config in configs]
        if any(value != values[0] for value in values):
            raise ValueError(f"`configs` must agree on `{name}`; found {values}.")
    suites: dict[int, QM9] = {}
    for config in configs:
        if config.method == "ldc-double" or config.shared != "features":
            raise ValueError(f"`configs` must work at the features in a single loop; found {config.label!r}.")
        if config.seed not in suites:
            found = suite_class(config.suite)
            assert issubclass(found, QM9)
            suite = found(seed=config.seed, data=data, batch_size=config.batch_size, **config.suite_options)
            if suites:
                suite.molecules = next(iter(suites.values())).molecules
            suites[config.seed] = suite
    return suites
