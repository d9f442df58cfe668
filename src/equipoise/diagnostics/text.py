"""A diagnosis as text for a terminal, and the pieces that its html shares."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from equipoise.diagnostics.diagnosis import Diagnosis

SHOWN = 12  # tasks in the table; of more, those at both ends
MATRIX = 10  # tasks up to which the cosines are printed
WIDTH = 24  # of a task's name
COLUMN = 5  # of a column of cosines
PAGE = 80  # characters a line


def number(value: float | None) -> str:
    """A number to three digits; a dash where there is none."""
    return "-" if value is None or math.isnan(value) else f"{value:.3g}"


def shown_tasks(diagnosis: Diagnosis) -> list[int]:
    """The tasks in the table: all, or of many those with the largest and the smallest gradients (or losses)."""
    look = diagnosis.look
    sizes = list(look.losses) if look.conflict is None else look.conflict.norms.tolist()
    places = list(range(len(sizes)))
    if len(places) <= SHOWN:
        return places
    order = sorted((i for i in places if look.present[i] and not math.isnan(sizes[i])), key=lambda i: -sizes[i])
    return [*order[: SHOWN // 2], *order[-(SHOWN // 2) :]] if len(order) > SHOWN else order


def table(diagnosis: Diagnosis) -> tuple[list[str], list[list[str]]]:
    """The header and the rows of the tasks shown."""
    look = diagnosis.look
    norms = None if look.conflict is None else look.conflict.norms.tolist()
    columns = {"loss": look.losses, "gradient": norms, "weight": look.weights, "part of the pull": look.shares}
    kept = {title: values for title, values in columns.items() if values is not None}
    rows = [
        [diagnosis.tasks[i], *("absent" if not look.present[i] else number(values[i]) for values in kept.values())]
        for i in shown_tasks(diagnosis)
    ]
    return ["task", *kept], rows


def facts(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Titled lines: losses, gradients, stationarity, cost."""
    look, costs = diagnosis.look, diagnosis.costs
    lines = []
    spread = look.discrepancy
    if spread is not None:
        text = (
            f"mean {number(spread.mean)}, std {number(spread.std)}, from {number(spread.min)} to {number(spread.max)}"
        )
        ratio = f", ratio {number(spread.ratio)}" if not math.isnan(spread.ratio) else ""
        lines.append(("Losses", text + ratio))
    if look.conflict is not None:
        pairs = len(look.conflict.pairs)
        text = f"norms {number(look.conflict.spread)} times apart"
        if pairs:
            text += (
                f"; {round(look.conflict.conflicting * pairs)} of {pairs} pairs conflict (cosine below 0), "
                f"{round(look.conflict.opposed * pairs)} clearly (below -0.1); lowest cosine {look.conflict.lowest:.2f}"
            )
        lines.append(("Gradients", text))
    if look.stationarity is not None:
        point = look.stationarity
        relative = number(point.relative)
        lines.append(("Stationarity", f"min |Gw|^2 = {number(point.value)}, {relative} of the shortest gradient's"))
    if costs is not None:
        lines.append(("Cost", cost_text(diagnosis)))
    return lines


def cost_text(diagnosis: Diagnosis) -> str:
    """The prices, in one line."""
    costs = diagnosis.costs
    assert costs is not None
    priced = [
        ("gradients at the features", costs.features),
        ("exact gradients of parameters", costs.parameters),
        ("a second forward", costs.second_forward),
    ]
    what = "forward and backward" if costs.with_forward else "backward"
    texts = [f"{name} {value:.2f}" for name, value in priced if value is not None]
    return f"of a {what}: loss-only methods 1 ({costs.loss_only_ms:.3g} ms), {', '.join(texts)}"


def as_text(diagnosis: Diagnosis) -> str:
    """The whole diagnosis for a terminal."""
    look = diagnosis.look
    here = len(look.here)
    title = f"{here} of {len(look.present)} tasks" if here < len(look.present) else f"{here} tasks"
    if diagnosis.steps is not None:
        title += f", {diagnosis.steps} steps seen" + (f", the last look at step {look.step}" if look.step else "")
    header, rows = table(diagnosis)
    lines = [title, "", *_aligned(header, rows)]
    if len(rows) < len(look.present):
        lines.append(f"({len(rows)} of {len(look.present)}: the largest and the smallest)")
    lines.append("")
    for name, text in facts(diagnosis):
        lines += _wrapped(f"{name:<14}", text)
    if look.conflict is not None and 2 < len(look.present) <= MATRIX:
        lines += ["", "Cosines", *_matrix(diagnosis)]
    if diagnosis.findings:
        lines += ["", "Findings"]
        for finding in diagnosis.findings:
            lines += _wrapped("- ", finding.text)
    return "\n".join([*lines, "", *_wrapped("So: ", diagnosis.recommendation)])


def short(name: str, width: int = WIDTH) -> str:
    """A name that a table has room for, on one line."""
    line = " ".join(name.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"


def _wrapped(title: str, text: str) -> list[str]:
    """A paragraph behind its title, as wide as a terminal."""
    return textwrap.wrap(
        text, PAGE, initial_indent=title, subsequent_indent=" " * len(title), break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def _aligned(header: list[str], rows: list[list[str]]) -> list[str]:
    cells = [header, *([short(row[0]), *row[1:]] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]


def _matrix(diagnosis: Diagnosis) -> list[str]:
    assert diagnosis.look.conflict is not None
    rows = diagnosis.look.conflict.cosines.tolist()
    room = min(WIDTH, PAGE - (COLUMN + 2) * len(rows))
    cells = [
        [short(name, room), *("-" if math.isnan(value) else f"{value:.2f}" for value in row)]
        for name, row in zip(diagnosis.tasks, rows, strict=True)
    ]
    return _aligned(["", *(short(name, COLUMN) for name in diagnosis.tasks)], cells)
