"""The numbers of the page on choosing a method are those of the stored measurements."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/choosing.md").read_text()


def rows(text, heading):
    """The cells of the table under a heading."""
    part = text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_what_it_costs_on_qm9():
    """Each method's ratio, rounded as the page rounds it; the page has every method that was timed."""
    timed = {}
    for step, _, ratio, *_ in rows((ROOT / "results/qm9.md").read_text(), "Speed"):
        match = re.fullmatch(r"([a-z0-9-]+), R=1", step)
        if match and match[1] != "ls":
            timed[match[1]] = float(ratio)
    shown = {}
    for _, methods, text in rows(PAGE, "What it costs"):
        least, most = text.split(" to ")[0], text.split(" to ")[-1]
        shown |= dict.fromkeys(re.findall(r"`([a-z0-9-]+)`", methods), (least, most))
    assert shown.keys() == timed.keys()
    for method, (least, most) in shown.items():
        half = 0.5 * 10.0 ** -len(least.partition(".")[2]) + 1e-9
        assert float(least) - half <= timed[method] <= float(most) + half, method


@pytest.mark.parametrize(
    ("results", "column", "paragraph"),
    [("qm9.md", "delta-m", "**On QM9,"), ("celeba-pack.md", "Δm", "**On 40 attributes of faces,")],
)
def test_what_it_is_worth(results, column, paragraph):
    """Our own rows of the stored tables, rounded to a tenth."""
    first = (ROOT / "results" / results).read_text().split("\n| ", 1)[1].split("\n\n", 1)[0]
    table = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in first.splitlines()]
    place = next(i for i, title in enumerate(table[0]) if title.startswith(column))
    found = {row[0].lower(): re.search(r"[\d.]+", row[place])[0] for row in table[2:] if row[1] != "published"}
    shown = dict(re.findall(r"`([a-z]+)`\s+([\d.]+)", PAGE.split(paragraph, 1)[1].split("\n\n", 1)[0]))
    assert len(shown) >= 3
    for method, value in shown.items():
        assert float(value) == pytest.approx(float(found[method]), abs=0.051), method


def test_famo_over_many_tasks():
    """The decision table gives the range over K = 1 to 1,000 on a CPU, to a tenth."""
    measured = json.loads((ROOT / "docs/benchmarks/thousand-tasks-cpu.json").read_text())["rows"]
    ratios = [row["ratio"] for row in measured if row["method"] == "famo" and row["ms"] is not None]
    least, most = re.search(r"FAMO, which looks twice, ([\d.]+) to ([\d.]+) times", PAGE).groups()
    assert (float(least), float(most)) == (round(min(ratios), 1), round(max(ratios), 1))
    others = ("ldc", "si", "uw")  # which cost "little more than a sum"
    assert all(row["ratio"] < 1.2 for row in measured if row["method"] in others and row["ms"] is not None)
