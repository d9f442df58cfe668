"""What a sweep found, as tables for the terminal."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rich.table import Column, Table

from equipoise.cli.common import console
from equipoise.ldc.single_loop import LDC
from equipoise.report.collect import STL, Comparison, Entry, Row
from equipoise.report.render import for_terminal, number
from equipoise.report.tables import display_name, make_table
from equipoise.runs.sweep import beaten_by, pareto_front, validation_score
from equipoise.runs.tune import Trial


class _Scores:
    """The delta-m of entries: of the test part against our single-task runs if there are, else the published ones."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        own = comparison.stl
        self.base = own if own is not None else comparison.published_stl
        self.against = "own STL" if own is not None else "published STL"

    def test(self, entry: Entry) -> float:
        assert self.base is not None
        return self.comparison.delta_m(entry.metrics, self.base, by_task=False)

    def columns(self) -> list[str]:
        """Titles: the test part's delta-m, or the metrics where nothing is there to compare with."""
        if self.base is not None:
            return [f"Δm, {self.against}, test (%) ↓"]
        return [f"{metric.name} {'↑' if metric.higher_is_better else '↓'}" for metric in self.comparison.metrics]

    def cells(self, row: Row) -> list[str]:
        if self.base is not None:
            return [spread([self.test(entry) for entry in row.entries])]
        return [spread(row.values(metric.name), metric.digits) for metric in self.comparison.metrics]


def lambdas(comparison: Comparison, method: str) -> None:
    """A row for each lambda: what it was chosen by, and what the test part says."""
    rows = [(value, row) for row in comparison.rows if row.entries and (value := _lambda_of(row)) is not None]
    rows.sort(key=lambda pair: pair[0])
    scores, validated = _Scores(comparison), {row.label: validation(row) for _, row in rows}
    chosen = min((v for v in validated.values() if v), key=statistics.fmean, default=None)
    table = _table(
        "lambda",
        *(["Δm, published STL, validation (%) ↓"] if chosen else []),
        *scores.columns(),
        title=f"{display_name(method)}: lambda",
    )
    for value, row in rows:
        found = validated[row.label]
        mine = [spread(found) if found else "—"] if chosen else []
        table.add_row(f"{value:g}", *mine, *scores.cells(row), style="bold" if found and found == chosen else None)
    console.print(table)
    if chosen:
        best = next(value for value, row in rows if validated[row.label] == chosen)
        console.print(f"Bold: the least on the validation part, lambda = {best:g}. {_seeds(rows[0][1])}")


def front(comparison: Comparison) -> None:
    """A row for each weighting and each method beside them: whether any other is as good in everything and better."""
    rows = [row for row in comparison.rows if row.entries and row.method != STL]
    up = {metric.name: metric.higher_is_better for metric in comparison.metrics}
    means = {row.label: {name: statistics.fmean(row.values(name)) for name in up} for row in rows}
    on_front = set(pareto_front(means, up))
    scores = _Scores(comparison)
    few = list(comparison.metrics) if len(up) <= 4 else []
    titles = [f"{metric.name} {'↑' if metric.higher_is_better else '↓'}" for metric in few]
    extra = scores.columns() if scores.base is not None or not few else []
    table = _table("method", *titles, *extra, "front", title="Fixed weights beside balancing")
    for row in rows:
        cells = [spread(row.values(metric.name), metric.digits) for metric in few]
        cells += scores.cells(row) if extra else []
        table.add_row(display_name(row.label), *cells, "●" if row.label in on_front else "")
    console.print(table)
    console.print(f"●: no other row is as good in all of {len(up)} metrics and better in one. {_seeds(rows[0])}")
    for row in rows:
        if row.method != "ls":
            by = beaten_by(row.label, means, up)
            names = ", ".join(map(display_name, by))
            console.print(
                f"{display_name(row.label)} is {f'beaten in everything by {names}' if by else 'on the front'}."
            )


def orders(comparison: Comparison) -> None:
    """A column for each seed, as the paper's table has a row for each, and the difference the order makes."""
    scores = _Scores(comparison)
    if scores.base is None:
        console.print(for_terminal(make_table(comparison), console.width))
        return
    rows = [row for row in comparison.rows if row.entries]
    rows.sort(key=lambda row: not row.label.endswith("pairs=chain"))
    seeds = sorted({entry.seed for row in rows for entry in row.entries})
    table = _table(
        "pairs", *(f"seed {seed}" for seed in seeds), "mean", "against the chain", title="The order of the tasks"
    )
    found = {row.label: {entry.seed: scores.test(entry) for entry in row.entries} for row in rows}
    chain = next((values for label, values in found.items() if label.endswith("pairs=chain")), {})
    for label, values in found.items():
        shared = [values[seed] - chain[seed] for seed in seeds if seed in values and seed in chain]
        each = [f"{values[seed]:.2f}" if seed in values else "—" for seed in seeds]
        moved = "" if values is chain or not shared else spread(shared, signed=True)
        table.add_row(display_name(label), *each, spread(list(values.values())), moved)
    console.print(table)
    console.print(f"Δm of the test part, {scores.against}, in percent. Differences are seed by seed. {_seeds(rows[0])}")


def gains(comparison: Comparison, found: Mapping[tuple[str, int], Sequence[Trial]], budget: int) -> Comparison:
    """What each method's best trials gain over those of LS; returns the comparison of the best ones alone."""
    scores = _Scores(comparison)
    entries = {(row.label, entry.seed): entry for row in comparison.rows for entry in row.entries}
    plain: dict[str, dict[int, Entry]] = {}
    tuned: dict[str, dict[int, Entry]] = {}
    for (method, seed), trials in found.items():
        if not trials:
            continue
        first, best = trials[0], min(trials, key=lambda trial: trial.score)
        if first.number == 0:
            plain.setdefault(method, {})[seed] = entries[first.configs[0].label, seed]
        tuned.setdefault(method, {})[seed] = entries[best.configs[0].label, seed]
    table = _table(
        "method",
        "as it is",
        "tuned",
        "gain over tuned LS",
        "better on",
        title=f"One budget: {budget} runs each, a seed",
    )
    fixed = {seed: scores.test(entry) for seed, entry in tuned.get("ls", {}).items()}
    for method, mine in tuned.items():
        values = {seed: scores.test(entry) for seed, entry in mine.items()}
        before = [scores.test(entry) for entry in plain.get(method, {}).values()]
        gain = [fixed[seed] - value for seed, value in values.items() if seed in fixed]
        better = f"{sum(g > 0 for g in gain)} of {len(gain)}"
        compared = ["", ""] if method == "ls" or not gain else [spread(gain, signed=True), better]
        table.add_row(display_name(method), spread(before) if before else "—", spread(list(values.values())), *compared)
    console.print(table)
    seeds = sorted({seed for _, seed in found})
    console.print(
        f"Δm of the test part, {scores.against}, in percent; a gain is in its points, seed by seed, and counts where "
        f"it exceeds its ±. Every method had {budget} runs on each seed, the first as it is; the others varied the "
        "learning rate and the method's options (of LS the weights); the best on the validation part of its seed "
        "stands here. "
        f"{_over(seeds)}"
    )
    rows = [
        Row(f"{method}:tuned", _method_of(mine), [mine[seed] for seed in sorted(mine)])
        for method, mine in tuned.items()
    ]
    return replace(comparison, rows=[*(row for row in comparison.rows if row.method == STL), *rows])


def validation(row: Row) -> list[float]:
    """Each seed's validation score; empty where the suite has none."""
    found = [
        validation_score(run.config, run.result)
        for entry in row.entries
        for run in entry.runs
        if run.result is not None
    ]
    return [score for score in found if score is not None]


def spread(values: Sequence[float], digits: int = 2, *, signed: bool = False) -> str:
    """The mean and the deviation over seeds.

    >>> spread([1.0, 3.0]), spread([2.5], signed=True)
    ('2.00 ± 1.41', '+2.50')
    """
    mean = statistics.fmean(values)
    text = f"{mean:+.{digits}f}" if signed else number(mean, digits)
    return f"{text} ± {number(statistics.stdev(values), digits)}" if len(values) > 1 else text


def _table(first: str, *titles: str, title: str) -> Table:
    """Names are broken rather than cut; numbers stand to the right."""
    columns = [Column(column, justify="right", overflow="fold") for column in titles]
    return Table(Column(first, overflow="fold"), *columns, title=title)


def _seeds(row: Row) -> str:
    return _over([entry.seed for entry in row.entries])


def _over(seeds: Sequence[int]) -> str:
    count = len(seeds)
    return f"± is the standard deviation over {count} seeds." if count > 1 else "One seed only: nothing says how sure."


def _lambda_of(row: Row) -> float | None:
    config = row.entries[0].runs[0].config
    return LDC(tasks=config.tasks, **config.options).f_factor if row.method == "ldc" else None


def _method_of(entries: Mapping[int, Entry]) -> str:
    return next(iter(entries.values())).runs[0].config.method
