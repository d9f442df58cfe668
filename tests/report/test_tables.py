"""Tables: the right numbers, marked and annotated, in every format."""

import csv
import io
import statistics

import pytest
from rich.console import Console

from equipoise.metrics.delta_m import delta_m
from equipoise.report import render
from equipoise.report.collect import collect
from equipoise.report.tables import Cell, Column, Line, Table, make_table
from equipoise.runs.compare import plan
from equipoise.runs.store import read_run
from equipoise.runs.train import train

UP = {"near": False, "far": False, "odd score": True}


def lines_of(table):
    return {line.label: line for line in table.lines}


def results(folder, label):
    return [read_run(folder / "twin" / label / f"seed-{seed}").result for seed in (0, 1)]


def test_means_and_deviations_over_seeds(folder, comparison):
    line = lines_of(make_table(comparison))["LS"]
    values = [result["metrics"]["far"] for result in results(folder, "ls")]
    assert line.cells["far"].mean == pytest.approx(statistics.fmean(values))
    assert line.cells["far"].std == pytest.approx(statistics.stdev(values))
    assert line.seeds == 2


def test_single_task_rows_are_put_together_from_their_runs(folder, comparison):
    line = lines_of(make_table(comparison))["STL"]
    for task, metric in enumerate(("near", "far", "odd score")):
        values = [result["metrics"][metric] for result in results(folder, f"stl/task-{task}")]
        assert line.cells[metric].mean == pytest.approx(statistics.fmean(values))


def test_delta_m_against_our_own_and_the_published_single_tasks(folder, comparison):
    table = make_table(comparison)
    ours = {name: cell.mean for name, cell in lines_of(table)["STL"].cells.items() if name in UP}
    for key, base in (("delta_m_own", ours), ("delta_m_published", {"near": 0.5, "far": 40.0, "odd score": 0.4})):
        expected = [delta_m(result["metrics"], base, UP) for result in results(folder, "ldc")]
        assert lines_of(table)["LDC"].cells[key].mean == pytest.approx(statistics.fmean(expected))
    assert "delta_m_own" not in lines_of(table)["STL"].cells
    assert "delta_m_published" in lines_of(table)["STL"].cells


def test_delta_m_by_task_stands_beside_where_a_task_has_several_metrics(twin_suites, tmp_path):
    for config in plan("pair", ["ls"], [0], {"epochs": 1}):
        train(config, tmp_path)
    (found,) = collect([tmp_path])
    table = make_table(found)
    cells = table.lines[0].cells
    by_metric = [100 * (cells[m.name].mean / b - 1) for m, b in zip(found.metrics, (0.5, 40.0, 0.4), strict=True)]
    by_metric[2] *= -1
    assert cells["delta_m_published"].mean == pytest.approx(statistics.fmean(by_metric))
    by_task = (by_metric[0] + (by_metric[1] + by_metric[2]) / 2) / 2
    assert cells["delta_m_published_by_task"].mean == pytest.approx(by_task)
    assert any("within each task first" in note for note in table.notes)


def test_the_best_and_the_second_best_are_marked(comparison):
    table = make_table(comparison)
    ours = [line for line in table.lines if line.kind == "ours"]
    for key, sign in (("far", 1), ("odd score", -1), ("delta_m_own", 1)):
        ranked = sorted(ours, key=lambda line: sign * line.cells[key].mean)
        assert [line.cells[key].mark for line in ranked[:3]] == ["best", "second", None]
    assert all(cell.mark is None for line in table.lines if line.kind != "ours" for cell in line.cells.values())


def test_time_is_relative_to_ls(folder, comparison):
    cells = lines_of(make_table(comparison))
    seconds = [statistics.fmean(r["seconds_per_step"] for r in results(folder, name)) for name in ("famo", "ls")]
    assert cells["FAMO"].cells["time"].mean == pytest.approx(seconds[0] / seconds[1])
    assert cells["LS"].cells["time"].mean == pytest.approx(1)


def test_unfinished_runs_are_named_and_left_out(comparison):
    table = make_table(comparison)
    assert "SI" not in lines_of(table)
    assert "si, seed 0, is unfinished: 1 of 3 epochs done." in table.notes
    assert "Trained for 3 epochs; the suite's protocol is 4." in table.notes


def test_damaged_runs_are_named_and_left_out(twin_suites, tmp_path):
    for config in plan("twin", ["ls"], [0, 1], {"epochs": 1}):
        train(config, tmp_path)
    (tmp_path / "twin" / "ls" / "seed-1" / "metrics.csv").write_text("epoch\n0\n")
    (found,) = collect([tmp_path])
    table = make_table(found)
    assert lines_of(table)["LS"].seeds == 1
    assert any("metrics.csv is damaged" in note for note in table.notes)


def test_runs_that_do_not_match_are_said(twin_suites, tmp_path):
    for epochs, name in ((1, "ls"), (2, "ldc")):
        train(plan("twin", [name], [0], {"epochs": epochs})[0], tmp_path)
    (found,) = collect([tmp_path])
    assert "The rows do not share `epochs`: 1, 2." in make_table(found).notes


def test_published_rows_stand_below_and_disagreeing_ones_are_said(comparison):
    table = make_table(comparison, published=True)
    line = table.lines[-1]
    assert (line.label, line.kind) == ("LS", "published")
    assert line.cells["delta_m_published"].mean == pytest.approx(delta_m({"near": 0.6, "far": 50.0, "odd score": 0.3}, {
        "near": 0.5, "far": 40.0, "odd score": 0.4}, UP))  # fmt: skip
    assert not any("prints a Δm" in note for note in table.notes)
    comparison.suite.published["ls"]["delta_m"] = 30.0
    try:
        notes = make_table(comparison, published=True).notes
    finally:
        comparison.suite.published["ls"]["delta_m"] = 23.3
    assert "LS† prints a Δm of 30; its printed metrics give 23.3." in notes


ODD = Table(
    "ta|ble & co_1",
    [Column("a", "x_1 <b>", "lower", 2, "%"), Column("b", "γ$", "higher", 1)],
    [
        Line("one|two", {"a": Cell(1.234, 0.5, "best"), "b": Cell(float("nan"))}, "ours", 2),
        Line("{three}", {"a": Cell(2e7, None, "second")}, "stl", 1),
        Line("four", {"b": Cell(3.0)}, "published"),
    ],
    ["50% of\neverything"],
)


def test_markdown():
    assert render.markdown(ODD) == (
        "### ta\\|ble &amp; co\\_1\n\n"
        "| method | x\\_1 &lt;b> (%) ↓ | γ$ ↑ |\n"
        "| --- | ---: | ---: |\n"
        "| one\\|two | **1.23 ± 0.50** | — |\n"
        "| {three} | <u>2e+07</u> | — |\n"
        "| four† | — | 3.0 |\n\n"
        "- 50% of everything\n"
    )


def test_csv_has_every_digit():
    rows = list(csv.DictReader(io.StringIO(render.to_csv(ODD))))
    assert [row["method"] for row in rows] == ["one|two", "{three}", "four"]
    assert (rows[0]["a"], rows[0]["a_std"], rows[0]["b"], rows[0]["seeds"]) == ("1.234", "0.5", "nan", "2")
    assert [row["source"] for row in rows] == ["own", "own", "published"]
    assert rows[1]["b"] == ""


def test_latex_escapes_and_marks():
    text = render.latex(ODD)
    assert r"\caption{ta|ble \& co\_1. 50\% of everything}" in text
    assert r"method & x\_1 \textless{}b\textgreater{} (\%) $\downarrow$ & $\gamma$\$ $\uparrow$ \\" in text
    assert r"one|two & \textbf{1.23 $\pm$ 0.50} & -- \\" in text
    assert r"\{three\} & \underline{2e+07} & -- \\" in text
    assert text.count(r"\midrule") == 3  # under the head, and between the three kinds of rows


@pytest.mark.parametrize("width", [40, 60, 120, 400])
def test_the_terminal_table_fits(comparison, width):
    console = Console(width=width, file=io.StringIO())
    console.print(render.for_terminal(make_table(comparison), width))
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text  # nothing is cut off: what does not fit beside stands below
    assert ("±" in text.split("Best in bold")[0]) == (width == 400)
    assert ("Deviations are left out" in text) == (width < 400)
    for line in make_table(comparison).lines:
        for column in make_table(comparison).columns:
            assert render.cell_text(line.cells.get(column.key), column, spread=width == 400) in text


def test_a_terminal_table_of_no_runs_is_its_notes():
    console = Console(width=80, file=io.StringIO())
    console.print(render.for_terminal(Table("twin", [Column("near", "near", "lower", 2)], [], ["Nothing yet."]), 80))
    assert console.file.getvalue() == "Nothing yet.\n"
