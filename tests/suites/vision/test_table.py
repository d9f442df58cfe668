"""The stored tables of the vision suites are what the stored runs give, and say how LDC-MTL stands."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
spec = importlib.util.spec_from_file_location("vision_table", ROOT / "benchmarks/vision_table.py")
table = importlib.util.module_from_spec(spec)
spec.loader.exec_module(table)
STORED = sorted(path.parent.name for path in (ROOT / "results/runs").glob("*/runs.csv"))


@pytest.mark.parametrize("suite", STORED)
def test_stored_results_follow_from_stored_runs(suite):
    rows = table.read(suite)
    assert (ROOT / f"results/{suite}.csv").read_text() == table.csv_of(rows)
    assert (ROOT / f"results/{suite}.md").read_text() == table.page_of(rows)


def run(method, seed, rate, score, metric):
    faces = table.read("celeba-pack")[0]
    tests = {name: metric for name in faces if name.startswith("test:")}
    return {**faces, "method": method, "seed": str(seed), "rate": rate, "score": score, "options": "", **tests}


def test_the_rate_with_the_best_validation_score_is_chosen_whatever_the_test_says():
    rows = [run("ls", 0, "1", "0.6", "0.5"), run("ls", 0, "2", "0.7", "0.4"), run("ls", 1, "2", "0.1", "0.4")]
    assert [(row["rate"], row["seed"]) for row in table.chosen(rows)] == [("2", "0"), ("2", "1")]
    assert len(table.csv_of(rows).splitlines()) == 4  # the csv has all


def test_first_sentence():
    rows = [run("ls", 0, "1", "0.6", "0.6"), run("ldc", 0, "1", "0.6", "0.5")]
    told = table.standing(table.compare(rows))
    assert "behind LS" in told and "pooled" not in told
    rows += [run("ls", 1, "1", "0.6", "0.62"), run("ldc", 1, "1", "0.6", "0.64"), run("ldc", 2, "1", "0.6", "0.9")]
    told = table.standing(table.compare(rows))
    assert "the best of the rows, before LS" in told and "pooled deviation" in told
    assert table.standing(table.compare(rows[:1])).startswith("LDC-MTL has not been trained here yet.")


def test_pooled_deviation():
    assert table.pooled([[1.0, 3.0], [10.0, 10.0]]) == pytest.approx(1.0)
    assert table.pooled([[1.0], [2.0]]) is None
