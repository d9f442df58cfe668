"""Two tasks against each other: where each row ends, the sweeps as lines, and what nothing here beats."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from equipoise.report.collect import STL, Comparison, Row
from equipoise.report.tables import display_name, metric_title

Point = tuple[float, float]


@dataclass(frozen=True)
class Dot:
    """A row as a point, the mean over its seeds; `label` is what tells it from others of its method."""

    name: str
    label: str
    index: int
    x: float
    y: float
    runs: Sequence[Point] = ()


@dataclass(frozen=True)
class Scatter:
    """Two metrics against each other.

    sweeps: the rows of one method with several options, in order along the first metric.
    front: the corners of the staircase of rows that no other row beats in both.
    """

    x_label: str
    y_label: str
    dots: Sequence[Dot] = ()
    sweeps: Sequence[Sequence[Point]] = ()
    front: Sequence[Point] = ()


def trade_off(comparison: Comparison) -> Scatter | None:
    """For two tasks, the first metric of each against the other; None for more tasks, or when nothing is finished."""
    tasks = list(dict.fromkeys(metric.task for metric in comparison.metrics))
    rows = [row for row in comparison.rows if row.entries]
    if len(tasks) != 2 or not rows:
        return None
    x, y = (next(metric for metric in comparison.metrics if metric.task == task) for task in tasks)
    dots = [_dot(row, index, x.name, y.name) for index, row in enumerate(rows)]
    sweeps = []
    for method in dict.fromkeys(row.method for row in rows):
        mine = sorted((dot.x, dot.y) for dot, row in zip(dots, rows, strict=True) if row.method == method)
        if len(mine) > 2:
            sweeps.append(mine)
    x_label, y_label = (metric_title(metric) for metric in (x, y))
    shared = [(dot.x, dot.y) for dot, row in zip(dots, rows, strict=True) if row.method != STL]
    return Scatter(x_label, y_label, dots, sweeps, staircase(shared, x.higher_is_better, y.higher_is_better))


def staircase(points: Sequence[Point], x_up: bool, y_up: bool) -> list[Point]:
    """The corners of the line between what some point reaches and what none does, along x.

    >>> staircase([(1.0, 3.0), (2.0, 1.0), (3.0, 2.0)], False, False)
    [(1.0, 3.0), (2.0, 3.0), (2.0, 1.0)]
    """
    turn_x, turn_y = (-1.0 if up else 1.0 for up in (x_up, y_up))
    turned = sorted((turn_x * a, turn_y * b) for a, b in points)
    corners: list[Point] = []
    for a, b in turned:
        if not corners:
            corners = [(a, b)]
        elif b < corners[-1][1]:
            corners += [(a, corners[-1][1]), (a, b)]
    return [(turn_x * a, turn_y * b) for a, b in corners]


def _dot(row: Row, index: int, x: str, y: str) -> Dot:
    runs = list(zip(row.values(x), row.values(y), strict=True))
    name, _, options = row.label.partition(":")
    label = options or display_name(name)
    end_x, end_y = (statistics.fmean(row.values(metric)) for metric in (x, y))
    return Dot(display_name(row.label), label, index, end_x, end_y, runs if len(runs) > 1 else ())
