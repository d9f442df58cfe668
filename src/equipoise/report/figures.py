"""The report's figures as vector files for papers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from equipoise.report import charts, svg
from equipoise.report.charts import Bar, Heat, Panel, Spread
from equipoise.report.collect import Comparison
from equipoise.report.colours import PALETTE, colours
from equipoise.report.tradeoff import Scatter, trade_off

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Ink = tuple[str, str]  # a colour and a style of line
_COLUMN, _ROW = 2.6, 2.0  # inches of a small diagram
_WIDE, _BAR = 3.6, 0.22  # inches of one whose rows are methods, and of such a row
_LONGEST = 28  # letters of a name
_LINE, _LETTER = 0.5, 0.055  # inches of a legend's line, and of a letter beside it
_NUMBERED = 8  # tasks up to which a square of cosines has its numbers in it


def write_figures(folder: Path, comparisons: Sequence[Comparison], kind: Literal["pdf", "svg"] = "pdf") -> list[Path]:
    """One file a figure; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    names = list(dict.fromkeys(name for comparison in comparisons for name in charts.names(comparison)))
    chosen = dict(zip(names, (_ink(*colour) for colour in colours(names)), strict=True))
    for comparison in comparisons:
        name = re.sub(r"[^A-Za-z0-9-]", "-", comparison.suite.name)
        for figure, draw in _figures(comparison, [chosen[name] for name in charts.names(comparison)]).items():
            path = folder / f"{name}-{figure}.{kind}"
            draw(path)
            written.append(path)
    return written


def _figures(comparison: Comparison, methods: Sequence[Ink]) -> dict[str, Callable[[Path], None]]:
    """What there is to draw; methods: their inks."""
    of_methods, of_tasks = partial(_panel, ink=methods.__getitem__), partial(_panel, ink=_task_ink)
    panels = {
        "metrics": (of_methods, charts.metric_panels(comparison)),
        "losses": (of_methods, charts.loss_panels(comparison)),
        "weights": (of_tasks, charts.weight_panels(comparison)),
        "router-gradients": (of_tasks, charts.hypergradients(comparison)),
    }
    found: dict[str, Callable[[Path], None]] = {
        name: _drawing([(draw, item) for item in items]) for name, (draw, items) in panels.items() if items
    }
    spreads, heats, scatter = charts.loss_spreads(comparison), charts.conflicts(comparison), trade_off(comparison)
    if spreads:
        found["discrepancy"] = _drawing([(partial(_spread, inks=methods), spreads)], _WIDE, _BAR * len(spreads) + 0.7)
    if heats:
        found["conflict"] = _drawing([(_heat, item) for item in heats])
    if scatter is not None:
        found["trade-off"] = _drawing([(partial(_scatter, inks=methods), scatter)], _WIDE, 2.8)
    bars = {"time per step": charts.time_bars(comparison), "peak memory": charts.memory_bars(comparison)}
    if all(bars.values()):
        parts = [(partial(_bars, label=label, inks=methods), items) for label, items in bars.items()]
        found["cost"] = _drawing(parts, _WIDE, _BAR * len(parts[0][1]) + 0.5)
    return found


def _drawing(
    parts: Sequence[tuple[Callable[[Axes, Any], None], Any]], width: float = _COLUMN, height: float = _ROW
) -> Callable[[Path], None]:
    """Diagrams beside each other, each of a width and a height, written to a file."""

    def draw(path: Path) -> None:
        from matplotlib import rc_context
        from matplotlib.figure import Figure

        columns = min(3, len(parts))
        rows = -(-len(parts) // columns)
        figure = Figure(figsize=(width * columns + 0.4, height * rows + 0.4), layout="constrained")
        for place, (part, data) in enumerate(parts):
            axes = figure.add_subplot(rows, columns, place + 1)
            axes.tick_params(labelsize=7)
            axes.spines[["top", "right"]].set_visible(False)
            part(axes, data)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        if handles:
            names = [_plain(label) for label in labels]
            columns = max(1, int(figure.get_figwidth() / (_LINE + _LETTER * max(map(len, names)))))
            figure.legend(handles, names, loc="outside lower center", ncols=columns, fontsize=7, frameon=False)
        undated = {"Date" if path.suffix == ".svg" else "CreationDate": None}
        with rc_context({"svg.hashsalt": "equipoise"}):  # the same runs give the same file
            figure.savefig(path, metadata=undated)

    return draw


def _panel(axes: Axes, data: Panel, ink: Callable[[int], Ink]) -> None:
    from matplotlib.ticker import MaxNLocator

    for curve in data.curves:
        colour, style = ink(curve.index)
        axes.plot(curve.x, curve.y, style, color=colour, linewidth=1.2, label=curve.name)
        if curve.low is not None and curve.high is not None:
            axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.12, linewidth=0)
    if data.log_y:
        axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_title(_plain(data.title, 3 * _LONGEST), fontsize=8, wrap=True)
    axes.set_xlabel(data.x_label, fontsize=7)


def _spread(axes: Axes, data: Sequence[Spread], inks: Sequence[Ink]) -> None:
    values = [value for row in data for value in row.values.values()]
    for place, row in enumerate(data):
        colour, _ = inks[row.index]
        axes.scatter(list(row.values.values()), [place] * len(row.values), s=12, alpha=0.7, color=colour)
        axes.plot([row.statistics["mean"]], [place], "|k", markersize=10)
    axes.set_yticks(range(len(data)), [_plain(row.name) for row in data])
    axes.set_ylim(len(data) - 0.4, -0.6)
    if min(values) > 0 and max(values) / min(values) > 20:
        axes.set_xscale("log")
    axes.set_xlabel("training loss of each task, last epoch", fontsize=7)


def _heat(axes: Axes, data: Heat) -> None:
    axes.imshow(data.cosine, cmap="RdBu", vmin=-1, vmax=1)
    names = [_plain(task, _LONGEST // 2) for task in data.tasks]
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=6)
    axes.set_yticks(range(len(names)), names, fontsize=6)
    axes.set_title(_plain(data.name), fontsize=8)
    if len(names) > _NUMBERED:
        return
    for i, row in enumerate(data.cosine):
        for j, value in enumerate(row):
            ink = "white" if abs(value) > 0.6 else "black"
            axes.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=6, color=ink)


def _bars(axes: Axes, data: Sequence[Bar], label: str, inks: Sequence[Ink]) -> None:
    places = range(len(data))
    axes.barh(places, [bar.value for bar in data], color=[inks[bar.index][0] for bar in data])
    axes.set_yticks(places, [_plain(bar.name) for bar in data])
    for place, bar in enumerate(data):
        axes.text(bar.value, place, f" {bar.text}", va="center", fontsize=6)
    axes.set_xlim(0, 1.5 * max(bar.value for bar in data))  # room for what is written beside
    axes.set_xticks([])
    axes.invert_yaxis()
    axes.set_title(label, fontsize=8)


def _scatter(axes: Axes, data: Scatter, inks: Sequence[Ink]) -> None:
    axes.plot(*zip(*data.front, strict=True), "--", color="0.5", linewidth=0.8)
    for sweep in data.sweeps:
        axes.plot(*zip(*sweep, strict=True), "-", color="0.7", linewidth=0.6)
    for dot in data.dots:
        colour, _ = inks[dot.index]
        for x, y in dot.runs:
            axes.scatter([x], [y], s=4, color=colour, alpha=0.5, linewidths=0)
        axes.scatter([dot.x], [dot.y], s=18, color=colour)
        axes.annotate(_plain(dot.label), (dot.x, dot.y), (4, 3), textcoords="offset points", fontsize=6)
    axes.set_xlabel(_plain(data.x_label), fontsize=7)
    axes.set_ylabel(_plain(data.y_label), fontsize=7)


def _ink(place: int, turn: int) -> Ink:
    return PALETTE[place], ("-", "--", ":", "-.")[turn % 4]


def _task_ink(index: int) -> Ink:
    return _ink(index % len(PALETTE), index // len(PALETTE))


def _plain(text: str, most: int = _LONGEST) -> str:
    """A name that matplotlib does not take for a formula, and that leaves room for the diagram."""
    return svg.cut(text, most).replace("$", r"\$")
