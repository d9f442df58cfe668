"""Ranks under torchrun are killed, stopped, orphaned: the same command ends with the numbers of an unbroken job."""

import os
import signal

import pytest

from faults.jobs import RUN, TORCHRUN, Job, numbers, ranks_of, run_again


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    root = tmp_path_factory.mktemp("unbroken") / "runs"
    run_again(root, "1", *RUN, launcher=TORCHRUN)
    return numbers(root)


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_kill_9_of_a_rank(victim, tmp_path, unbroken):
    root = tmp_path / "runs"
    job = Job(root, "1", *RUN, launcher=TORCHRUN)
    job.until_step(12)
    os.kill(ranks_of(job)[victim], signal.SIGKILL)
    assert job.finish() == 1
    assert "Signal 9 (SIGKILL)" in job.errors  # torchrun's words
    if victim == 1:
        # The other rank finds it gone, or is told to end by torchrun, whichever comes first.
        assert "another rank of this run has ended" in job.notes() or "Signal 15 (SIGTERM)" in job.errors
    again = run_again(root, "1", *RUN, launcher=TORCHRUN)
    assert again.first_step() > 8
    assert numbers(root) == unbroken


@pytest.mark.slow  # as the one above
def test_torchrun_restarts_the_ranks_itself(tmp_path, unbroken):
    root = tmp_path / "runs"
    launcher = [*TORCHRUN, "--max-restarts", "1"]
    job = Job(root, "1", *RUN, launcher=launcher)
    job.until_step(12)
    os.kill(ranks_of(job)[1], signal.SIGKILL)
    assert job.finish() == 0
    assert job.kinds().count("started") == 2
    assert numbers(root) == unbroken


@pytest.mark.slow  # as the one above
def test_sigterm_to_torchrun_stops_all_ranks_at_one_checkpoint(tmp_path, unbroken):
    root = tmp_path / "runs"
    job = Job(root, "1", *RUN, launcher=TORCHRUN)
    job.until_step(12)
    job.kill(signal.SIGTERM)
    assert job.finish() != 0
    assert job.kinds()[-2:] == ["stopping", "stopped"]
    done = max(event["step"] for event in job.told if event["kind"] == "progress")
    again = run_again(root, "1", *RUN, launcher=TORCHRUN)
    assert again.first_step() > done  # nothing was trained twice
    assert numbers(root) == unbroken


@pytest.mark.slow  # as the one above
def test_kill_9_of_torchrun_ends_its_ranks(tmp_path, unbroken):
    root = tmp_path / "runs"
    job = Job(root, "1", *RUN, launcher=TORCHRUN)
    job.until_step(12)
    orphans = ranks_of(job)
    job.kill()
    again = run_again(root, "1", *RUN, launcher=TORCHRUN)  # at once: it waits for the folder
    job.finish()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in orphans)
    assert again.first_step() > 8
    assert numbers(root) == unbroken


@pytest.mark.slow  # as the one above
def test_a_run_of_two_ranks_goes_on_in_one(tmp_path, unbroken):
    root = tmp_path / "runs"
    job = Job(root, "1", *RUN, launcher=TORCHRUN)
    job.until_step(12)
    job.kill(signal.SIGTERM)
    job.finish()
    again = run_again(root, "1", *RUN)
    assert "ranks 1 instead of 2" in again.notes()
    for row, other in zip(numbers(root)[0], unbroken[0], strict=True):
        assert row == pytest.approx(other, rel=1e-4)  # the same up to rounding
