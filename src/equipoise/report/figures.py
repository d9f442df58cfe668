"""The report's figures as vector files for papers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from equipoise.report import charts
from equipoise.report.charts import Bar, Heat, Panel, Scatter, Spread
from equipoise.report.collect import Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMN, _ROW = 2.6, 2.0  # inches of a small diagram


def write_figures(folder: Path, comparisons: Sequence[Comparison], kind: Literal["pdf", "svg"] = "pdf") -> list[Path]:
    """One file a figure; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for comparison in comparisons:
        name = re.sub(r"[^A-Za-z0-9-]", "-", comparison.suite.name)
        for figure, draw in _figures(comparison).items():
            path = folder / f"{name}-{figure}.{kind}"
            draw(path)
            written.append(path)
    return written


def _figures(comparison: Comparison) -> dict[str, Callable[[Path], None]]:
    """What there is to draw."""
    panels = {
        "metrics": charts.metric_panels(comparison),
        "losses": charts.loss_panels(comparison),
        "weights": charts.weight_panels(comparison),
        "router-gradients": charts.hypergradients(comparison),
    }
    found: dict[str, Callable[[Path], None]] = {
        name: _drawing([(_panel, item) for item in items]) for name, items in panels.items() if items
    }
    spreads, heats, scatter = charts.loss_spreads(comparison), charts.conflicts(comparison), charts.pareto(comparison)
    if spreads:
        found["discrepancy"] = _drawing([(_spread, spreads)])
    if heats:
        found["conflict"] = _drawing([(_heat, item) for item in heats])
    if scatter is not None and scatter.dots:
        found["trade-off"] = _drawing([(_scatter, scatter)])
    times = charts.time_bars(comparison)
    if times:
        found["time"] = _drawing([(_bars, times)])
    return found


def _drawing(parts: Sequence[tuple[Callable[[Axes, Any], None], Any]]) -> Callable[[Path], None]:
    """Small diagrams beside each other, written to a file."""

    def draw(path: Path) -> None:
        from matplotlib.figure import Figure

        columns = min(3, len(parts))
        rows = -(-len(parts) // columns)
        figure = Figure(figsize=(_COLUMN * columns + 0.4, _ROW * rows + 0.4), layout="constrained")
        for place, (part, data) in enumerate(parts):
            axes = figure.add_subplot(rows, columns, place + 1)
            axes.tick_params(labelsize=7)
            axes.spines[["top", "right"]].set_visible(False)
            part(axes, data)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        if handles:
            figure.legend(handles, map(_plain, labels), loc="outside lower center", ncols=6, fontsize=7, frameon=False)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else {"CreationDate": None})

    return draw


def _panel(axes: Axes, data: Panel) -> None:
    for curve in data.curves:
        colour = f"C{curve.index % 10}"
        style = "-" if curve.index < 10 else "--"
        axes.plot(curve.x, curve.y, style, color=colour, linewidth=1.2, label=curve.name)
        if curve.low is not None and curve.high is not None:
            axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.12, linewidth=0)
    if data.log_y:
        axes.set_yscale("log")
    axes.set_title(_plain(data.title), fontsize=8)
    axes.set_xlabel(data.x_label, fontsize=7)


def _spread(axes: Axes, data: Sequence[Spread]) -> None:
    values = [value for row in data for value in row.values.values()]
    for place, row in enumerate(data):
        axes.scatter(list(row.values.values()), [place] * len(row.values), s=12, alpha=0.7, color=f"C{row.index % 10}")
        axes.plot([row.statistics["mean"]], [place], "|k", markersize=10)
    axes.set_yticks(range(len(data)), [_plain(row.name) for row in data])
    axes.invert_yaxis()
    if min(values) > 0 and max(values) / min(values) > 20:
        axes.set_xscale("log")
    axes.set_xlabel("training loss of each task, last epoch", fontsize=7)


def _heat(axes: Axes, data: Heat) -> None:
    axes.imshow(data.cosine, cmap="RdBu", vmin=-1, vmax=1)
    names = [_plain(task) for task in data.tasks]
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=6)
    axes.set_yticks(range(len(names)), names, fontsize=6)
    axes.set_title(_plain(data.name), fontsize=8)


def _bars(axes: Axes, data: Sequence[Bar]) -> None:
    axes.barh([_plain(bar.name) for bar in data], [bar.value for bar in data], color=[f"C{b.index % 10}" for b in data])
    for place, bar in enumerate(data):
        axes.text(bar.value, place, f" {bar.text}", va="center", fontsize=6)
    axes.invert_yaxis()
    axes.set_xlabel("time per step", fontsize=7)


def _scatter(axes: Axes, data: Scatter) -> None:
    for name in dict.fromkeys(dot.name for dot in data.dots):
        mine = [dot for dot in data.dots if dot.name == name]
        colour = f"C{mine[0].index % 10}"
        axes.scatter([dot.x for dot in mine], [dot.y for dot in mine], s=14, color=colour, label=name)
    axes.set_xlabel(_plain(data.x_label), fontsize=7)
    axes.set_ylabel(_plain(data.y_label), fontsize=7)


def _plain(text: str) -> str:
    """A name that matplotlib does not take for a formula."""
    return text.replace("$", r"\$")
