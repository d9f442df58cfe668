"""One self-contained html page: no network, no scripts but its own, every name escaped."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

import equipoise
from equipoise.report import charts, svg
from equipoise.report.collect import Comparison, count
from equipoise.report.colours import Colour, colours
from equipoise.report.diagnoses import diagnoses
from equipoise.report.render import cell_text, column_title, line_name, number, std_text
from equipoise.report.tables import Table, make_table, metrics_last
from equipoise.report.tradeoff import trade_off
from equipoise.runs import toml
from equipoise.runs.checkpoint import write_whole

_TIED = "\N{NO-BREAK SPACE}"


def write_page(path: Path, comparisons: Sequence[Comparison], *, published: bool = False) -> None:
    """Write the report of some comparisons."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, page(comparisons, published=published).encode())


def page(comparisons: Sequence[Comparison], *, published: bool = False) -> str:
    """The report as text."""
    sections = [_section(comparison, published) for comparison in comparisons]
    title = ", ".join(section["suite"] for section in sections) or "nothing yet"
    names = list(dict.fromkeys(name for section in sections for name in section["names"]))
    chosen = dict(zip(names, colours(names), strict=True))
    rules = [
        (f"#suite-{number}", index, chosen[name])
        for number, section in enumerate(sections, 1)
        for index, name in enumerate(section["names"])
    ]
    return render_page("page.html.j2", rules, title=title, sections=sections)


def render_page(template: str, rules: Sequence[tuple[str, int, Colour]], **content: Any) -> str:
    """A template of this package with its style and script inside it.

    rules: where on the page a method's number has which colour.
    """
    environment = Environment(
        loader=PackageLoader("equipoise.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.globals.update(
        svg=svg, number=number, std_text=std_text, column_title=column_title, line_name=line_name, breakable=breakable
    )
    script = _asset("page.js")
    return environment.get_template(template).render(
        **content,
        rules=rules,
        style=_asset("page.css"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        version=equipoise.__version__,
    )


def breakable(text: str) -> Markup:
    """The text, which may go on in a new line behind an underscore, but not before its arrow.

    >>> breakable("<5_o_Clock")
    Markup('&lt;5_<wbr>o_<wbr>Clock')
    """
    return Markup("_<wbr>").join(
        escape(part) for part in text.replace(" ↓", _TIED + "↓").replace(" ↑", _TIED + "↑").split("_")
    )


def _section(comparison: Comparison, published: bool) -> dict[str, Any]:
    """Everything the template shows of one suite."""
    table = make_table(comparison, published=published)
    return {
        "suite": comparison.suite.name,
        "summary": _summary(comparison),
        "headline": _headline(table),
        "table": metrics_last(table),
        "names": charts.names(comparison),
        "tasks": list(dict.fromkeys(metric.task for metric in comparison.metrics)),
        "metrics": charts.metric_panels(comparison),
        "losses": charts.loss_panels(comparison),
        "weights": charts.weight_panels(comparison),
        "spreads": charts.loss_spreads(comparison),
        "heats": charts.conflicts(comparison),
        "times": charts.time_bars(comparison),
        "memory": charts.memory_bars(comparison),
        "scatter": trade_off(comparison),
        "diagnoses": diagnoses(comparison),
        "hypergradients": charts.hypergradients(comparison),
        "configurations": _configurations(comparison),
    }


def _summary(comparison: Comparison) -> str:
    """One line on what was run, and on what."""
    runs = [run for row in comparison.rows for entry in row.entries for run in entry.runs]
    if not runs:
        return "No run is finished yet."
    seeds = sorted({run.config.seed for run in runs})
    machine = runs[0].environment
    device = machine.get("gpu") or f"{machine['threads']} of {machine['cores']} cores"
    return (
        f"{count(sum(bool(row.entries) for row in comparison.rows), 'method')}, {count(len(seeds), 'seed')}, "
        f"{count(max(run.config.epochs for run in runs), 'epoch')}, on {device} with torch {machine['torch']}."
    )


def _headline(table: Table) -> str:
    """The answer in a sentence: who has the least delta-m, and by how much."""
    column = next((column for column in table.columns if column.key.startswith("delta_m")), None)
    if column is None:
        return ""
    key = column.key
    ours = [line for line in table.lines if line.kind == "ours" and key in line.cells]
    ours.sort(key=lambda line: line.cells[key].mean)
    if len(ours) < 2:
        return ""
    first, second = ours[:2]
    gap = second.cells[key].mean - first.cells[key].mean
    noise = max(line.cells[key].std or 0.0 for line in (first, second))
    sure = "" if gap > noise else ", closer than the spread over seeds" if noise else ", on a single seed"
    return (
        f"Lowest {column.title}: {first.label} at {cell_text(first.cells[key], column)} %; "
        f"next is {second.label} at {cell_text(second.cells[key], column)} %{sure}."
    )


def _configurations(comparison: Comparison) -> list[tuple[str, str]]:
    """Each method's configuration as its run's file has it, of the first seed."""
    return [(row.label, toml.dumps(row.entries[0].runs[0].config.to_table())) for row in comparison.rows if row.entries]


def _asset(name: str) -> str:
    return files("equipoise.report").joinpath(name).read_text("utf-8")
