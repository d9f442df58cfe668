"""The toy problem's methods are kept as they end: a kill costs what was under way, and nothing is run twice."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from equipoise.runs.checkpoint import DamagedFile
from equipoise.runs.config import configure
from equipoise.runs.toy import Way, carry_out
from equipoise.suites.toy.starts import run_starts

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "toy.py"
WAY = Way(400, 0.01, "paper")


def untold(name, found):
    raise AssertionError(f"{name} was run again")


def children(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_a_killed_command_goes_on_with_what_is_missing(tmp_path):
    out = tmp_path / "toy.html"
    words = ["--methods", "ls,si,ldc", "--steps", "400", "--lr", "0.01", "--sign", "paper", "--jobs", "1"]
    command = [sys.executable, str(SCRIPT), *words, "--out", str(out)]
    first = WAY.folder(out) / "ls.json"
    job = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while not first.exists():
        assert job.poll() is None
        time.sleep(0.005)
    workers = children(job.pid)
    job.send_signal(signal.SIGKILL)
    job.wait()
    assert workers
    until = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < until, "a worker outlived the command"
        time.sleep(0.05)
    written = first.stat().st_mtime_ns
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "ls:" not in again.stdout
    assert first.stat().st_mtime_ns == written
    runs, failed = carry_out(["ls", "ldc"], WAY, out, jobs=1, told=untold)
    assert failed == {}
    for name, run in runs.items():
        config = configure("toy", name)
        whole = run_starts(config.method, config.options, steps=400, lr=0.01, sign="paper")
        assert torch.equal(run.points, whole.points)
        assert torch.equal(run.losses, whole.losses)
        assert (run.steps, run.method) == (400, name)
        assert run.seconds > 0
    assert "si: the loss of task '0' must be above 0" in again.stdout


def test_what_is_kept_is_checked(tmp_path):
    out = tmp_path / "toy.html"
    config = configure("toy", "ls")
    points = run_starts("ls", {}, steps=2).points.tolist()
    table = {"method": "ls", "options": dict(config.options), "steps": 400, "lr": 0.01, "sign": "paper", "seconds": 1.0}
    file = WAY.folder(out) / "ls.json"
    file.parent.mkdir()
    file.write_text(json.dumps({**table, "points": points}))
    runs, _ = carry_out(["ls"], WAY, out, jobs=1, told=untold)
    assert runs["ls"].points.tolist() == points
    for broken in ("{", json.dumps(table), json.dumps({**table, "points": [[1.0, 2.0]]})):
        file.write_text(broken)
        with pytest.raises(DamagedFile, match=r"ls\.json is damaged"):
            carry_out(["ls"], WAY, out, jobs=1, told=untold)
    file.write_text(json.dumps({**table, "options": {"weights": [1.0, 2.0]}, "points": points}))
    again = []
    carry_out(["ls"], WAY, out, jobs=1, told=lambda name, _: again.append(name))
    assert again == ["ls"]  # another method went by that name


def test_torch_and_numpy_are_enough():
    """Beside what these bring along themselves."""
    code = (
        "import sys, numpy, torch, torch._dynamo; before = {name.split('.')[0] for name in sys.modules}; "
        "import equipoise.runs.toy; "
        "print({name.split('.')[0] for name in sys.modules} - before - set(sys.stdlib_module_names))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "{'equipoise'}\n"
