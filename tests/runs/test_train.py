"""A run that is stopped anywhere, or killed, ends with the bits of one that never was."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from equipoise.registry import methods
from equipoise.runs.config import configure, expand
from equipoise.runs.store import RunLocked, open_run, read_run
from equipoise.runs.train import Stopped, train
from runs.reading import numbers


def stop_after(steps):
    left = iter(range(steps))
    return lambda: next(left, None) is None


def run_in_pieces(config, root, pieces):
    """Stop after so many steps each time; returns how often it stopped."""
    stopped = 0
    for steps in pieces:
        try:
            train(config, root, stop=stop_after(steps))
        except Stopped:
            stopped += 1
    train(config, root)
    return stopped


NAMES = [name if name != "ldc-double" else "ldc-double:inner_lr=0.01:inner_steps=2" for name in methods()]


@pytest.mark.parametrize("method", NAMES)
def test_stopped_runs_end_with_the_same_bits(method, tmp_path):
    config = expand(configure("twin", method, seed=3))[0]
    train(config, tmp_path / "whole")
    assert run_in_pieces(config, tmp_path / "pieces", [0, 2, 4, 3]) == 4
    assert numbers(tmp_path / "whole" / config.folder) == numbers(tmp_path / "pieces" / config.folder)


def test_exact_parameters_and_step_schedule_resume_too(tmp_path):
    config = configure("last-ten", "ls", settings={"shared": "parameters"})
    train(config, tmp_path / "whole")
    assert run_in_pieces(config, tmp_path / "pieces", [7, 9]) == 2
    whole = numbers(tmp_path / "whole" / config.folder)
    assert whole == numbers(tmp_path / "pieces" / config.folder)
    rows, _, result = whole
    last = [row["test:far"] for row in rows[-10:]]
    assert result["metrics"]["far"] == sum(last) / 10
    assert [row["lr"] for row in rows[:4]] == [1e-2, 1e-2, 1e-3, 1e-3]


def test_another_seed_gives_other_numbers(tmp_path):
    results = [train(configure("twin", "ls", seed=seed), tmp_path)["metrics"] for seed in (0, 1)]
    assert results[0] != results[1]


def test_the_double_loop_s_norms_are_written_down(tmp_path):
    config = configure("twin", "ldc-double:inner_lr=0.01:inner_steps=2", settings={"epochs": 1})
    train(config, tmp_path)
    steps = read_run(tmp_path / config.folder).steps
    assert steps[0]["router_gradient"] == 0  # all losses are 1 after rescaling, and the weights equal
    assert all(step["router_gradient"] > 0 and step["inner_router_gradient"] > 0 for step in steps[1:])


def test_the_best_validation_epoch_is_reported(tmp_path):
    config = configure("twin", "ls", settings={"epochs": 8, "lr": 0.3})
    result = train(config, tmp_path)
    run = read_run(tmp_path / config.folder)
    scores = [row["validation:delta_m"] for row in run.metrics]
    assert result["best_epoch"] == scores.index(min(scores))
    assert result["metrics"]["far"] == run.metrics[result["best_epoch"]]["test:far"]
    assert min(row["lr"] for row in run.metrics) < 0.3  # the plateau schedule saw the scores


def test_a_finished_run_is_kept_and_force_starts_it_again(tmp_path):
    config = configure("twin", "ls", settings={"epochs": 1})
    train(config, tmp_path)
    result = tmp_path / config.folder / "result.json"
    before = result.stat().st_mtime_ns
    train(config, tmp_path)
    assert result.stat().st_mtime_ns == before
    train(config, tmp_path, force=True)
    assert result.stat().st_mtime_ns != before


def test_another_configuration_does_not_overwrite(tmp_path):
    train(configure("twin", "ls", settings={"epochs": 1}), tmp_path)
    with pytest.raises(ValueError, match=r"holds another run.*epochs 2 instead of 1.*--force"):
        train(configure("twin", "ls", settings={"epochs": 2}), tmp_path)


def test_two_processes_never_write_one_run(tmp_path):
    config = configure("twin", "ls")
    with open_run(tmp_path / config.folder), pytest.raises(RunLocked, match=rf"written by process {os.getpid()}"):
        train(config, tmp_path)


def test_the_caller_s_generator_is_left_alone(tmp_path):
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    train(configure("twin", "rlw" if "rlw" in methods() else "ls", settings={"epochs": 1}), tmp_path)
    assert torch.equal(torch.rand(3), expected)


def test_steps_are_thinned_and_conflicts_recorded(tmp_path):
    config = configure("toy", "ls", settings={"epochs": 3, "suite.steps_per_epoch": 700})
    result = train(config, tmp_path)
    run = read_run(tmp_path / config.folder)
    assert [row["step"] for row in run.steps] == list(range(0, 2100, 2))
    assert result["conflict"]["tasks"] == ["first", "second"]
    assert result["conflict"]["cosine"][0][0] == pytest.approx(1, abs=1e-5)
    assert run.steps[0]["weight:first"] == 1


KILLED = """
import json, sys
from pathlib import Path
from equipoise.runs.config import configure
from equipoise.runs.train import train
config = configure("toy", "famo:gamma=0.01", settings={"epochs": 30, "suite.steps_per_epoch": 50})
train(config, Path(sys.argv[1]), notify=lambda event: print(json.dumps(event), flush=True))
"""


def test_kill_9_loses_nothing_beyond_the_checkpoint(tmp_path):
    config = configure("toy", "famo:gamma=0.01", settings={"epochs": 30, "suite.steps_per_epoch": 50})
    train(config, tmp_path / "whole")
    checkpoint = tmp_path / "killed" / config.folder / "checkpoint.safetensors"
    for _ in range(2):
        before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path / "killed")], stdout=subprocess.PIPE, text=True
        )
        while process.poll() is None and (not checkpoint.exists() or checkpoint.stat().st_mtime_ns == before):
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        events = [json.loads(line) for line in process.communicate()[0].splitlines() if line.endswith("}")]
        assert process.returncode == -signal.SIGKILL
        assert all(event["kind"] == "progress" for event in events)
    train(config, tmp_path / "killed")
    assert numbers(tmp_path / "killed" / config.folder) == numbers(tmp_path / "whole" / config.folder)
