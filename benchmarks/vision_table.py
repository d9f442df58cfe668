"""Tables from the rows that vision_gpu.py wrote: OUT/<suite>.csv in full, OUT/<suite>.md to read.

    python benchmarks/vision_table.py results runs.csv [more.csv ...] --note "One sentence on the data."

delta-m is against the single-task runs among the rows; where only some tasks have one, the table is of those tasks.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from equipoise.report.collect import STL, Comparison, Entry, Row
from equipoise.report.render import markdown, to_csv
from equipoise.report.tables import make_table
from equipoise.suites import suite_class

MOST_COLUMNS = 12  # of metrics in the table to read


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--note", action="append", default=[], help="a sentence to stand under the table")
    parser.add_argument("--drop", action="append", default=[], help="a column's key whose numbers mean nothing here")
    options = parser.parse_args(arguments)
    groups: dict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    for path in options.runs:
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                groups[row["suite"], row["epochs"]].append(row)
    options.out.mkdir(parents=True, exist_ok=True)
    for (suite, epochs), rows in groups.items():
        comparison = compare(suite, epochs, rows, options.note)
        table = make_table(comparison)
        table = replace(table, columns=[column for column in table.columns if column.key not in options.drop])
        name = suite if sum(s == suite for s, _ in groups) == 1 else f"{suite}-{epochs}"
        (options.out / f"{name}.csv").write_text(to_csv(table))
        metrics = {metric.name for metric in comparison.metrics}
        if len(metrics) > MOST_COLUMNS:
            table = replace(table, columns=[column for column in table.columns if column.key not in metrics])
        (options.out / f"{name}.md").write_text(markdown(table))
        print(markdown(table))


def compare(name: str, epochs: str, rows: Sequence[dict[str, str]], notes: Sequence[str]) -> Comparison:
    suite = suite_class(name)
    single = [row for row in rows if row["method"] == STL]
    learnt = {m.name for m in suite.metrics if any(float(row[f"test:{m.name}"] or 0) for row in single)}
    metrics = [metric for metric in suite.metrics if not single or metric.name in learnt]
    by_method: dict[str, dict[int, list[dict[str, str]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        by_method[row["method"]][int(row["seed"])].append(row)
    made = []
    for method, seeds in sorted(by_method.items(), key=lambda item: (item[0] != STL, item[0] != "ls")):
        entries = [entry for seed, runs in sorted(seeds.items()) if (entry := make_entry(seed, runs, metrics))]
        made.append(Row(method, suite.presets[method].method if method in suite.presets else method, entries))
    modes = sorted({f"{row['mode']}, batch {row['batch_size']}" for row in rows})
    protocol = f"Protocol: {epochs} epochs (published: {suite.protocol.epochs}); {'; '.join(modes)}."
    some = [] if len(metrics) == len(suite.metrics) else [f"Only what single-task runs learnt: {len(metrics)} metrics."]
    return Comparison(suite, metrics, made, notes=[protocol, *some, *notes])


def make_entry(seed: int, runs: Sequence[dict[str, str]], metrics: Sequence) -> Entry | None:
    """One seed: its run, or its single-task runs together; None while some of those are missing."""
    values = {m.name: float(run[f"test:{m.name}"]) for run in runs for m in metrics if run[f"test:{m.name}"]}
    if len(values) < len(metrics):
        return None
    seconds = sum(float(run["milliseconds_per_step"]) for run in runs) / 1e3
    return Entry(seed, values, seconds, max(float(run["peak_mib"]) for run in runs) * 2**20, runs=())


if __name__ == "__main__":
    main()
