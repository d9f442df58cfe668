"""LaTeX tables: whole, on the page, and compiled where there is a LaTeX."""

import re
import shutil
import subprocess

import pytest

from equipoise.report import render
from equipoise.report.tables import Cell, Column, Line, Table, make_table

AWKWARD = "\\ & % $ # _ { } ~ ^ < > ± µ ↓ † × — … α Δ é ß ² \" ' ` -- |"
DOCUMENT = r"""\documentclass{{article}}
\usepackage{{booktabs}}
\usepackage{{graphicx}}
\begin{{document}}
{}
\end{{document}}
"""


def grid(methods, metrics, name="metric", spread=None):
    """A table of any size, rows of all three kinds."""
    columns = [Column(f"k{i}", f"{name} {i}", "lower", 2, "%") for i in range(metrics)]
    kinds = ["stl", *["ours"] * (methods - 2), "published"]
    cells = {column.key: Cell(12.346, spread, "best") for column in columns}
    return Table("a title", columns, [Line(f"method {i}", cells, kind, 2) for i, kind in enumerate(kinds)], ["A note."])


TABLES = {
    "awkward": Table(
        AWKWARD,
        [Column("a", AWKWARD[:40], "lower", 2, "%"), Column("b", AWKWARD[40:], None, 1)],
        [Line(AWKWARD[:9], {"a": Cell(1.234, 0.5, "best"), "b": Cell(float("nan"))}, "ours", 2),
         Line(AWKWARD[9:], {"a": Cell(2e7, None, "second")}, "published")],
        [AWKWARD, "a line\n\nand another"],
    ),
    "small": grid(4, 3),
    "wide": grid(20, 14, spread=0.1),
    "forty tasks": grid(18, 47),
    "forty tasks, few methods": grid(4, 47, "5 o Clock Shadow", 0.25),
    "empty": Table("nothing", [Column("a", "a", "lower", 2)], []),
}  # fmt: skip


def rows_of(text):
    body = re.search(r"\\toprule\n(.*)\\bottomrule", text, re.DOTALL)[1]
    return [row.removesuffix(r" \\") for row in body.splitlines() if row.endswith(r"\\")]


@pytest.mark.parametrize("name", TABLES)
def test_every_row_has_a_cell_for_every_column(name):
    text = render.latex(TABLES[name])
    aligned = re.search(r"\\begin\{tabular\}\{(.*)\}", text)[1]
    columns = len(re.sub(r"@\{.*?\}", "", aligned))
    assert {len(re.findall(r"(?<!\\)&", row)) + 1 for row in rows_of(text)} == {columns}
    assert text.count(r"\begin{") == text.count(r"\end{")
    unescaped = re.sub(r"\\[{}]", "", text)
    assert unescaped.count("{") == unescaped.count("}")


def test_a_table_wider_than_long_stands_on_its_side():
    text = render.latex(grid(4, 47))
    rows = rows_of(text)
    assert len(rows) == 48
    assert rows[0] == r" & method 0 & method 1 & method 2 & method 3$^\dagger$"
    assert rows[1].startswith(r"metric 0 (\%) $\downarrow$ & \textbf{12.35}")
    assert r"\begin{tabular}{lr@{\hskip 2em}rr@{\hskip 2em}r}" in text  # room between the kinds of rows
    assert r"\resizebox" not in text


def test_only_a_table_too_wide_is_made_smaller():
    assert r"\resizebox" not in render.latex(grid(4, 3))
    assert r"\resizebox{\textwidth}" in render.latex(grid(18, 47))
    assert render.latex(grid(18, 47)).startswith(r"% needs \usepackage{booktabs}, \usepackage{graphicx}")


def test_letters_that_pdflatex_does_not_know_are_named():
    odd = Table("温度", [Column("a", "a", "lower", 2)], [Line("é", {"a": Cell(1.0)}, "ours")])
    assert render.latex(odd).splitlines()[0].endswith("lualatex with a font that has 度 温")
    assert "lualatex" not in render.latex(TABLES["awkward"])


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no pdflatex")
def test_it_compiles_and_stays_on_the_page(comparison, tmp_path):
    tables = [*TABLES.values(), make_table(comparison, published=True)]
    text = "\n\\clearpage\n".join(map(render.latex, tables))
    (tmp_path / "tables.tex").write_text(DOCUMENT.format(text), "utf-8")
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "tables.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    overfull = re.findall(r"Overfull \\hbox \((.*)pt too wide\)", done.stdout)
    assert all(float(width) < 20 for width in overfull), done.stdout[-3000:]
    assert "Missing character" not in done.stdout
    assert "Float too large" not in done.stdout
