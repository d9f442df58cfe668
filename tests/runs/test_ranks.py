"""An epoch on two ranks that torchrun starts is an epoch in one process: parameters, weights, tables, metrics."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from equipoise.runs.checkpoint import read_checkpoint
from equipoise.runs.config import configure
from equipoise.runs.store import read_run
from equipoise.runs.train import train
from equipoise.suites import suite_class
from equipoise.suites.qm9.suite import QM9Sample

JOB = Path(__file__).parent / "job.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
METHODS = ("ldc", "famo", "dwa", "go4align", "mgda", "fairgrad", "uw", "stl:task=1")
PLACES = ("features", "parameters")
# Shares of 11 and 10 molecules, and a last batch of one: the second rank has no share of it.
SETTINGS = {"epochs": 1, "batch_size": 21}


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory):
    root = tmp_path_factory.mktemp("ranks")
    words = [f"{key}={value}" for key, value in SETTINGS.items()]
    command = [*TORCHRUN, str(JOB), str(root), "1", "plain", *METHODS, *words, f"places={','.join(PLACES)}"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return root


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("method", METHODS)
def test_an_epoch_on_two_ranks_is_one_in_a_process(method, place, on_two_ranks, tmp_path):
    config = configure("plain", f"{method}:shared={place}", settings=SETTINGS)
    whole = train(config, tmp_path)
    shared = read_run(on_two_ranks / config.folder)
    assert shared.config == config
    assert shared.environment["ranks"] == 2
    expected, found = (
        read_checkpoint(root / config.folder / "checkpoint.safetensors")["state"] for root in (tmp_path, on_two_ranks)
    )
    for part in ("model", "balancer"):
        assert found[part].keys() == expected[part].keys()
        for name, tensor in expected[part].items():
            torch.testing.assert_close(found[part][name], tensor, rtol=1e-5, atol=1e-5, msg=f"{part} {name}")
    assert found["random"].shape == (2, *expected["random"].shape)
    for row, other in zip(shared.steps, read_run(tmp_path / config.folder).steps, strict=True):
        assert row == pytest.approx(other, rel=1e-5)
    assert shared.result["metrics"] == pytest.approx(whole["metrics"], rel=1e-4)


def test_shares_are_the_whole_batch():
    suite = suite_class("plain")(batch_size=5)
    batch = suite.batches(0)[0]
    parts = [suite.share(batch, rank, 3) for rank in range(3)]
    assert sorted(torch.cat([part for part, _ in parts]).tolist()) == sorted(batch.tolist())
    assert [counts for _, counts in parts] == [[2.0] * 3, [2.0] * 3, [1.0] * 3]
    alone, counts = suite.share(batch[:1], 2, 3)
    assert (alone.tolist(), counts) == (batch[:1].tolist(), [0.0] * 3)


def test_shares_of_molecules_give_the_losses_of_the_whole_batch():
    suite = QM9Sample(tasks=("mu", "U0"), batch_size=300)
    model = suite.model()
    batch = list(suite.batches(0))[-1]  # 100 molecules and 200 empty places
    expected = suite.losses(model, batch)[0]
    parts = [suite.share(batch, rank, 3) for rank in range(3)]
    counts = torch.stack([counts for _, counts in parts])
    assert counts.sum(0).tolist() == [100, 100]
    losses = torch.stack([suite.losses(model, part)[0] for part, _ in parts])
    torch.testing.assert_close((losses * counts).sum(0) / counts.sum(0), expected)
    with pytest.raises(ValueError, match="`batch_size` must be at least the 301 ranks; found 300"):
        suite.share(batch, 0, 301)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plain", "ldc-double:inner_lr=0.1"], "ldc-double takes no shares of unequal size"),
        (["plain", "ls", "device=cuda:1"], "`device` must be cpu or cuda on several ranks"),
    ],
)
@pytest.mark.slow  # a launch each
def test_what_ranks_cannot_do_is_said(arguments, message, tmp_path):
    done = subprocess.run([*TORCHRUN, str(JOB), str(tmp_path), "1", *arguments], capture_output=True, text=True)
    assert done.returncode == 1
    assert message in done.stderr
