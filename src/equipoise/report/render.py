"""A table in markdown, csv, LaTeX (booktabs), or for the terminal."""

from __future__ import annotations

import csv
import io
import math
import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from equipoise.report.tables import Cell, Column, Line, Mark, Table

if TYPE_CHECKING:
    from rich.console import Group

_PAGE, _ROWS = 66, 36  # letters across, and rows down, a page of LaTeX's article
_LATIN = 0x17F  # pdflatex knows the letters up to here by itself
_NAME, _WORD = 26, 9  # letters after which the terminal's table breaks a name, and a heading at the least
_ARROWS = {"lower": "↓", "higher": "↑", None: ""}
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "±": r"$\pm$", "µ": r"$\mu$", "↓": r"$\downarrow$", "↑": r"$\uparrow$", "†": r"$^\dagger$", "×": r"$\times$",
    "—": "--", "…": r"\dots{}",
}  # fmt: skip
_LATEX.update({
    "α": r"$\alpha$", "β": r"$\beta$", "γ": r"$\gamma$", "δ": r"$\delta$", "ε": r"$\epsilon$", "λ": r"$\lambda$",
    "μ": r"$\mu$", "ρ": r"$\rho$", "σ": r"$\sigma$", "τ": r"$\tau$", "ω": r"$\omega$", "Δ": r"$\Delta$",
})  # fmt: skip


def markdown(table: Table) -> str:
    """GitHub's pipes; best bold, second best underlined."""
    head = ["method", *(_escape_pipes(column_title(column)) for column in table.columns)]
    rows = [
        [_escape_pipes(line_name(line)), *(_marked_up(line, c, "**{}**", "<u>{}</u>") for c in table.columns)]
        for line in table.lines
    ]
    lines = [head, ["---", *("---:" for _ in table.columns)], *rows]
    text = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    notes = "\n".join(f"- {_escape_pipes(note)}" for note in table.notes)
    return f"### {_escape_pipes(table.title)}\n\n{text}\n\n{notes}\n" if notes else f"### {table.title}\n\n{text}\n"


def to_csv(table: Table) -> str:
    """Full precision: a column for each mean, and one for its deviation."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [name for column in table.columns for name in (column.key, f"{column.key}_std")]
    writer.writerow(["method", "source", "seeds", *names])
    for line in table.lines:
        cells = [line.cells.get(column.key) for column in table.columns]
        numbers = [value for cell in cells for value in ((cell.mean, cell.std) if cell else (None, None))]
        source = "published" if line.kind == "published" else "own"
        writer.writerow([line.label, source, line.seeds or "", *("" if n is None else repr(n) for n in numbers)])
    return text.getvalue()


def latex(table: Table) -> str:
    """A table environment for the booktabs package, with its notes as caption.

    A table wider than long stands on its side, a metric a row, and one too wide for a page is made smaller.
    """
    head = ["method", *(column_title(column) for column in table.columns)]
    names = [line_name(line) for line in table.lines]
    rows = [
        [_marked_up(line, c, r"\textbf{{{}}}", r"\underline{{{}}}", tex=True) for c in table.columns]
        for line in table.lines
    ]
    wide = _page_letters(
        head, names, [[cell_text(line.cells.get(c.key), c) for c in table.columns] for line in table.lines]
    )
    kinds = [line.kind for line in table.lines]
    starts = {place for place in range(1, len(kinds)) if kinds[place] != kinds[place - 1]}
    aligned = "l" + "r" * len(table.columns)
    if wide > _PAGE and len(table.columns) > len(table.lines):
        texts = [[cell_text(line.cells.get(c.key), c) for line in table.lines] for c in table.columns]
        wide = _page_letters(["", *names], head[1:], texts)
        aligned = "l" + "".join(("@{\\hskip 2em}r" if place in starts else "r") for place in range(len(kinds)))
        head, names, rows, starts = ["", *names], head[1:], _turn(rows), set()
    body = [_tex_row(head), r"\midrule"]
    for place, (name, cells) in enumerate(zip(names, rows, strict=True)):
        body += [r"\midrule"] if place in starts else []
        body.append(" & ".join([_tex(name), *cells]) + r" \\")
    tabular = [rf"\begin{{tabular}}{{{aligned}}}", r"\toprule", *body, r"\bottomrule", r"\end{tabular}"]
    needs = [r"\usepackage{booktabs}"]
    if wide > _PAGE:
        tabular = [r"\resizebox{\textwidth}{!}{%", *tabular, "}"]
        needs.append(r"\usepackage{graphicx}")
    small = [r"\footnotesize"] if len(rows) > _ROWS else []
    caption = rf"\caption{{{_tex(table.title)}. {_tex(' '.join(table.notes))}}}"
    lines = [r"\begin{table}", r"\centering", caption, *small, *tabular, r"\end{table}"]
    unknown = sorted({letter for line in lines for letter in line if ord(letter) > _LATIN})
    if unknown:
        needs.append(f"and lualatex with a font that has {' '.join(unknown)}")
    return "\n".join([f"% needs {', '.join(needs)}", *lines, ""])


def _page_letters(head: Sequence[str], names: Sequence[str], texts: Sequence[Sequence[str]]) -> int:
    """About how many letters wide the table is."""
    rows = [head, *([name, *row] for name, row in zip(names, texts, strict=True))]
    return sum(max(map(len, column)) + 2 for column in zip(*rows, strict=True))


def for_terminal(table: Table, width: int) -> Group:
    """The table for rich, in one piece if it fits: on its side, or without deviations, or both; else in several."""
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    if not table.lines:  # no run has finished
        return Group(*(Text(note, "dim") for note in table.notes))
    layouts = [_Layout(table, turned, spread) for spread in (True, False) for turned in (False, True)]
    layout = next((layout for layout in layouts if layout.width(layout.columns) <= width), layouts[-2])
    pieces: list[RichTable] = []
    for columns in layout.pieces(width):
        shown = RichTable(title=Text(table.title) if not pieces else None)
        shown.add_column("" if layout.turned else "method")
        for column in columns:
            shown.add_column(Text(layout.head[column]), justify="right")
        for name, row, styles in zip(layout.left, layout.cells, layout.styles, strict=True):
            shown.add_row(Text(name), *(Text(row[column], styles[column]) for column in columns))
        pieces.append(shown)
    notes = list(table.notes)
    if layout.texts != layouts[0].texts:
        notes = [note for note in notes if not note.startswith("±")] + ["Deviations are left out for want of room."]
    return Group(*pieces, *(Text(note, "dim") for note in notes))


class _Layout:
    """How wide a table's columns are in a terminal: as it is or turned on its side, with deviations or without."""

    def __init__(self, table: Table, turned: bool, spread: bool) -> None:
        self.turned = turned
        names = [line_name(line) for line in table.lines]
        titles = [column_title(column) for column in table.columns]
        styles = {"best": "bold green", "second": "underline", None: ""}
        self.texts = [[cell_text(line.cells.get(c.key), c, spread) for c in table.columns] for line in table.lines]
        marks = [[styles[_mark_of(line, column)] for column in table.columns] for line in table.lines]
        self.cells, self.styles = (_turn(self.texts), _turn(marks)) if turned else (self.texts, marks)
        head, left = (names, titles) if turned else (titles, names)
        self.head = [_wrap(title, max(map(len, cells))) for title, *cells in zip(head, *self.cells, strict=True)]
        self.left = [_wrap(name, _NAME) for name in left]
        self.columns = range(len(self.head))

    def width(self, columns: Sequence[int]) -> int:
        """Of the names and these columns, with the lines and spaces between."""
        inside = [max(_width(text) for text in (self.head[c], *(row[c] for row in self.cells))) for c in columns]
        return max(map(_width, self.left)) + sum(inside) + 3 * len(inside) + 4

    def pieces(self, width: int) -> list[list[int]]:
        """The columns, as many to a piece as fit."""
        pieces: list[list[int]] = [[]]
        for column in self.columns:
            if pieces[-1] and self.width([*pieces[-1], column]) > width:
                pieces.append([])
            pieces[-1].append(column)
        return pieces


def _wrap(text: str, width: int) -> str:
    """Broken at spaces, and in a word only where it is longer than a name may be."""
    longest = max(map(len, text.split()), default=0)
    return textwrap.fill(text, max(width, _WORD, min(longest, _NAME)))


def _width(text: str) -> int:
    return max(map(len, text.split("\n")))


def number(value: float, digits: int) -> str:
    """A number as the tables show it: its digits, or scientific where they would hide it.

    >>> number(0.12345, 3), number(1234567.0, 1), number(0.000012, 3), number(float("nan"), 2)
    ('0.123', '1.23e+06', '1.2e-05', '—')
    """
    if math.isnan(value):
        return "—"
    if value != 0 and not 10.0**-digits / 2 <= abs(value) < 1e6:
        return f"{value:.3g}"
    return f"{value:.{digits}f}"


def cell_text(cell: Cell | None, column: Column, spread: bool = True) -> str:
    """The mean, and its deviation where there is one."""
    if cell is None:
        return "—"
    std = std_text(cell, column)
    return number(cell.mean, column.digits) + (f" ± {std}" if std and spread else "")


def std_text(cell: Cell, column: Column) -> str:
    """The deviation with as many digits as the mean; empty where there is none."""
    if cell.std is None:
        return ""
    fixed = "e" not in number(cell.mean, column.digits)
    return f"{cell.std:.{column.digits}f}" if fixed and cell.std < 1e6 else f"{cell.std:.3g}"


def _turn(rows: list[list[str]]) -> list[list[str]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _mark_of(line: Line, column: Column) -> Mark | None:
    cell = line.cells.get(column.key)
    return cell.mark if cell else None


def column_title(column: Column) -> str:
    """Name, unit, and which end is better."""
    unit = f" ({column.unit})" if column.unit else ""
    return f"{column.title}{unit} {_ARROWS[column.better]}".strip()


def line_name(line: Line) -> str:
    """The label; a published row's has a dagger."""
    return f"{line.label}†" if line.kind == "published" else line.label


def _marked_up(line: Line, column: Column, best: str, second: str, *, tex: bool = False) -> str:
    cell = line.cells.get(column.key)
    text = _tex(cell_text(cell, column)) if tex else cell_text(cell, column)
    return {"best": best, "second": second, None: "{}"}[_mark_of(line, column)].format(text)


def _escape_pipes(text: str) -> str:
    """Text that cannot end a cell, nor be taken for html or markup."""
    return re.sub(r"([\\|*_`\[\]])", r"\\\1", text).replace("&", "&amp;").replace("<", "&lt;").replace("\n", " ")


def _tex(text: str) -> str:
    """Text for LaTeX on one line: a blank line would end a caption."""
    return "".join(_LATEX.get(letter, letter) for letter in " ".join(text.split()))


def _tex_row(cells: list[str]) -> str:
    return " & ".join(map(_tex, cells)) + r" \\"
