"""Real processes: Ctrl-C keeps what is done, and the same command ends with the numbers of an unbroken one."""

import csv
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from equipoise.runs.compare import plan
from equipoise.runs.train import train

COMMAND = [sys.executable, "-m", "equipoise"]
PATIENCE = 600  # seconds, for machines that do much else


@pytest.fixture
def start():
    """A command in a process group of its own, as a terminal's: a Ctrl-C reaches all of it and nobody else."""
    begun = []

    def begin(*words):
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        begun.append(subprocess.Popen([*COMMAND, *map(str, words)], start_new_session=True, **output))
        return begun[-1]

    yield begin
    for process in begun:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def ctrl_c(process):
    os.killpg(process.pid, signal.SIGINT)


def wait_for(condition, process):
    while not condition():
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.02)


def numbers(root):
    """Every run's metrics, and its table without what a clock says."""
    found = {}
    for path in sorted(root.rglob("result.json")):
        with (path.parent / "metrics.csv").open() as file:
            rows = [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]
        found[str(path.parent.relative_to(root))] = (json.loads(path.read_text())["result"]["metrics"], rows)
    return found


def test_ctrl_c_and_the_same_command_again(start, tmp_path):
    settings = {"epochs": 6, "suite.steps_per_epoch": 250}
    words = ("compare", "toy", "-m", "rlw,ldc", "--seeds", 1, "-o", tmp_path / "broken")
    words += tuple(word for key, value in settings.items() for word in ("--set", f"{key}={value}"))
    process = start(*words)
    wait_for(lambda: any(tmp_path.rglob("metrics.csv")), process)
    ctrl_c(process)
    text, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, text
    assert "The same command goes on from here." in text
    assert "Traceback" not in text
    assert len(numbers(tmp_path / "broken")) < 2
    assert any(tmp_path.rglob("checkpoint.safetensors"))
    process = start(*words)
    text, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, text
    for config in plan("toy", ["rlw", "ldc"], [1], settings):
        train(config, tmp_path / "whole")
    assert numbers(tmp_path / "broken") == numbers(tmp_path / "whole")
    assert len(numbers(tmp_path / "broken")) == 2


@pytest.mark.slow
def test_a_sweep_killed_outright_goes_on(start, tmp_path):
    settings = ("--set", "epochs=1", "--set", 'suite.tasks=["mu","cv"]', "--set", "batch_size=500")
    words = ("sweep", "qm9-sample", "--trials", 2, "--seeds", 0, *settings, "-o", tmp_path)
    process = start(*words)
    wait_for(lambda: any(tmp_path.rglob("config.toml")), process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
    process = start(*words)
    text, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, text
    assert len(list(tmp_path.rglob("result.json"))) == 2
    assert "the least on the validation part" in " ".join(text.split())
