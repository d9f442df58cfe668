"""Runs read from their folders, put together into rows: one row a method, over its seeds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from equipoise.metrics.delta_m import delta_m
from equipoise.registry import methods
from equipoise.runs.checkpoint import DamagedFile
from equipoise.runs.store import Run, find_runs, read_run
from equipoise.suites import suite_class
from equipoise.suites.suite import Metric, Suite

STL = "stl"


@dataclass(frozen=True)
class Entry:
    """One method and seed: what its run found, or its K runs of single-task learning together."""

    seed: int
    metrics: Mapping[str, float]
    seconds_per_step: float
    peak_memory: float
    runs: Sequence[Run]


@dataclass(frozen=True)
class Row:
    """A method over its seeds."""

    label: str
    method: str
    entries: Sequence[Entry]

    def values(self, metric: str) -> list[float]:
        """A metric's value for each seed."""
        return [entry.metrics[metric] for entry in self.entries]


@dataclass(frozen=True)
class Comparison:
    """Everything finished of one suite, and sentences on what is not in it."""

    suite: type[Suite]
    metrics: Sequence[Metric]
    rows: Sequence[Row]
    unfinished: Sequence[Run] = ()
    notes: Sequence[str] = field(default_factory=list)

    @property
    def stl(self) -> dict[str, float] | None:
        """Our own single-task numbers, the mean over seeds, if every metric has one."""
        for row in self.rows:
            if row.method == STL and row.entries:
                return {metric.name: statistics.fmean(row.values(metric.name)) for metric in self.metrics}
        return None

    @property
    def published_stl(self) -> dict[str, float] | None:
        """The published single-task numbers, if every metric has one."""
        names = [metric.name for metric in self.metrics]
        return {name: self.suite.stl[name] for name in names} if set(names) <= self.suite.stl.keys() else None

    def delta_m(self, metrics: Mapping[str, float], baseline: Mapping[str, float], *, by_task: bool) -> float:
        """The delta-m of one row of metrics; by task it is the mean within each task first."""
        return delta_m(
            {metric.name: metrics[metric.name] for metric in self.metrics},
            dict(baseline),
            {metric.name: metric.higher_is_better for metric in self.metrics},
            tasks=[metric.task for metric in self.metrics] if by_task else None,
        )


def collect(folders: Iterable[Path]) -> list[Comparison]:
    """All runs below the folders, one comparison a suite; what cannot be read is named in the notes."""
    runs: list[Run] = []
    notes: list[str] = []
    paths = list(dict.fromkeys(path for folder in folders for path in find_runs(folder)))
    for path in paths:
        try:
            runs.append(read_run(path))
        except DamagedFile as error:  # noqa: PERF203
            notes.append(f"Left out: {error}")
    suites = list(dict.fromkeys(run.config.suite for run in runs))
    return [_compare(suite, [run for run in runs if run.config.suite == suite], notes) for suite in suites]


def _compare(name: str, runs: Sequence[Run], notes: Sequence[str]) -> Comparison:
    suite = suite_class(name)
    finished = [run for run in runs if run.result is not None]
    found = {metric for run in finished for metric in _result(run)["metrics"]}
    metrics = [metric for metric in suite.metrics if metric.name in found]
    rows = []
    labels = {run.config.label: run.config.method for run in runs}
    for label, method in sorted(labels.items(), key=lambda item: _place(*item)):
        mine = [run for run in finished if run.config.label == label]
        seeds = sorted({run.config.seed for run in mine})
        of_seed = [[run for run in mine if run.config.seed == seed] for seed in seeds]
        entries = [_entry(seed, group, metrics, suite) for seed, group in zip(seeds, of_seed, strict=True)]
        rows.append(Row(label, method, [entry for entry in entries if entry is not None]))
    unfinished = [run for run in runs if run.result is None]
    return Comparison(suite, metrics, rows, unfinished, [*notes, *_sentences(unfinished), *_mixed(suite, rows)])


def _place(label: str, method: str) -> tuple[int, int, str]:
    """Single-task learning first, then LS, the others as the registry has them, LDC last."""
    group = {STL: 0, "ls": 1, "ldc": 3, "ldc-double": 3}.get(method, 2)
    return group, methods().index(method), label


def _entry(seed: int, runs: Sequence[Run], metrics: Sequence[Metric], suite: type[Suite]) -> Entry | None:
    """One seed's runs as one line of numbers; None while single-task runs are missing."""
    values: dict[str, float] = {}
    for run in runs:
        task = run.config.options.get("task", 0) if run.config.method == STL else None
        tasks = run.config.suite_options.get("tasks", suite.tasks)
        mine = {m.name for m in metrics if task is None or m.task == (task if isinstance(task, str) else tasks[task])}
        values.update({name: value for name, value in _result(run)["metrics"].items() if name in mine})
    if not all(metric.name in values for metric in metrics):
        return None
    return Entry(
        seed,
        values,
        seconds_per_step=sum(_result(run)["seconds_per_step"] for run in runs),
        peak_memory=max(_result(run)["peak_memory"] for run in runs),
        runs=runs,
    )


def _sentences(unfinished: Sequence[Run]) -> list[str]:
    found = []
    for run in unfinished:
        done = f"{len(run.metrics)} of {run.config.epochs} epochs"
        why = f"failed ({run.error})" if run.error else "is unfinished"
        found.append(f"{run.config.label}, seed {run.config.seed}, {why}: {done} done.")
    return found


def _mixed(suite: type[Suite], rows: Sequence[Row]) -> list[str]:
    """Say what differs between runs that stand in one table."""
    found = []
    for name in ("epochs", "batch_size", "suite_options"):
        values = {str(getattr(run.config, name)) for row in rows for entry in row.entries for run in entry.runs}
        if len(values) > 1:
            found.append(f"The rows do not share `{name}`: {', '.join(sorted(values))}.")
    epochs = {run.config.epochs for row in rows for entry in row.entries for run in entry.runs}
    if epochs and max(epochs) < suite.protocol.epochs:
        trained = count(max(epochs), "epoch")
        found.append(f"Trained for {trained}; the suite's protocol is {suite.protocol.epochs}.")
    return found


def count(number: int, what: str) -> str:
    """The number with its noun.

    >>> count(1, "seed"), count(3, "seed")
    ('1 seed', '3 seeds')
    """
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _result(run: Run) -> Mapping[str, Any]:
    assert run.result is not None
    return run.result
