"""Jobs that are interfered with: started as a user's command in a process of its own, followed by what it tells."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from equipoise.runs.config import configure
from runs import reading

RUNS = Path(__file__).parent.parent / "runs"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
RUN = ["slow", "famo"]
CONFIG_FOLDER = configure("toy", "famo").folder.replace("toy", "slow", 1)
STEPS = 32  # of the run, in 4 epochs with a checkpoint after each


class Job:
    """A command under way; `errors` has what it wrote to stderr by its end."""

    def __init__(self, root: Path, *words: str, launcher: list[str] | None = None) -> None:
        self.errors = ""
        self.log = root.with_name(f"{root.name}.{time.monotonic_ns()}.stderr").open("w+")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_DEDUP_LOGS": "0"}
        self.process = subprocess.Popen(
            [*(launcher or [sys.executable]), str(RUNS / "job.py"), str(root), *words],
            stdout=subprocess.PIPE, stderr=self.log, text=True, env=environment,
        )  # fmt: skip
        self.told: list[dict[str, Any]] = []

    def events(self) -> Iterator[dict[str, Any]]:
        """What it tells, as it comes."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self.told.append(json.loads(line))
                yield self.told[-1]

    def until_step(self, step: int) -> None:
        """Wait until it has got so far."""
        for event in self.events():
            if event["kind"] == "progress" and event["step"] >= step:
                return
        raise AssertionError(f"ended before step {step}: {self.finish()}, {self.errors}")

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        self.process.send_signal(number)

    def finish(self) -> int:
        """Its exit code, once it has ended."""
        for _ in self.events():
            pass
        code = self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.log.seek(0)
        self.errors = self.log.read()
        self.log.close()
        return code

    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.told]

    def first_step(self) -> int:
        """The first step it told of: after a restart, beyond the checkpoint."""
        return next(event["step"] for event in self.told if event["kind"] == "progress")

    def notes(self) -> str:
        return "\n".join(event["text"] for event in self.told if "text" in event)


def run_again(root: Path, *words: str, launcher: list[str] | None = None) -> Job:
    """The same command, to its end."""
    job = Job(root, *words, launcher=launcher)
    assert job.finish() == 0, job.errors
    return job


def ranks_of(job: Job) -> list[int]:
    """The processes torchrun started, in the order of their ranks."""
    parent = job.process.pid
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    environments = {int(pid): Path(f"/proc/{pid}/environ").read_text().split("\0") for pid in children}
    by_rank = {line: pid for pid, lines in environments.items() for line in lines if line.startswith("RANK=")}
    return [by_rank[name] for name in sorted(by_rank)]


def numbers(root: Path) -> tuple[Any, ...]:
    """Everything of the finished run that does not depend on the clock."""
    return reading.numbers(root / CONFIG_FOLDER)
