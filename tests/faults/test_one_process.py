"""A job is killed, told to stop, starved of disk or finds its files damaged: the same command brings it to its end."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest
import torch

from equipoise.runs.config import configure
from equipoise.runs.store import DiskFull
from equipoise.runs.train import train
from faults.jobs import CONFIG_FOLDER, RUN, RUNS, Job, numbers, run_again


@pytest.fixture(scope="module", autouse=True)
def suites():
    """The tests' suites, in this process too."""
    from equipoise import suites

    sys.path.insert(0, str(RUNS))
    from twin import SUITES

    before = dict(suites._SUITES)
    suites._SUITES.update(SUITES)
    yield
    suites._SUITES.clear()
    suites._SUITES.update(before)
    sys.path.remove(str(RUNS))


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory, suites):
    root = tmp_path_factory.mktemp("unbroken")
    train(configure(*RUN), root)
    return numbers(root)


def test_sigterm_stops_at_a_checkpoint(tmp_path, unbroken):
    root = tmp_path / "runs"
    job = Job(root, "1", *RUN)
    job.until_step(12)
    job.kill(signal.SIGTERM)
    assert job.finish() == 130
    assert job.kinds()[-2:] == ["stopping", "stopped"]
    done = max(event["step"] for event in job.told if event["kind"] == "progress")
    again = run_again(root, "1", *RUN)
    assert again.first_step() > done  # nothing was trained twice
    assert numbers(root) == unbroken


@pytest.mark.slow  # three processes
def test_kill_9_of_the_whole_job_and_the_command_at_once_again(tmp_path, unbroken):
    root = tmp_path / "runs"
    job = Job(root, "1", *RUN)
    job.until_step(12)
    worker = int((root / CONFIG_FOLDER / ".lock").read_text())
    os.kill(worker, signal.SIGSTOP)  # it will still be there when the command is given again
    try:
        job.kill()
        assert job.process.wait() == -signal.SIGKILL
        again = Job(root, "1", *RUN)
        note = next(event["text"] for event in again.events() if event["kind"] == "note")
    finally:
        os.kill(worker, signal.SIGCONT)
    assert f"is being written by process {worker}: waiting up to 30 s" in note
    assert again.finish() == 0, again.errors
    job.finish()
    assert again.first_step() > 8
    assert numbers(root) == unbroken


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 192 kB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=192k", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"no disk of our own can be mounted here: {done.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def fill(path):
    """Take all the room that is left."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def test_a_full_disk_is_named_and_costs_nothing_before_the_checkpoint(small_disk, unbroken):
    config, filler, steps = configure(*RUN), small_disk / "filler", iter(range(100))

    def fill_later():
        if next(steps) == 12:
            fill(filler)
        return False

    with pytest.raises(DiskFull, match=r"no space is left on its disk.*the same command goes on from there"):
        train(config, small_disk, stop=fill_later)
    with pytest.raises(DiskFull):  # as often as one likes
        train(config, small_disk)
    filler.unlink()
    first = []
    train(config, small_disk, notify=lambda event: first.append(event.get("step")))
    assert first[0] == 9
    assert numbers(small_disk) == unbroken


def test_a_disk_that_is_full_from_the_start(small_disk):
    fill(small_disk / "filler")
    with pytest.raises(DiskFull):
        train(configure(*RUN), small_disk)
    (small_disk / "filler").unlink()
    assert train(configure(*RUN), small_disk)["steps"] == 32


def test_a_worker_that_is_killed_in_the_middle_of_a_write(tmp_path, unbroken):
    """The checkpoint is cut short and the tables have half a row more: what a kill and a power cut leave together."""
    config, root = configure(*RUN), tmp_path
    steps = iter(range(100))
    with contextlib.suppress(KeyboardInterrupt):
        train(config, root, stop=lambda: _interrupt_at(next(steps), 20))
    folder = root / CONFIG_FOLDER
    checkpoint = folder / "checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:777])
    (folder / ".writing-xyz").write_bytes(b"half a checkpoint")
    with (folder / "metrics.csv").open("a") as file:
        file.write("2,0.5")
    notes = []
    train(config, root, notify=lambda event: notes.append(event.get("text", event.get("step"))))
    assert "checkpoint.safetensors is damaged" in notes[0]
    assert "Looking for an older checkpoint" in notes[0]
    assert notes[1] == 9  # the older one is of the first epoch
    assert not list(folder.glob(".writing-*"))
    assert numbers(root) == unbroken


def _interrupt_at(step, last):
    if step == last:
        raise KeyboardInterrupt
    return False


def test_an_older_checkpoint_is_no_newer_than_it_says(tmp_path):
    """Two runs' states are not mixed: a checkpoint whose tables are not the folder's is refused by name."""
    config = configure(*RUN)
    other = configure(*RUN, seed=1)
    for each in (config, other):
        steps = iter(range(100))
        with contextlib.suppress(KeyboardInterrupt):
            train(each, tmp_path, stop=lambda steps=steps: _interrupt_at(next(steps), 10))
    ours, theirs = (tmp_path / each.folder / "checkpoint.safetensors" for each in (config, other))
    ours.write_bytes(theirs.read_bytes())
    notes = []
    train(config, tmp_path, notify=lambda event: notes.append(event.get("text", "")))
    assert "the rows before the checkpoint are not those that were written" in notes[0]


def test_a_stopped_run_in_another_number_of_threads(tmp_path, unbroken):
    """A restart on a machine with other cores uses the threads the run began with."""
    config, before = configure(*RUN), torch.get_num_threads()
    steps = iter(range(100))
    with contextlib.suppress(KeyboardInterrupt):
        train(config, tmp_path, stop=lambda: _interrupt_at(next(steps), 20))
    torch.set_num_threads(before + 1)
    try:
        train(config, tmp_path)
        assert torch.get_num_threads() == before
    finally:
        torch.set_num_threads(before)
    assert numbers(tmp_path) == unbroken
