"""What the examples share: compare methods over seeds, print the table, draw for light and dark pages."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: One colour a method on every page; readable on white and on near-black.
COLOURS = {
    "LS": "#8a8f98",
    "LDC": "#e0572f",
    "LDC, raw losses": "#e09a2f",
    "LS, tuned": "#6b7280",
    "UW": "#3b82c4",
    "SI": "#2fa07a",
    "FAMO": "#c05fa8",
    "FairGrad": "#8e63ce",
}
_INK = {"": "#24292f", "-dark": "#d4d7de"}

Train = Callable[[str, int], Mapping[str, float]]


def arguments(doc: str | None, data: str | None = None, variable: str = "") -> argparse.Namespace:
    """--smoke, --seeds, --figure; and --data with its explanation, or a variable, where the example needs a file."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a few steps, to see that it runs")
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds")
    parser.add_argument("--figure", type=Path, help="where to draw the result, an .svg")
    if data is not None:
        parser.add_argument("--data", type=Path, default=os.environ.get(variable), help=data)
    return parser.parse_args()


def compare(train: Train, methods: Sequence[str], seeds: int) -> dict[str, dict[str, list[float]]]:
    """Every method with every seed, the seeds outside so that methods share the machine's moods."""
    torch.set_num_threads(1)
    results: dict[str, dict[str, list[float]]] = {method: {} for method in methods}
    for seed in range(seeds):
        for method in methods:
            torch.manual_seed(seed)
            began = time.process_time()
            metrics = train(method, seed)
            print(f"{method}, seed {seed}: {time.process_time() - began:.1f} s of processor time", flush=True)
            for name, value in metrics.items():
                results[method].setdefault(name, []).append(value)
    return results


def table(results: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Markdown: mean and, of several seeds, standard deviation."""
    names = list(next(iter(results.values())))
    lines = ["| method | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for method, metrics in results.items():
        cells = [_cell(metrics[name]) for name in names]
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(values: Sequence[float]) -> str:
    return f"{np.mean(values):.3g}" + (f" ± {np.std(values, ddof=1):.2g}" if len(values) > 1 else "")


def save(draw: Callable[[Figure], Any], path: Path, size: tuple[float, float] = (7.0, 2.8)) -> None:
    """Draw twice: `path` for light pages, and with -dark in its name for dark ones."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    for suffix, ink in _INK.items():
        inks = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
        style = {
            **dict.fromkeys(inks, ink),
            "font.size": 9,
            "axes.titlesize": 9.5,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": ink,
            "grid.alpha": 0.12,
            "legend.frameon": False,
            "lines.linewidth": 1.6,
            "svg.hashsalt": "equipoise",
        }
        with mpl.rc_context(style):
            figure = Figure(figsize=size, layout="constrained")
            draw(figure)
            target = path.with_name(f"{path.stem}{suffix}.svg")
            target.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(target, transparent=True, metadata={"Date": None})


def dots(results: Mapping[str, Mapping[str, Sequence[float]]], names: Sequence[str] | None = None) -> Any:
    """A panel a metric, a row a method: every seed a dot, their mean a line."""

    def draw(figure: Figure) -> None:
        chosen = names or list(next(iter(results.values())))
        panels = figure.subplots(1, len(chosen), sharey=True, squeeze=False)[0]
        for panel, name in zip(panels, chosen, strict=True):
            for row, (method, metrics) in enumerate(results.items()):
                colour = COLOURS[method]
                panel.plot(metrics[name], [row] * len(metrics[name]), "o", color=colour, ms=5, alpha=0.75, mew=0)
                mean = float(np.mean(metrics[name]))
                panel.plot([mean, mean], [row - 0.3, row + 0.3], color=colour, lw=2.2)
            panel.set_title(name)
            panel.set_yticks(range(len(results)), list(results))
            panel.set_ylim(len(results) - 0.4, -0.6)
            panel.grid(axis="y", visible=False)
            panel.tick_params(axis="y", length=0)
            panel.locator_params(axis="x", nbins=4)

    return draw
