"""The command under torchrun: what trains on all ranks, what is refused, and that the first rank alone writes."""

import subprocess
import sys

import pytest

from equipoise.runs.store import find_runs, read_run

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "equipoise"]
SHORT = ["--seeds", "0", "--set", "epochs=1", "--set", "suite.steps_per_epoch=5"]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["toy", "--steps", 5], "toy"),
        (["speed", "twin"], "speed"),
        (["report", "."], "report"),
        (["sweep", "twin", "--trials", 2], "tuning, by --trials or --budget,"),
        (["sweep", "twin", "--budget", 2, "-m", "ldc"], "tuning, by --trials or --budget,"),
        (["compare", "twin", "--engine", "ray"], "--engine ray"),
    ],
)
def test_what_one_process_does_is_refused_to_ranks(command, monkeypatch, tmp_path, words, what):
    from equipoise.cli import common

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(common, "launched", lambda: True)
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, text = command(*words)
    assert code == 1
    assert f"{what} works in one process, and torchrun started 2: give the command without torchrun." in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow  # a launch each
@pytest.mark.parametrize(
    ("words", "labels"),
    [
        (["compare", "toy", "-m", "ls,ldc"], ["ldc", "ls"]),
        (["sweep", "toy", "--over", "weights", "--grid", "0.5"], ["ldc", "ls:weights=[0.5,0.5]"]),
        (["sweep", "toy", "--grid", "0.1"], ["ldc:discrepancy=0.1", "ls"]),
    ],
)
def test_runs_are_trained_by_all_ranks_and_told_by_the_first(words, labels, tmp_path):
    done = subprocess.run([*TORCHRUN, *words, *SHORT, "-o", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    runs = [read_run(path) for path in find_runs(tmp_path)]
    assert sorted(run.config.label for run in runs) == labels
    assert all(run.environment["ranks"] == 2 and run.result is not None for run in runs)
    assert done.stdout.count("Report: ") == 1
