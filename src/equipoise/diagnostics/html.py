"""A diagnosis for a notebook: one fragment, every name escaped, colours that suit light and dark."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

from equipoise.diagnostics.text import facts, short, table

if TYPE_CHECKING:
    from equipoise.diagnostics.diagnosis import Diagnosis

MATRIX = 40  # tasks up to which the cosines are drawn
LABELLED = 12  # tasks up to which they are written too
NAME, VALUE = "text-align:left;padding:2px 12px 2px 0", "text-align:right;padding:2px 0 2px 16px"


def as_html(diagnosis: Diagnosis) -> str:
    """The whole diagnosis as html."""
    header, rows = table(diagnosis)
    parts = [_table(header, rows)]
    if len(rows) < len(diagnosis.tasks):
        parts.append(f"<p>{len(rows)} of {len(diagnosis.tasks)} tasks: the largest and the smallest.</p>")
    parts.append("".join(f"<p><b>{name}</b> {escape(text)}</p>" for name, text in facts(diagnosis)))
    conflict = diagnosis.look.conflict
    if conflict is not None and 2 < len(diagnosis.tasks) <= MATRIX:
        parts.append("<p><b>Cosines</b> between the tasks' gradients (blue: they agree, red: they conflict)</p>")
        parts.append(_matrix(list(diagnosis.tasks), conflict.cosines.tolist()))
    if diagnosis.findings:
        items = "".join(f"<li>{escape(finding.text)}</li>" for finding in diagnosis.findings)
        parts.append(f"<p><b>Findings</b></p><ul>{items}</ul>")
    parts.append(f"<p><b>So:</b> {escape(diagnosis.recommendation)}</p>")
    return f'<div style="max-width:60em;overflow-x:auto">{"".join(parts)}</div>'


def _table(header: list[str], rows: list[list[str]]) -> str:
    head = "".join(f'<th style="{NAME if i == 0 else VALUE}">{escape(title)}</th>' for i, title in enumerate(header))
    body = "".join(
        f'<tr><th style="{NAME};font-weight:normal" title="{escape(row[0])}">{escape(short(row[0]))}</th>'
        + "".join(f'<td style="{VALUE}">{escape(cell)}</td>' for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    return f"<table style='border-collapse:collapse'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _matrix(names: list[str], rows: list[list[float]]) -> str:
    written = len(names) <= LABELLED
    body = "".join(
        f'<tr><th style="{NAME};font-weight:normal" title="{escape(name)}">'
        + f"{escape(short(name)) if written else ''}</th>"
        + "".join(_cell(value, f"{name}, {other}", written) for other, value in zip(names, row, strict=True))
        + "</tr>"
        for name, row in zip(names, rows, strict=True)
    )
    return f'<table style="border-collapse:collapse">{body}</table>'


def _cell(value: float, title: str, written: bool) -> str:
    """Half-transparent colours, so that the page's own ground and ink show through."""
    text = "-" if math.isnan(value) else f"{value:.2f}"
    size = 0.0 if math.isnan(value) else 0.6 * abs(value)
    colour = "47,111,219" if value >= 0 else "209,73,91"
    padding = "4px 7px" if written else "4px"
    return (
        f'<td title="{escape(title)}: {text}" style="text-align:right;padding:{padding};'
        f'background:rgba({colour},{size:.2f})">{text if written else ""}</td>'
    )
