"""The page in a real browser: quiet, offline, on any screen, in light and dark, and it runs nobody else's script."""

import json
import re
from dataclasses import replace

import pytest
from browser import CHROMIUM, Browser

from equipoise.report.collect import collect
from equipoise.report.page import page, write_page
from equipoise.runs.compare import plan
from equipoise.runs.train import train

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
EVIL = "<script>document.title='broken'</script>"
WIDTHS = (1280, 390, 320)


@pytest.fixture(scope="module")
def browser():
    opened = Browser()
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def report(folder, tmp_path_factory):
    """The page of a whole comparison, with one run diagnosed and another's diagnosis damaged."""
    import torch

    import equipoise as eq

    x = torch.nn.Parameter(torch.tensor([1.0, 1.0]))
    found = eq.diagnose({EVIL: (x[0] - 2) ** 2, "b": 300 * (x + 2).square().sum()}, [x]).to_dict()
    comparisons = collect([folder])
    by_label = {row.label: row.entries[0].runs[0] for row in comparisons[0].rows if row.entries}
    (by_label["ls"].path / "diagnosis.json").write_text(json.dumps(found))
    (by_label["famo"].path / "diagnosis.json").write_text(json.dumps({**found, "tasks": 3}))
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(path, comparisons, published=True)
    return path


@pytest.fixture(scope="module")
def evil_report(twin_suites, tmp_path_factory):
    """Scripts as the names of tasks and metrics, as a label, as an option of the suite, in an error and a diagnosis."""
    root = tmp_path_factory.mktemp("evil")
    runs = plan("pair", ["ls", "famo", "ldc"], [0], {"epochs": 1})
    runs[1] = replace(runs[1], label=f"famo:{EVIL}")
    runs[2] = replace(runs[2], label='"><img src=x onerror="document.title=\'broken\'">', data="</pre>" + EVIL)
    for config in runs:
        train(config, root)
    path = next(root.rglob("famo*/seed-0"))
    finding = {"kind": "x", "text": f"finding {EVIL}"}
    content = {"tasks": [EVIL, "b"], "losses": [1.0, None], "cosines": [[1, 0.5], [0.5, 1]], "findings": [finding]}
    (path / "diagnosis.json").write_text(json.dumps({**content, "recommendation": f"so {EVIL}"}))
    (comparison,) = collect([root])
    comparison = replace(comparison, notes=[*comparison.notes, f"a note {EVIL}"])
    written = tmp_path_factory.mktemp("page") / "evil.html"
    write_page(written, [comparison, comparison])
    return written


def open_all(browser):
    browser.run("for (const one of document.querySelectorAll('details')) one.open = true")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("which", ["report", "evil_report"])
def test_it_is_quiet_and_no_wider_than_the_screen(browser, which, width, dark, request):
    browser.complaints.clear()
    browser.open(request.getfixturevalue(which), width=width, dark=dark)
    open_all(browser)
    assert browser.run("document.documentElement.scrollWidth") == width
    wider = "[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll, pre, .legend, svg') && "
    assert browser.run(f"{wider} e.getBoundingClientRect().right > {width}).map(e => e.outerHTML.slice(0, 90))") == []
    assert browser.complaints == []


def test_every_section_is_there(browser, report):
    browser.open(report)
    titles = browser.run("[...document.querySelectorAll('h3')].map(e => e.textContent)")
    assert titles == [
        "Metrics over the epochs", "Loss discrepancy", "Weights", "Gradient conflict",
        "Router gradients in the double loop", "Diagnosis", "Cost", "Configurations",
    ]  # fmt: skip
    assert browser.run("document.querySelectorAll('figure svg').length") > 15
    assert browser.run("document.querySelectorAll('tr.published').length") == 1
    empty = "[...document.querySelectorAll('figure svg')].filter(e => e.getBoundingClientRect().height < 60).length"
    assert browser.run(empty) == 0


def test_no_name_is_cut_by_its_diagram_s_edge(browser, report):
    """Letters that overflow an svg are not drawn: every text lies within its own."""
    browser.open(report)
    open_all(browser)
    outside = browser.run(
        "[...document.querySelectorAll('figure svg text')].filter(e => { const a = e.getBoundingClientRect(), "
        "b = e.closest('svg').getBoundingClientRect(); return a.left < b.left - 1 || a.right > b.right + 1 })"
        ".map(e => e.textContent)"
    )
    assert outside == []


def test_light_and_dark_are_readable(browser, report):
    """Text has a contrast of 4.5 to its ground in both, and the two differ."""
    grounds = []
    for dark in (False, True):
        browser.open(report, dark=dark)
        colours = browser.run(
            "['body', '.soft', '.notes', 'thead th', '.std', '.scroll', 'svg text'].map(s => { "
            "const e = getComputedStyle(document.querySelector(s)); return [e.color, e.fill, e.backgroundColor] })"
        )
        ground, card = colours[0][2], colours[5][2]
        grounds.append(ground)
        for colour, fill, _ in colours[:-1]:
            assert contrast(colour, ground) > 4.5
            assert contrast(colour, card) > 4.5
            assert fill
        assert contrast(colours[-1][1], card) > 4.5
    assert grounds[0] != grounds[1]


def contrast(one, other):
    lights = []
    for colour in (one, other):
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        lights.append(0.2126 * red + 0.7152 * green + 0.0722 * blue)
    return (max(lights) + 0.05) / (min(lights) + 0.05)


def place_on(browser, selector, block="center", across=0.5, down=0.5):
    """A point of an element, on the screen."""
    script = (
        f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: '{block}'}});"
    )
    script += "const b = e.getBoundingClientRect();"
    x, y = browser.run(f"{script} return [b.x + {across} * b.width, b.y + {down} * b.height] }})()")
    return {"x": x, "y": y}


def mouse(browser, kind, at, **more):
    browser.ask("Input.dispatchMouseEvent", type=kind, **at, **more)


def test_the_legend_shows_and_hides_a_method(browser, report):
    browser.open(report)
    counts = "['off', 'dim'].map(name => document.querySelectorAll(`[data-m].${name}`).length)"
    all_marks, mine = browser.run(
        "[document.querySelectorAll('[data-m]').length, document.querySelectorAll('[data-m=\"2\"]').length]"
    )
    button = place_on(browser, "button[data-toggle='2']")
    mouse(browser, "mouseMoved", button)
    assert browser.run(counts) == [0, all_marks - mine]
    mouse(browser, "mouseMoved", {"x": 2, "y": 2})
    assert browser.run(counts) == [0, 0]
    for shown in (False, True):
        mouse(browser, "mousePressed", button, button="left", clickCount=1)
        mouse(browser, "mouseReleased", button, button="left", clickCount=1)
        assert browser.run("document.querySelector(\"button[data-toggle='2']\").ariaPressed") == str(shown).lower()
        assert browser.run(counts)[0] == (0 if shown else mine)


def test_a_finger_on_the_legend_dims_nothing(browser, report):
    browser.open(report, width=390)
    button = place_on(browser, "button[data-toggle='0']")
    browser.ask("Emulation.setTouchEmulationEnabled", enabled=True)
    try:
        browser.ask("Input.dispatchTouchEvent", type="touchStart", touchPoints=[button])
        browser.ask("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        assert browser.run("document.querySelectorAll('[data-m].off').length") > 0
        assert browser.run("document.querySelectorAll('.dim').length") == 0
    finally:
        browser.ask("Emulation.setTouchEmulationEnabled", enabled=False)


@pytest.mark.parametrize("width", [1280, 390])
def test_pointing_at_a_diagram_reads_the_values_there(browser, report, comparison, width):
    browser.open(report, width=width)
    place = place_on(browser, "svg[data-x]")
    mouse(browser, "mouseMoved", place)
    text = browser.run("document.querySelector('.readout').innerText")
    shown = dict(re.findall(r"^(\S+.*?)\s*\n?(-?[\d.]+)$", text, re.MULTILINE))
    expected = {}
    for row in comparison.rows:
        if row.method in ("ls", "famo"):
            values = [run.metrics[1]["validation:near"] for entry in row.entries for run in entry.runs]
            expected[row.method.upper()] = sum(values) / len(values)
    assert text.startswith("epoch 2")
    for name, value in expected.items():
        assert float(shown[name]) == pytest.approx(value, rel=0.01)
    mouse(browser, "mouseMoved", {"x": 2, "y": 2})
    assert browser.run("document.querySelector('.readout').hidden")


@pytest.mark.parametrize(("block", "across", "down"), [("end", 0.97, 0.95), ("start", 0.05, 0.5)])
def test_the_values_stay_on_the_screen(browser, report, block, across, down):
    browser.open(report, width=390, height=600)
    mouse(browser, "mouseMoved", place_on(browser, "svg[data-x]", block, across, down))
    script = "const b = document.querySelector('.readout').getBoundingClientRect(); [b.left, b.right, b.top, b.bottom]"
    left, right, top, bottom = browser.run(f"(() => {{ {script.replace('[', 'return [', 1)} }})()")
    assert 0 <= left < right <= 390
    assert 0 <= top < bottom <= 600


def test_names_are_shown_and_not_run(browser, evil_report):
    browser.complaints.clear()
    browser.open(evil_report)
    open_all(browser)
    mouse(browser, "mouseMoved", place_on(browser, "svg[data-x]"))
    assert browser.run("document.title") == "pair, pair · equipoise"
    assert browser.run("document.querySelectorAll('img, main script, [onerror]').length") == 0
    text = browser.run("document.body.textContent")
    for shown in (EVIL, f"a note {EVIL}", f"so {EVIL}", f"finding {EVIL}", '"><img src=x onerror=', f"</pre>{EVIL}"):
        assert shown in text
    assert EVIL in browser.run(
        "document.querySelector('svg title').textContent + document.querySelector('h4').textContent"
    )
    assert browser.complaints == []


def test_the_page_asks_for_nothing_and_may_not(browser, report):
    browser.open(report)
    asks = "[...document.querySelectorAll('[src], [href]')].map(e => e.getAttribute('src') ?? e.getAttribute('href'))"
    assert all(address.startswith(("#", "data:")) for address in browser.run(asks))
    browser.complaints.clear()
    refused = "fetch('https://example.org').then(() => 'went out', () => 'refused')"
    assert browser.run(refused) == "refused"
    assert any("Content Security Policy" in str(complaint) for complaint in browser.complaints)
    browser.run(
        "{ const s = document.createElement('script'); s.text = 'document.title = 1'; document.body.append(s) }"
    )
    assert browser.run("document.title") == "twin · equipoise"


def test_every_row_of_a_long_sweep_has_a_colour(browser, comparison, tmp_path):
    rows = [replace(comparison.rows[1], label=f"ls:weights=[{place},1]") for place in range(45)]
    write_page(tmp_path / "long.html", [replace(comparison, rows=rows)])
    browser.open(tmp_path / "long.html")
    strokes = "[...document.querySelectorAll('path.line[data-m]')].map(e => getComputedStyle(e).stroke)"
    found = browser.run(strokes)
    assert len(found) >= 45
    assert "none" not in found


def test_a_page_of_nothing(browser, tmp_path):
    (tmp_path / "none.html").write_text(page([]), "utf-8")
    browser.complaints.clear()
    browser.open(tmp_path / "none.html")
    assert "No runs were found." in browser.run("document.body.textContent")
    assert browser.complaints == []
