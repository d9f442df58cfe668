"""The toy problem's table and page."""

import re
from dataclasses import replace

import pytest
import torch
from browser import CHROMIUM, Browser

from equipoise.report import toy
from equipoise.suites.toy import BALANCED, STARTS, toy_losses
from equipoise.suites.toy.starts import Trajectories


def trajectories(method, ends, seconds):
    """Straight ways from the five starts."""
    part = torch.linspace(0, 1, 50)[:, None, None]
    points = (1 - part) * torch.tensor(STARTS) + part * torch.tensor(ends)
    return Trajectories(method, points, toy_losses(points), 500, seconds)


MIDDLE, ELSEWHERE = [BALANCED] * 5, [(-7.0, -8.4)] * 3 + [(0.2, -8.3)] + [(7.0, -8.4)]
RUNS = {
    "ls": trajectories("ls", ELSEWHERE, 2.0),
    "ldc": trajectories("ldc", MIDDLE, 3.0),
    "ldc-no-router": trajectories("ldc", MIDDLE, 2.5),
    "<b>mine": trajectories("mgda", ELSEWHERE, 5.0),
}
FAILED = {"si": "losses must be <i>above</i> 0"}


def test_the_table_counts_starts_and_takes_time_relative_to_ls():
    table = toy.toy_table(RUNS, FAILED)
    cells = {line.label: line.cells for line in table.lines}
    assert [line["reached"].mean for line in cells.values()] == [1, 5, 5, 1]
    assert [line["time"].mean for line in cells.values()] == [1.0, 1.5, 1.25, 2.5]
    assert cells["LDC"]["gap"].mean < 0.01 < cells["LS"]["gap"].mean
    gaps = (toy_losses(torch.tensor(ELSEWHERE)) * torch.tensor([10.0, 1.0])).diff().abs()
    assert cells["LS"]["gap"].mean == pytest.approx(float(gaps.mean()), rel=1e-4)


def test_whether_the_router_matters_is_said():
    notes = " ".join(toy.toy_table(RUNS, FAILED).notes)
    assert "without a router too" in notes
    assert "SI cannot run here: losses must be" in notes
    short = {**RUNS, "ldc-no-router": replace(RUNS["ls"], method="ldc")}
    assert "Without a router LDC does not reach" in " ".join(toy.toy_table(short, {}).notes)
    other = {**RUNS, "ldc": replace(RUNS["ls"], method="ldc")}
    assert "from 5 of 5 starts, with its router from 1." in " ".join(toy.toy_table(other, {}).notes)


def test_time_without_ls_is_a_step_s():
    table = toy.toy_table({"ldc": RUNS["ldc"]}, {})
    assert table.columns[-1].title == "ms / step"
    assert table.lines[0].cells["time"].mean == pytest.approx(6.0)


def test_lines_leave_out_what_nobody_could_tell_apart():
    still = Trajectories(
        "ls", torch.tensor(STARTS).expand(50, -1, -1), toy_losses(torch.tensor(STARTS)).expand(50, -1, -1), 50, 1.0
    )
    assert max(len(path) for path in re.findall(r'class="line".*? d="(.*?)"', toy.plane(still, "code"))) < 20
    assert len(re.findall(r'class="line"', toy.front(RUNS["ldc"]))) == 5


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_in_a_browser(tmp_path, width):
    (tmp_path / "toy.html").write_text(toy.toy_page(RUNS, FAILED, "paper"), "utf-8")
    browser = Browser()
    try:
        for dark in (False, True):
            browser.open(tmp_path / "toy.html", width=width, dark=dark)
            assert browser.run("document.documentElement.scrollWidth") == width
            assert browser.complaints == []
        assert browser.run("document.querySelectorAll('main b, main i:not([style])').length") == 4  # the bars' own
        assert "<b>mine" in browser.run("document.querySelector('main').textContent")
        assert "sign as in the paper" in browser.run("document.querySelector('header').textContent")
        bold = "[...document.querySelectorAll('.best')].map(e => e.textContent)"
        assert set(browser.run(bold)) == {"0.00, -8.36", "0.20, -8.30"}
        assert browser.run("[...document.images].length + document.querySelectorAll('svg image').length") == 4
    finally:
        browser.close()
