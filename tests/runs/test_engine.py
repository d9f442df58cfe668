"""Runs side by side in processes: deaths, stops and failures."""

import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import active_children

import pytest

from equipoise.runs.compare import plan
from equipoise.runs.config import configure
from equipoise.runs.engine import run_local
from equipoise.runs.store import read_run
from equipoise.runs.train import train

SHORT = {"epochs": 2, "suite.steps_per_epoch": 20}
LONG = {"epochs": 10, "suite.steps_per_epoch": 100}


def test_side_by_side_equals_one_by_one(tmp_path):
    configs = plan("toy", ["ls", "stl"], [3], SHORT)
    seen = []
    outcomes = run_local(configs, tmp_path / "pool", jobs=2, watch=lambda *event: seen.append(event))
    assert [outcome.config for outcome in outcomes] == configs
    for index, outcome in enumerate(outcomes):
        assert outcome.result["metrics"] == train(outcome.config, tmp_path / "here")["metrics"]
        kinds = [event["kind"] for at, event in seen if at == index]
        assert kinds[0] == "started"
        assert kinds[-1] == "finished"


def test_a_failed_run_leaves_the_others_alone(tmp_path):
    good = configure("toy", "ls", settings=SHORT)
    bad = configure("toy", "ls:weights=[1,2,3]", settings=SHORT)
    outcomes = run_local([bad, good], tmp_path, jobs=1, watch=lambda *_: None)
    assert outcomes[0].result is None
    assert "ValueError: `weights` must be 2 finite numbers" in outcomes[0].problem
    assert read_run(tmp_path / bad.folder).error == outcomes[0].problem
    assert outcomes[1].result is not None


def test_a_killed_process_is_replaced_and_its_run_goes_on(tmp_path):
    config = configure("toy", "ls", settings=LONG)
    notes, kills = [], []

    def watch(at, event):
        notes.append(event.get("text", ""))
        if event["kind"] == "progress" and event["step"] > 1 and len(kills) < 2:
            for child in active_children():
                child.kill()
                kills.append(child)

    outcome = run_local([config], tmp_path / "pool", jobs=1, watch=watch)[0]
    assert len(kills) == 2
    assert sum("ended with exit code -9" in note for note in notes) == 2
    assert outcome.result["metrics"] == train(config, tmp_path / "here")["metrics"]


def test_a_run_whose_process_always_dies_is_given_up(tmp_path):
    config = configure("toy", "ls", settings=LONG)
    problems = []

    def watch(at, event):
        if event["kind"] == "started":
            for child in active_children():
                child.kill()
        if event["kind"] == "failed":
            problems.append(event["text"])

    outcome = run_local([config], tmp_path, jobs=1, watch=watch)[0]
    assert outcome.problem == problems[0] == "its process ended with exit code -9, 3 times"


def test_a_stop_keeps_what_is_done_and_the_same_call_goes_on(tmp_path):
    configs = [configure("toy", "ls", seed=seed, settings=LONG) for seed in (0, 1, 2)]
    stopped = []

    def watch(at, event):
        if at == 1 and event["kind"] == "progress":
            signal.raise_signal(signal.SIGTERM)
        if event["kind"] == "stopped":
            stopped.append(at)

    outcomes = run_local(configs, tmp_path / "pool", jobs=1, watch=watch)
    assert stopped == [1]
    assert [outcome.result is None for outcome in outcomes] == [False, True, True]
    assert all(outcome.problem is None for outcome in outcomes)
    again = run_local(configs, tmp_path / "pool", jobs=1, watch=lambda *_: None)
    for outcome in again:
        assert outcome.result["metrics"] == train(outcome.config, tmp_path / "here")["metrics"]


ORPHANED = """
import sys
from multiprocessing import active_children
from pathlib import Path
from equipoise.runs.config import configure
from equipoise.runs.engine import run_local
if __name__ == "__main__":
    def watch(at, event):
        print(event["kind"], *[child.pid for child in active_children()], flush=True)

    run_local([configure("toy", "ls")], Path(sys.argv[1]), jobs=1, watch=watch)
"""


def test_workers_end_when_their_parent_is_killed(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(ORPHANED)
    process = subprocess.Popen([sys.executable, str(script), str(tmp_path)], stdout=subprocess.PIPE, text=True)
    words = [""]
    while words[0] != "progress":
        assert process.poll() is None
        words = process.stdout.readline().split()
    worker = int(words[1])
    process.kill()
    process.wait()
    process.stdout.close()
    for _ in range(200):
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            break
        state = subprocess.run(["ps", "-o", "stat=", "-p", str(worker)], capture_output=True, text=True).stdout.strip()
        if state.startswith("Z") or not state:
            break
        time.sleep(0.05)
    else:
        pytest.fail(f"worker {worker} is still there")
    assert (tmp_path / "toy" / "ls" / "seed-0" / "checkpoint.safetensors").exists()


def test_the_plan_is_seed_by_seed_and_refuses_doubles():
    runs = plan("toy", ["ls", "ldc"], [0, 1])
    assert [(run.seed, run.label) for run in runs] == [(0, "ls"), (0, "ldc"), (1, "ls"), (1, "ldc")]
    assert {run.method for run in plan("toy", ["all"], [0])} >= {"ls", "ldc", "famo", "stl"}
    with pytest.raises(ValueError, match="`methods` must be distinct; found ls, ls"):
        plan("toy", ["ls", "ls"], [0])
    with pytest.raises(ValueError, match="`seeds` must name at least one"):
        plan("toy", ["ls"], [])


def test_jobs_must_be_positive(tmp_path):
    with pytest.raises(ValueError, match="`jobs` must be at least 1; found 0"):
        run_local([], tmp_path, jobs=0, watch=lambda *_: None)


def test_nothing_of_ours_runs_on_afterwards(tmp_path):
    others = set(threading.enumerate())  # the test runner's own
    configs = [configure("toy", "ls", settings=SHORT), configure("toy", "ls:weights=[1,2,3]", settings=SHORT)]
    run_local(configs, tmp_path, jobs=2, watch=lambda *_: None)
    assert active_children() == []
    assert set(threading.enumerate()) <= others
