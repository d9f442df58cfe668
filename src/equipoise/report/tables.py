"""The comparison as a table of cells, marked and annotated; `render` writes it down."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from equipoise.metrics.delta_m import mean_rank
from equipoise.registry import method_class, methods
from equipoise.report.collect import STL, Comparison, Row
from equipoise.suites.suite import Metric

Mark = Literal["best", "second"]


@dataclass(frozen=True)
class Column:
    """What a column holds; `better` says which end is best, None where neither is."""

    key: str
    title: str
    better: Literal["lower", "higher"] | None
    digits: int
    unit: str = ""


@dataclass(frozen=True)
class Cell:
    """A mean over seeds, its deviation where there are several, and whether it is best or second of its column."""

    mean: float
    std: float | None = None
    mark: Mark | None = None


@dataclass(frozen=True)
class Line:
    """A row of the table: ours with its seeds, our single-task one, or a published one."""

    label: str
    cells: Mapping[str, Cell]
    kind: Literal["ours", "stl", "published"]
    seeds: int = 0


@dataclass(frozen=True)
class Table:
    """Columns, lines and footnotes, ready to be written in any format."""

    title: str
    columns: Sequence[Column]
    lines: Sequence[Line]
    notes: Sequence[str] = field(default_factory=list)


def metric_title(metric: Metric) -> str:
    """Name, unit, and which end is better."""
    unit = f" ({metric.unit})" if metric.unit else ""
    return f"{metric.name}{unit} {'↑' if metric.higher_is_better else '↓'}"


def display_name(label: str) -> str:
    """A label as people write the method.

    >>> display_name("fairgrad"), display_name("ldc:discrepancy=0.05"), display_name("mine")
    ('FairGrad', 'LDC (discrepancy=0.05)', 'mine')
    """
    name, *options = label.split(":")
    shown = method_class(name).__name__ if name in methods() else name
    return f"{shown} ({', '.join(options)})" if options else shown


def make_table(comparison: Comparison, *, published: bool = False) -> Table:
    """The comparison as a table; `published` puts the suite's published rows under ours.

    delta-m is given against our own single-task runs where they are finished, against the published single-task
    numbers where there are some, and by task too where a task has several metrics.
    """
    rows = [row for row in comparison.rows if row.entries]
    scores = _scores(comparison)
    columns = [
        Column(m.name, m.name, "higher" if m.higher_is_better else "lower", m.digits, m.unit)
        for m in comparison.metrics
    ]
    columns += [Column(key, title, "lower", 2, "%") for key, (title, _) in scores.items()]
    ranks = _ranks(comparison, rows)
    base = next((row for row in rows if row.method == "ls"), None)
    columns += [Column("rank", "mean rank", "lower", 2)] if ranks else []
    columns += [Column("time", "time / LS" if base else "s / step", "lower", 2 if base else 4)]
    lines = [_line(row, comparison, scores, ranks, base) for row in rows]
    notes = [*_baseline_notes(comparison, scores), *comparison.notes]
    if published:
        lines += _published(comparison)
        notes += _published_notes(comparison)
    marked = _mark(columns, lines)
    if any(cell.mark for line in marked for cell in line.cells.values()):
        notes.insert(0, "Best in bold, second best underlined, among our multi-task rows.")
    return Table(comparison.suite.name, columns, marked, notes)


def metrics_last(table: Table) -> Table:
    """The same with what sums a row up in front: on a page, forty metrics would push it out of sight."""
    ahead = [column for column in table.columns if column.key.startswith("delta_m") or column.key in ("rank", "time")]
    return replace(table, columns=[*ahead, *(column for column in table.columns if column not in ahead)])


_Score = tuple[str, Callable[[Mapping[str, float]], float]]


def _scores(comparison: Comparison) -> dict[str, _Score]:
    """The delta-m columns there can be."""
    bases = {}
    own, published = comparison.stl, comparison.published_stl
    if own is not None:
        bases["own"] = ("own STL", own)
    if published is not None and (comparison.suite.comparable or own is None):
        bases["published"] = ("published STL", published)
    several = len({metric.task for metric in comparison.metrics}) < len(comparison.metrics)
    found: dict[str, _Score] = {}
    for key, (name, base) in bases.items():
        for by_task in (False, True) if several else (False,):
            title = f"Δm by task, {name}" if by_task else f"Δm, {name}"
            found[f"delta_m_{key}{'_by_task' if by_task else ''}"] = (title, _score(comparison, base, by_task))
    return found


def _score(comparison: Comparison, base: Mapping[str, float], by_task: bool) -> Callable[[Mapping[str, float]], float]:
    return lambda metrics: comparison.delta_m(metrics, base, by_task=by_task)


def _ranks(comparison: Comparison, rows: Sequence[Row]) -> dict[str, float]:
    """Mean ranks over the metrics among our multi-task rows."""
    table = {
        row.label: {m.name: statistics.fmean(row.values(m.name)) for m in comparison.metrics}
        for row in rows
        if row.method != STL
    }
    if len(table) < 2:
        return {}
    return mean_rank(table, {metric.name: metric.higher_is_better for metric in comparison.metrics})


def _line(
    row: Row, comparison: Comparison, scores: Mapping[str, _Score], ranks: Mapping[str, float], base: Row | None
) -> Line:
    cells = {metric.name: _cell(row.values(metric.name)) for metric in comparison.metrics}
    for key, (_, score) in scores.items():
        if not (row.method == STL and "own" in key):
            cells[key] = _cell([score(entry.metrics) for entry in row.entries])
    if row.label in ranks:
        cells["rank"] = Cell(ranks[row.label])
    seconds = [entry.seconds_per_step for entry in row.entries]
    unit = statistics.fmean([entry.seconds_per_step for entry in base.entries]) if base else 1.0
    cells["time"] = _cell([value / unit for value in seconds])
    return Line(display_name(row.label), cells, "stl" if row.method == STL else "ours", len(row.entries))


def _cell(values: Sequence[float]) -> Cell:
    return Cell(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


def _published(comparison: Comparison) -> list[Line]:
    if not comparison.suite.comparable:
        return []
    lines = []
    base = comparison.published_stl
    for label, row in comparison.suite.published.items():
        cells = {metric.name: Cell(row[metric.name]) for metric in comparison.metrics if metric.name in row}
        if base is not None and len(cells) == len(comparison.metrics):
            cells["delta_m_published"] = Cell(comparison.delta_m(row, base, by_task=False))
        elif "delta_m" in row:
            cells["delta_m_published"] = Cell(row["delta_m"])
        lines.append(Line(display_name(label), cells, "published"))
    return lines


def _baseline_notes(comparison: Comparison, scores: Mapping[str, _Score]) -> list[str]:
    notes = []
    if scores:
        notes.append("Δm is the mean over metrics of the relative loss against single-task learning; below 0 beats it.")
    if any("by_task" in key for key in scores):
        notes.append("Δm by task takes the mean within each task first.")
    if "delta_m_published" in scores and not comparison.suite.comparable:
        notes.append("The published single-task networks had other data or training: only differences of Δm mean much.")
    if any(row.method == STL and row.entries for row in comparison.rows):
        notes.append("STL is one network a task; its time is that of all of them together.")
    if any(len(row.entries) > 1 for row in comparison.rows):
        notes.append("± is the standard deviation over seeds.")
    return notes


def _published_notes(comparison: Comparison) -> list[str]:
    if not comparison.suite.comparable or not comparison.suite.published:
        return [f"There are no published rows that may stand beside {comparison.suite.name}."]
    notes = ["Rows marked † are published ones; their Δm is computed from their printed metrics where all are printed."]
    base = comparison.published_stl
    for label, row in comparison.suite.published.items():
        if base is None or "delta_m" not in row or not {m.name for m in comparison.metrics} <= row.keys():
            continue
        computed = comparison.delta_m(row, base, by_task=False)
        if abs(computed - row["delta_m"]) > 0.02 * abs(row["delta_m"]) + 0.5:
            notes.append(
                f"{display_name(label)}† prints a Δm of {row['delta_m']:g}; its printed metrics give {computed:.1f}."
            )
    return notes


def _mark(columns: Sequence[Column], lines: Sequence[Line]) -> list[Line]:
    """Mark the best and the second best of our multi-task lines in every column but time's."""
    marks: dict[tuple[str, str], Mark] = {}
    ranked = [line for line in lines if line.kind == "ours"]
    for column in columns:
        sign = -1 if column.better == "higher" else 1
        values = {line.label: sign * line.cells[column.key].mean for line in ranked if column.key in line.cells}
        levels = sorted({value for value in values.values() if not math.isnan(value)})
        if len(values) < 3 or column.key == "time":
            continue
        for label, value in values.items():
            if value in levels[:2]:
                marks[label, column.key] = "best" if value == levels[0] else "second"
    marked = []
    for line in lines:
        mine = marks if line.kind == "ours" else {}
        cells = {key: replace(cell, mark=mine.get((line.label, key))) for key, cell in line.cells.items()}
        marked.append(replace(line, cells=cells))
    return marked
