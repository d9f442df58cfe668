"""The figures of the thousand tasks, and the tables of docs/thousand-tasks.md, from the measurements in a folder.

    python benchmarks/thousand_figures.py docs/benchmarks --page docs/thousand-tasks.md

What stands between `<!-- name -->` and `<!-- end -->` on the page is written by this program.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import harness
from reduced_bytes import RANKS, counted, expected, trunk_size
from thousand_tasks import BATCH

Row = dict[str, Any]
LOOKS = {"losses": "#9aa5b1", "features": "#4c78a8", "parameters": "#b279a2"}
LDC = "#d9731a"  # as in the reports
SHOWN = ["ldc", "dwa", "uw", "famo", "go4align", "stch", "mgda", "nash-mtl", "imtl-g", "pcgrad", "upgrad", "graddrop"]
TRUNKS = {"of these measurements": trunk_size(), "25 million": 25_000_000, "1 billion": 1_000_000_000}
BANDWIDTH = 50e9  # bytes a second between machines, a GPU: 400 Gbit/s, assumed


def load(folder: Path) -> dict[str, dict[str, Any]]:
    files = {device: folder / f"thousand-tasks-{device}.json" for device in ("cpu", "cuda")}
    return {device: json.loads(file.read_text()) for device, file in files.items() if file.exists()}


def methods(rows: list[Row]) -> list[tuple[str, str]]:
    order = list(LOOKS)
    found = {(row["method"], row["at"]) for row in rows}
    return sorted(found, key=lambda m: (order.index(m[1]), m[0] != "ldc", m[0]))


def draw(folder: Path, found: dict[str, dict[str, Any]]) -> None:
    """One figure a device: time, memory, and the balancer alone, over K."""
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "equipoise", "font.size": 9, "axes.spines.top": False,
                         "axes.spines.right": False})  # fmt: skip
    for device, measured in found.items():
        rows = measured["rows"]
        last = max(row["K"] for row in rows if row["ms"] is not None)
        figure, axes = plt.subplots(3, 1, figsize=(6.4, 9.6), layout="constrained")  # legible on a phone
        for method, at in methods(rows):
            mine = [row for row in rows if (row["method"], row["at"]) == (method, at) and row["ms"] is not None]
            first = method == "ldc"
            style = {"color": LDC if first else LOOKS[at], "lw": 2.2 if first else 1.0}
            style |= {"zorder": 5 if first else 2, "marker": "o", "ms": 2.5}
            tasks = [row["K"] for row in mine]
            axes[0].plot(tasks, [row["ratio"] for row in mine], **style)
            axes[1].plot(tasks, [max(row["MiB"], 0.1) for row in mine], **style)
            if at == "losses":
                axes[2].plot(tasks, [max(row["alone_us"], 1.0) for row in mine], **style)
            elif mine and mine[-1]["ratio"] > 20:
                end = (tasks[-1], mine[-1]["ratio"])
                early = end[0] < last  # others' lines go on to the right of it
                place = {"ha": "right", "xytext": (-4, -10)} if early else {"xytext": (4, -2)}
                axes[0].annotate(method, end, fontsize=7, textcoords="offset points", **place)
        names = {"losses": "other loss-only methods", "features": "gradient methods at the features"}
        for colour, text in [
            (LDC, "LDC"), *((LOOKS[at], name) for at, name in names.items()),
            (LOOKS["parameters"], "at the trunk's parameters"),
        ]:  # fmt: skip
            axes[0].plot([], [], color=colour, label=text)
        axes[0].legend(fontsize=8, frameon=False)
        axes[0].set(xscale="log", yscale="log", xlabel="tasks", ylabel="time of a step over summing's")
        axes[0].set_xlim(right=2 * last)  # room for the names
        axes[1].set(xscale="log", yscale="log", xlabel="tasks", ylabel="MiB beyond summing (0.1: none)")
        axes[2].set(xscale="log", yscale="log", xlabel="tasks", ylabel="µs of the balancer alone")
        figure.savefig(folder / f"thousand-tasks-{device}.svg", transparent=True, metadata={"Date": None})


def step_table(measured: dict[str, Any]) -> str:
    rows = measured["rows"]
    by = {(row["method"], row["at"], row["K"]): row for row in rows}
    tasks = sorted({row["K"] for row in rows})
    lines = []
    for method, at in methods(rows):
        if method.split(",")[0] not in SHOWN:
            continue
        cells = [by.get((method, at, k)) for k in tasks]
        lines.append([f"`{method}`", at, *("–" if c is None or c["ms"] is None else cell(c) for c in cells)])
    table = harness.table(["time over summing / MiB beyond", "given", *(f"K = {k}" for k in tasks)], lines)
    return f"{table}\n\n{measured['environment']} A dash: not measured, for want of time."


def cell(row: Row) -> str:
    return f"{row['ratio']:.3g} / {max(0, round(row['MiB']))}"


def alone_table(measured: dict[str, Any]) -> str:
    """Operators and microseconds of the balancers without a network."""
    rows = [row for row in measured["rows"] if row["at"] == "losses" and row["alone_us"] is not None]
    tasks = sorted({row["K"] for row in rows})
    lines = []
    for method in sorted({row["method"] for row in rows}, key=lambda m: (m != "ldc", m)):
        by = {row["K"]: row for row in rows if row["method"] == method}
        cells = [f"{by[k]['operators'] or '–'} / {by[k]['alone_us']:.0f}" if k in by else "–" for k in tasks]
        lines.append([f"`{method}`", *cells])
    return harness.table(["operators beyond summing / us alone", *(f"K = {k}" for k in tasks)], lines)


def bytes_table() -> str:
    rows = counted([10, 100, 1000])
    tasks = sorted({row["K"] for row in rows})
    by = {(row["method"], row["at"], row["K"]): row for row in rows}
    lines = [["the model's own gradients", "", *(size(by["ldc", "losses", k]["model"]) for k in tasks)]]
    for method, at in dict.fromkeys((row["method"], row["at"]) for row in rows):
        lines.append([f"`{method}`", at, *(size(by[method, at, k]["bytes"]) for k in tasks)])
    return harness.table([f"added up over {RANKS} GPUs, a step", "given", *(f"K = {k}" for k in tasks)], lines)


def size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def duration(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return "below 1 us"


def projection_table() -> str:
    """Bytes, and the time a ring needs for them, for trunks of other sizes."""
    lines = []
    for name, trunk in TRUNKS.items():
        for k in (10, 100, 1000):
            cells = []
            for at in ("losses", "features", "parameters"):
                total = expected(at, k, trunk)
                seconds = 2 * (RANKS - 1) / RANKS * total / BANDWIDTH
                cells.append(f"{size(total)} / {duration(seconds)}")
            lines.append([name, k, size(4 * trunk), *cells])
    header = ["trunk's parameters", "K", "trunk's own gradients", "losses", "features", "parameters"]
    return harness.table(header, lines)


def constants(found: dict[str, dict[str, Any]]) -> str:
    """What one more task costs a step, from the largest two numbers of tasks measured."""
    lines = []
    for device, measured in found.items():
        for method, at in (("ldc", "losses"), ("mgda", "features"), ("mgda", "parameters")):
            rows = [row for row in measured["rows"] if (row["method"], row["at"]) == (method, at)]
            rows = sorted((row for row in rows if row["ms"] is not None), key=lambda row: row["K"])
            if len(rows) < 2 or rows[-2]["K"] < 100:  # differences at a small K are noise
                continue
            beyond = [row["ms"] - row["ms"] / row["ratio"] for row in rows[-2:]]
            memory = [row["MiB"] for row in rows[-2:]]
            more = rows[-1]["K"] - rows[-2]["K"]
            cells = [f"{1e3 * (beyond[1] - beyond[0]) / more:.3g}", f"{1024 * (memory[1] - memory[0]) / more:.3g}"]
            lines.append([device, f"`{method}`", at, f"{rows[-2]['K']} to {rows[-1]['K']}", *cells])
    return harness.table(["device", "method", "given", "between K", "us a task", "KiB a task"], lines)


def crossing() -> str:
    """Up to how many tasks the features are the smaller sum, and the smaller matrix, by arithmetic."""
    lines = [
        [name, f"{trunk:,}", f"{trunk // 2:,}", f"{trunk // BATCH:,}"] for name, trunk in TRUNKS.items()
    ]  # fmt: skip
    header = ["trunk's parameters", "d", "K below which features add up less", f"feature numbers a sample, of {BATCH}"]
    return harness.table(header, lines)


def write(page: Path, blocks: dict[str, str]) -> None:
    text = page.read_text("utf-8")
    for name, block in blocks.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        text, count = re.subn(pattern, lambda m, b=block: f"{m[1]}\n{b}\n\n{m[2]}", text, flags=re.DOTALL)
        if count != 1:
            raise ValueError(f"{page} must have the marks of {name!r} once; found {count}.")
    page.write_text(text, "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the measurements are, and the figures go")
    parser.add_argument("--page", type=Path, help="the page whose tables are written")
    args = parser.parse_args()
    found = load(args.folder)
    draw(args.folder, found)
    if args.page:
        blocks = {f"steps {device}": step_table(measured) for device, measured in found.items()}
        blocks["alone"] = alone_table(found["cpu"])
        blocks |= {"bytes": bytes_table(), "projection": projection_table()}
        blocks |= {"constants": constants(found), "crossing": crossing()}
        write(args.page, blocks)


if __name__ == "__main__":
    main()
