"""results/<suite>.csv and results/<suite>.md from the runs that vision_gpu.py stored; no number in them is typed.

    python benchmarks/vision_table.py [SUITE ...]

Reads results/runs/<suite>/runs.csv; of a method tried at several learning rates the table has the one whose run on the
first seed had the best validation score, the csv has all. `notes.md` beside the runs is put under the table.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from equipoise.report.collect import STL, Comparison, Entry, Row
from equipoise.report.render import markdown
from equipoise.report.tables import display_name, make_table
from equipoise.suites import suite_class
from equipoise.suites.suite import Suite

RESULTS = Path(__file__).parent.parent / "results"
RECORD = Mapping[str, str]
MOST_COLUMNS = 12  # of metrics in a table to read; with more of them each method has a column


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", default=[p.parent.name for p in RESULTS.glob("runs/*/runs.csv")])
    for name in parser.parse_args(arguments).suites:
        rows = read(name)
        (RESULTS / f"{name}.csv").write_text(csv_of(rows))
        (RESULTS / f"{name}.md").write_text(page_of(rows))


def read(name: str, results: Path = RESULTS) -> list[RECORD]:
    """The stored runs of a suite."""
    with (results / "runs" / name / "runs.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def chosen(rows: Sequence[RECORD]) -> list[RECORD]:
    """The runs at each method's chosen rate; all of single-task learning's."""
    return [row for row in rows if row["method"] == STL or row["rate"] == best_rate(rows, row["method"])]


def best_rate(rows: Sequence[RECORD], method: str) -> str:
    """The rate whose run on the method's first seed has the best validation score."""
    mine = [row for row in rows if row["method"] == method]
    first = min(int(row["seed"]) for row in mine)
    return max((row for row in mine if int(row["seed"]) == first), key=lambda row: float(row["score"] or 0))["rate"]


def compare(rows: Sequence[RECORD]) -> Comparison:
    """The chosen runs as the report's comparison: a row a method, over its seeds."""
    suite = suite_class(rows[0]["suite"])
    by_method: dict[str, dict[int, list[RECORD]]] = defaultdict(lambda: defaultdict(list))
    for row in chosen(rows):
        by_method[row["method"]][int(row["seed"])].append(row)
    made = []
    for method, seeds in sorted(by_method.items(), key=lambda item: (item[0] != STL, item[0] != "ls")):
        entries = [entry for seed, runs in sorted(seeds.items()) if (entry := make_entry(seed, runs, suite))]
        made.append(Row(method, suite.presets[method].method if method in suite.presets else method, entries))
    return Comparison(suite, suite.metrics, made)


def make_entry(seed: int, runs: Sequence[RECORD], suite: type[Suite]) -> Entry | None:
    """One seed: its run, or its single-task runs together; None while some of those are missing."""
    values = {m.name: float(run[f"test:{m.name}"]) for run in runs for m in suite.metrics if run[f"test:{m.name}"]}
    if len(values) < len(suite.metrics):
        return None
    seconds = sum(float(run["milliseconds_per_step"]) for run in runs) / 1e3
    return Entry(seed, values, seconds, max(float(run["peak_mib"]) for run in runs) * 2**20, runs=())


def csv_of(rows: Sequence[RECORD]) -> str:
    """Every run, single-task ones as one row a seed, in the columns of results/qm9.csv."""
    comparison = compare(rows)
    names = [metric.name for metric in comparison.metrics]
    columns = ["method", "seed", "source", "epochs", "preset", *names]
    columns += ["delta_m", "delta_m_own_stl", "s_per_step", "run_folder"]
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    writer.writeheader()
    for row, entry in entries(rows, comparison.suite):
        own = "" if comparison.stl is None else comparison.delta_m(entry.metrics, comparison.stl, by_task=False)
        base = comparison.published_stl
        values = {
            "method": row["method"], "seed": entry.seed, "source": "own", "epochs": row["epochs"],
            "preset": " ".join(filter(None, [row["options"], f"rate={row['rate']}"])), **entry.metrics,
            "delta_m": "" if base is None else comparison.delta_m(entry.metrics, base, by_task=False),
            "delta_m_own_stl": own, "s_per_step": entry.seconds_per_step, "run_folder": f"runs/{row['suite']}",
        }  # fmt: skip
        writer.writerow({key: f"{v:.6g}" if isinstance(v, float) else v for key, v in values.items()})
    return file.getvalue()


def entries(rows: Sequence[RECORD], suite: type[Suite]) -> Iterator[tuple[RECORD, Entry]]:
    """Each run with its numbers; the single-task runs of a seed as one."""
    single: dict[int, list[RECORD]] = defaultdict(list)
    for row in rows:
        if row["method"] == STL:
            single[int(row["seed"])].append(row)
        elif (entry := make_entry(int(row["seed"]), [row], suite)) is not None:
            yield row, entry
    for seed, runs in single.items():
        if (entry := make_entry(seed, runs, suite)) is not None:
            yield runs[0], entry


def page_of(rows: Sequence[RECORD], results: Path = RESULTS) -> str:
    comparison = compare(rows)
    suite, folder = comparison.suite, results / "runs" / rows[0]["suite"]
    modes = sorted({f"{row['mode']}, batch {row['batch_size']}" for row in rows})
    epochs = sorted({int(row["epochs"]) for row in rows})
    parts = [f"# {suite.name}: results", standing(comparison)]
    table = make_table(comparison)
    names = {metric.name for metric in comparison.metrics}
    wide = len(names) > MOST_COLUMNS
    whole = markdown(table).split("\n", 1)[1].strip()  # without its own heading
    few = type(table)(table.title, [c for c in table.columns if c.key not in names], table.lines, table.notes)
    parts.append(markdown(few).split("\n", 1)[1].strip() if wide else whole)
    parts.append(f"Trained for {', '.join(map(str, epochs))} epochs (published: {suite.protocol.epochs}) with "
                 f"{'; '.join(modes)}. {(folder / 'notes.md').read_text().strip()}")  # fmt: skip
    parts += [*tried(rows), *timing(folder)]
    if wide:
        parts.append(per_metric(comparison))
    return "\n\n".join(parts) + "\n"


def standing(comparison: Comparison) -> str:
    """The first sentence: how LDC-MTL does among our own rows, by delta-m against our own single-task runs."""
    base, told = comparison.stl, "against our own single-task runs"
    if base is None:
        base, told = comparison.published_stl, "against the published single-task numbers (of other data)"
    if base is None:
        return "There are no single-task runs yet, and so no delta-m."
    found = {
        row.label: [comparison.delta_m(entry.metrics, base, by_task=False) for entry in row.entries]
        for row in comparison.rows
        if row.method != STL and row.entries
    }
    means = {label: sum(values) / len(values) for label, values in found.items()}
    best, ldc = min(means, key=means.__getitem__), means.get("ldc")
    if ldc is None:
        return f"LDC-MTL has not been trained here yet. The best row is {display_name(best)} ({means[best]:.2f})."
    if best == "ldc":
        second = min((label for label in means if label != "ldc"), key=means.__getitem__)
        place = f"the best of the rows, before {display_name(second)} ({means[second]:.2f})"
    else:
        place = f"{ldc - means[best]:.2f} behind {display_name(best)} ({means[best]:.2f})"
    spread = pooled([found["ldc"], found[best if best != "ldc" else second]])
    apart = "" if spread is None else f"; the pooled deviation over seeds of the two is {spread:.2f}"
    return f"LDC-MTL reaches a delta-m of {ldc:.2f} {told}, {place}{apart}."


def pooled(groups: Sequence[Sequence[float]]) -> float | None:
    """The pooled standard deviation of several methods' seeds; None where none has two."""
    freedom = sum(len(group) - 1 for group in groups)
    squares = sum((value - sum(group) / len(group)) ** 2 for group in groups for value in group)
    return (squares / freedom) ** 0.5 if freedom else None


def tried(rows: Sequence[RECORD]) -> list[str]:
    """What every method was given to choose from, and what it chose."""
    methods = list(dict.fromkeys(row["method"] for row in rows if row["method"] != STL))
    by_rate = {m: {r["rate"]: r["score"] for r in rows if r["method"] == m and r["seed"] == "0"} for m in methods}
    rates = list(dict.fromkeys(rate for found in by_rate.values() for rate in found))
    if len(rates) < 2 or not any(len(found) > 1 for found in by_rate.values()):
        return []
    lines = ["| method | " + " | ".join(rates) + " |", "|---|" + "---:|" * len(rates)]
    for method, found in by_rate.items():
        cells = [f"**{float(found[r]):.4f}**" if r == best_rate(rows, method) else f"{float(found[r]):.4f}"
                 if r in found else "" for r in rates]  # fmt: skip
        lines.append(f"| {display_name(method)} | " + " | ".join(cells) + " |")
    return [
        "## Learning rates tried",
        "Every method had the same trials: each rate on seed 0, chosen by the validation score (the mean of the "
        "metrics), in bold. `0.001/3x0.3` is 1e-3, times 0.3 every 3 epochs. Single-task runs have the published rate.",
        "\n".join(lines),
    ]


def timing(folder: Path) -> list[str]:
    """What `vision_gpu.py time` measured, if it has been run."""
    parts = []
    for name, title in (("modes", "What a step costs in each mode"), ("methods", "What each method's step costs")):
        if (path := folder / f"{name}.csv").exists():
            with path.open(newline="") as file:
                found = list(csv.reader(file))
            lines = ["| " + " | ".join(cells) + " |" for cells in found]
            parts += [f"## {title}", "\n".join([lines[0], "|---|" + "---:|" * (len(found[0]) - 1), *lines[1:]])]
    if parts and (path := folder / "machine.json").exists():
        parts.append(f"Measured on {json.loads(path.read_text())['machine']}, interleaved; the first row is 1.")
    return parts


def per_metric(comparison: Comparison) -> str:
    """Every metric, a column a method: means over seeds."""
    rows = [row for row in comparison.rows if row.entries]
    lines = ["| metric | " + " | ".join(display_name(row.label) for row in rows) + " |", "|---|" + "---:|" * len(rows)]
    for metric in comparison.metrics:
        values = [row.values(metric.name) for row in rows]
        cells = [f"{sum(found) / len(found):.{metric.digits}f}" for found in values]
        lines.append(f"| {metric.name} | " + " | ".join(cells) + " |")
    return "## Each metric, mean over seeds\n\n" + "\n".join(lines)


if __name__ == "__main__":
    main()
