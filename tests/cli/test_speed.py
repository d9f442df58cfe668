"""The cost of a step beside LS."""

import csv

from equipoise.runs.config import configure
from equipoise.runs.speed import measure
from equipoise.runs.timing import compare


def test_the_table_and_the_csv(command, tmp_path):
    out = tmp_path / "speed.csv"
    words = ("speed", "twin", "-m", "ls,famo,stl,ls:weights=[1]", "--rounds", 5, "--threads", 1, "-o", out)
    code, text = command(*words)
    assert code == 0
    assert "LS (weights=[1]) cannot run here: `weights` must be 3 finite numbers" in text
    rows = {row["method"]: row for row in csv.DictReader(out.read_text().splitlines())}
    assert list(rows) == ["ls", "famo", "stl", "ls:weights=[1]"]
    assert 0.5 < float(rows["ls"]["ratio"]) < 2
    assert float(rows["stl"]["ratio"]) > 1.5  # three networks
    assert all(float(row["lower_quartile"]) <= float(row["upper_quartile"]) for row in rows.values() if row["ratio"])
    assert "Medians of processor time in turns with LS, on 1 of " in text
    assert rows["ls:weights=[1]"]["ratio"] == ""
    assert int(rows["ls"]["peak_bytes"]) == int(rows["ls"]["peak_bytes_ls"]) > 1000


def test_memory_is_what_a_step_holds():
    big, small = (
        next(measure([configure("twin", "ls", settings={"batch_size": size})], rounds=5)) for size in (64, 16)
    )
    assert big.peak > small.peak + 48 * 8 * 4  # at least the trunk's output


def test_a_ratio_is_of_neighbours():
    ticks = iter(range(10**6))
    cost = {"base": 1, "twice": 2}
    spent = []
    now = [0]

    def work(name):
        now[0] += cost[name] * (1 + next(ticks) // 40)  # a machine that gets slower all the time
        spent.append(name)

    (timing,) = compare(
        lambda: work("base"), {"twice": lambda: work("twice")}, 20, warmup=0, clock=lambda: float(now[0])
    )
    assert spent[:4] == ["base", "twice", "twice", "base"]
    assert timing.ratio == 2.0
