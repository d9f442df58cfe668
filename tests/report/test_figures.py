"""Figures for papers: one file for each of the page's, drawn from the same numbers."""

import statistics
import warnings
from dataclasses import replace
from itertools import pairwise

import pytest

from equipoise.report import charts
from equipoise.report.collect import collect
from equipoise.report.figures import write_figures
from equipoise.report.tradeoff import staircase, trade_off
from equipoise.runs.compare import plan
from equipoise.runs.train import train

NAMES = ["metrics", "losses", "weights", "router-gradients", "discrepancy", "conflict", "cost"]


@pytest.fixture(scope="module")
def sweep(twin_suites, tmp_path_factory):
    """Two tasks, a sweep of fixed weights with two seeds, and LDC; the names are scripts and formulas."""
    root = tmp_path_factory.mktemp("sweep")
    names = ["stl", "ls", "ls:weights=[0.1,1.9]", "ls:weights=[1.9,0.1]", "ldc"]
    for config in plan("pair", names, [0, 1], {"epochs": 1}):
        train(config, root)
    (found,) = collect([root])
    return found


@pytest.mark.parametrize(("kind", "starts"), [("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_a_file_for_every_figure(comparison, tmp_path, kind, starts):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns where a diagram has no room
        written = write_figures(tmp_path / "figures", [comparison], kind)
    assert [path.name for path in written] == [f"twin-{name}.{kind}" for name in NAMES]
    assert all(path.read_bytes().startswith(starts) and path.stat().st_size > 3000 for path in written)


@pytest.mark.parametrize("kind", ["pdf", "svg"])
def test_the_same_runs_give_the_same_files(sweep, tmp_path, kind):
    once, twice = (write_figures(tmp_path / name, [sweep], kind) for name in ("once", "twice"))
    assert [path.read_bytes() for path in once] == [path.read_bytes() for path in twice]
    assert f"pair-trade-off.{kind}" in {path.name for path in once}


def test_names_in_figures_are_text(sweep, tmp_path):
    """No formula, no markup: an svg for a paper may be opened in a browser too."""
    for path in write_figures(tmp_path, [sweep], "svg"):
        text = path.read_text("utf-8")
        assert "<script>" not in text
        assert "<img" not in text


def test_a_legend_lies_within_its_figure(sweep, tmp_path, monkeypatch):
    """Long names take several rows: what is beside a figure's edge is cut."""
    from matplotlib.figure import Figure

    reach = []

    def measured(figure, *args, **kwargs):
        figure.canvas.draw()
        for legend in figure.legends:
            box = legend.get_window_extent()
            reach.append((box.x0, figure.bbox.x1 - box.x1))

    monkeypatch.setattr(Figure, "savefig", measured)
    rows = [replace(row, label=f"ls:weights=[{place}.123456,9.876543]") for place, row in enumerate(sweep.rows)]
    write_figures(tmp_path, [replace(sweep, rows=rows)])
    assert len(reach) >= 2 and min(min(sides) for sides in reach) >= 0


def test_the_trade_off_of_a_sweep(sweep):
    found = trade_off(sweep)
    assert [dot.label for dot in found.dots] == ["STL", "LS", "weights=[0.1,1.9]", "weights=[1.9,0.1]", "LDC"]
    row = sweep.rows[2]
    x, y = (metric.name for metric in sweep.metrics[:2])
    assert found.dots[2].x == pytest.approx(statistics.fmean(row.values(x)))
    assert list(found.dots[2].runs) == list(zip(row.values(x), row.values(y), strict=True))
    (line,) = found.sweeps
    assert line == sorted((dot.x, dot.y) for dot in found.dots[1:4])
    shared = [(dot.x, dot.y) for dot in found.dots[1:]]
    assert found.front == staircase(shared, False, False)


@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
def test_the_staircase_has_every_point_on_or_behind_it(turned):
    x_up, y_up = turned
    points = [(0.1, 0.9), (0.2, 0.3), (0.25, 0.35), (0.6, 0.2), (0.9, 0.25), (0.5, 0.8)]
    corners = staircase(points, x_up, y_up)

    def beats(a, b):
        return all((p > q if up else p < q) for p, q, up in zip(a, b, turned, strict=True))

    unbeaten = [point for point in points if not any(beats(other, point) for other in points)]
    assert set(unbeaten) <= set(corners)
    assert not any(beats(point, corner) for point in points for corner in corners)
    assert all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(corners))


def test_three_tasks_have_no_trade_off(comparison):
    assert trade_off(comparison) is None


def test_the_discrepancy_s_statistics(comparison):
    rows = [row for row in comparison.rows[1:] if row.entries]
    for spread, row in zip(charts.loss_spreads(comparison), rows, strict=True):
        last = [entry.runs[0].metrics[-1] for entry in row.entries]
        values = [statistics.fmean(epoch[f"loss:{task}"] for epoch in last) for task in ("near", "far", "odd")]
        found = spread.statistics
        assert [found["mean"], found["std"]] == [statistics.fmean(values), statistics.pstdev(values)]
        assert [found["min"], found["max"]] == [min(values), max(values)]
        assert found["max / min"] == max(values) / min(values)


def test_the_router_s_gradient_ratio_where_it_is_recorded(comparison):
    (panel,) = charts.hypergradients(comparison)
    run = comparison.rows[-1].entries[0].runs[0]
    ratios = [step["router_gradient"] / step["inner_router_gradient"] for step in run.steps]
    assert panel.title.endswith(f"median ratio {statistics.median(ratios):.3g}")
    assert [curve.name for curve in panel.curves] == ["at x", "at z"]
