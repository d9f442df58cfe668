"""What the figures show, as numbers: drawn as svg for the page and by matplotlib for papers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from equipoise.report.collect import STL, Comparison, Entry, Row
from equipoise.report.tables import display_name, metric_title
from equipoise.runs.store import Run

T = TypeVar("T")
POINTS = 240  # a line is thinned to about as many


@dataclass(frozen=True)
class Curve:
    """A line; `index` picks its colour, `low` and `high` its band where there are several seeds."""

    name: str
    index: int
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


@dataclass(frozen=True)
class Panel:
    """One small diagram of lines."""

    title: str
    x_label: str
    curves: Sequence[Curve]
    log_y: bool = False


@dataclass(frozen=True)
class Spread:
    """The losses of one method's tasks at the end of training, and their statistics."""

    name: str
    index: int
    values: Mapping[str, float]

    @property
    def statistics(self) -> dict[str, float]:
        """Mean, deviation over tasks, smallest, largest, and largest over smallest."""
        values = list(self.values.values())
        low, high = min(values), max(values)
        return {
            "mean": statistics.fmean(values),
            "std": statistics.pstdev(values),
            "min": low,
            "max": high,
            "max / min": high / low if low > 0 else math.nan,
        }


@dataclass(frozen=True)
class Heat:
    """Cosines between tasks' gradients."""

    name: str
    tasks: Sequence[str]
    cosine: Sequence[Sequence[float]]


@dataclass(frozen=True)
class Bar:
    """One value of one method, and what is written beside it."""

    name: str
    index: int
    value: float
    text: str


def metric_panels(comparison: Comparison) -> list[Panel]:
    """Each metric over the epochs, one line a method: on the validation part, or the test part where that is shown."""
    panels = []
    for metric in comparison.metrics:
        curves = []
        for index, row in _rows(comparison):
            runs = [run for entry in row.entries for run in entry.runs if _trains(run, metric.task, comparison)]
            for part in ("validation", "test"):
                curve = _epoch_curve(row, index, runs, f"{part}:{metric.name}")
                if curve is not None:
                    curves.append(curve)
                    break
        panels.append(Panel(metric_title(metric), "epoch", curves, log_y=_spans(curves)))
    return [panel for panel in panels if panel.curves]


def loss_panels(comparison: Comparison) -> list[Panel]:
    """Each task's training loss over the epochs, one line a method."""
    panels = []
    for task in _tasks(comparison):
        curves = []
        for index, row in _rows(comparison):
            runs = [run for entry in row.entries for run in entry.runs if _trains(run, task, comparison)]
            curve = _epoch_curve(row, index, runs, f"loss:{task}")
            curves += [curve] if curve else []
        panels.append(Panel(task, "epoch", curves, log_y=_spans(curves)))
    return [panel for panel in panels if panel.curves]


def weight_panels(comparison: Comparison) -> list[Panel]:
    """The weights over the steps of each method's first seed, one line a task; constant weights are left out."""
    panels = []
    tasks = _tasks(comparison)
    for _, row in _rows(comparison):
        if row.method == STL:
            continue
        steps = _thin(row.entries[0].runs[0].steps)
        curves = [
            Curve(
                task, index, [step["step"] for step in steps], [step.get(f"weight:{task}", math.nan) for step in steps]
            )
            for index, task in enumerate(tasks)
        ]
        if any(max(curve.y) > min(curve.y) for curve in curves if curve.y):
            panels.append(Panel(display_name(row.label), "step", curves, log_y=_spans(curves, 100)))
    return panels


def loss_spreads(comparison: Comparison) -> list[Spread]:
    """The tasks' losses in the last epoch, the mean over seeds."""
    spreads = []
    for index, row in _rows(comparison):
        if row.method == STL:
            continue
        last = [entry.runs[0].metrics[-1] for entry in row.entries]
        values = {task: statistics.fmean(epoch[f"loss:{task}"] for epoch in last) for task in _tasks(comparison)}
        spreads.append(Spread(display_name(row.label), index, values))
    return spreads


def conflicts(comparison: Comparison) -> list[Heat]:
    """Each method's cosines of task gradients after training, of its first seed."""
    heats = []
    for _, row in _rows(comparison):
        result = row.entries[0].runs[0].result
        recorded = result.get("conflict") if result else None
        if recorded:
            heats.append(Heat(display_name(row.label), recorded["tasks"], recorded["cosine"]))
    return heats


def time_bars(comparison: Comparison) -> list[Bar]:
    """Seconds a step over those of LS, or as they are where LS is missing."""
    seconds = {row.label: _mean(row.entries, "seconds_per_step") for _, row in _rows(comparison)}
    base = next((seconds[row.label] for _, row in _rows(comparison) if row.method == "ls"), None)
    return [
        Bar(
            display_name(row.label),
            index,
            seconds[row.label] / (base or 1.0),
            (f"{seconds[row.label] / base:.2f} × LS, " if base else "") + _duration(seconds[row.label]),
        )
        for index, row in _rows(comparison)
    ]


def memory_bars(comparison: Comparison) -> list[Bar]:
    """Peak memory of a run."""
    bars = []
    for index, row in _rows(comparison):
        peak = _mean(row.entries, "peak_memory")
        bars.append(Bar(display_name(row.label), index, peak, f"{peak / 2**20:.0f} MiB"))
    return bars


def hypergradients(comparison: Comparison) -> list[Panel]:
    """Where Algorithm 1 was run: the norms of the router's gradient of g at the model and at the solved copy."""
    panels = []
    for _, row in _rows(comparison):
        steps = _thin(row.entries[0].runs[0].steps)
        if not steps or "router_gradient" not in steps[0]:
            continue
        curves = [
            Curve(label, index, [step["step"] for step in steps], [step.get(name, math.nan) for step in steps])
            for index, (name, label) in enumerate([("router_gradient", "at x"), ("inner_router_gradient", "at z")])
        ]
        ratios = [a / b for a, b in zip(curves[0].y, curves[1].y, strict=True) if b > 0]
        typical = f", median ratio {statistics.median(ratios):.3g}" if ratios else ""
        panels.append(Panel(display_name(row.label) + typical, "step", curves, log_y=_spans(curves)))
    return panels


def names(comparison: Comparison) -> list[str]:
    """The methods in the order of their colours."""
    return [display_name(row.label) for _, row in _rows(comparison)]


def _rows(comparison: Comparison) -> list[tuple[int, Row]]:
    return list(enumerate(row for row in comparison.rows if row.entries))


def _tasks(comparison: Comparison) -> list[str]:
    return list(dict.fromkeys(metric.task for metric in comparison.metrics))


def _trains(run: Run, task: str, comparison: Comparison) -> bool:
    """Whether the run trains the task: a single-task run trains one."""
    if run.config.method != STL:
        return True
    chosen = run.config.options.get("task", 0)
    tasks = run.config.suite_options.get("tasks", comparison.suite.tasks)
    return bool((chosen if isinstance(chosen, str) else tasks[chosen]) == task)


def _epoch_curve(row: Row, index: int, runs: Sequence[Run], column: str) -> Curve | None:
    """The mean over seeds of a column of metrics.csv, with the band between the least and the largest."""
    by_epoch: dict[float, list[float]] = {}
    for run in runs:
        for epoch in run.metrics:
            if column in epoch:
                by_epoch.setdefault(epoch["epoch"] + 1, []).append(epoch[column])
    if not by_epoch:
        return None
    points = _thin(sorted(by_epoch.items()))
    y = [statistics.fmean(values) for _, values in points]
    band = len(runs) > 1
    return Curve(
        display_name(row.label),
        index,
        [epoch for epoch, _ in points],
        y,
        [min(values) for _, values in points] if band else None,
        [max(values) for _, values in points] if band else None,
    )


def _spans(curves: Sequence[Curve], ratio: float = 20.0) -> bool:
    """Whether positive values differ by so much that a logarithmic axis shows more."""
    values = [value for curve in curves for value in curve.y if not math.isnan(value)]
    return bool(values) and min(values) > 0 and max(values) / min(values) > ratio


def _thin(items: Sequence[T]) -> Sequence[T]:
    return items[:: max(1, len(items) // POINTS)]


def _duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _mean(entries: Sequence[Entry], name: str) -> float:
    return statistics.fmean(getattr(entry, name) for entry in entries)
