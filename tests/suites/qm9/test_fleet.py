"""Runs side by side in one step: each learns what it learns alone, and a killed fleet goes on to the same numbers."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise.registry import make, methods
from equipoise.runs.config import configure
from equipoise.runs.store import read_run
from equipoise.suites.qm9 import compact, load_sample
from equipoise.suites.qm9.fleet import Fleet, adam
from equipoise.suites.qm9.messages import make_tiles
from equipoise.suites.qm9.network import pack, shapes, unpack
from equipoise.suites.qm9.suite import QM9

sys.path.insert(0, str(Path(__file__).parent))
import fleet_job

TASKS = ("mu", "r2", "cv")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A file with sixty molecules: 48 to train on, six for validation and six for the test."""
    file = tmp_path_factory.mktemp("qm9") / "sixty.npz"
    file.write_bytes(compact.encode(load_sample().take(np.arange(60))))
    return file


def config(method, seed=0, **settings):
    return configure("qm9", method, seed=seed, settings={"batch_size": 20, "suite.tasks": list(TASKS), **settings})


def weights_of(fleet, run):
    """The run's parameters under their published names."""
    row = torch.cat([fleet.trunk[run], fleet.heads[run]]).detach()
    sizes = shapes(len(TASKS))
    parts = row.split([rows * columns for rows, columns in sizes])
    packed = [part.view(1, *size) for part, size in zip(parts, sizes, strict=True)]
    return unpack(type(pack(dict(QM9().model().named_parameters())))(*packed), 0)


def train_alone(config, data):
    """Three steps of the suite's own network under torch.optim.Adam: the losses, and all weights after them."""
    suite = QM9(seed=config.seed, data=data, batch_size=20, tasks=TASKS)
    model = suite.model()
    torch.manual_seed(config.seed)
    balancer = make(config.method, tasks=TASKS, **config.options)
    groups = [{"params": model.parameters(), "lr": config.lr}]
    own = {"params": list(balancer.parameters()), "lr": config.balancer_lr}
    optimizer = torch.optim.Adam([*groups, own] if own["params"] else groups)
    seen = []
    for batch in suite.batches(0):
        losses, shared = suite.losses(model, batch)
        optimizer.zero_grad()
        balancer(losses, shared=shared if balancer.needs_shared else None).backward()
        optimizer.step()
        if balancer.needs_after_step:
            balancer.after_step(suite.losses(model, batch)[0].detach())
        seen.append(losses.detach())
    return torch.stack(seen).mean(0), dict(model.named_parameters()), balancer


def test_each_run_learns_what_it_learns_alone(data):
    configs = [config("ldc"), config("fairgrad", seed=1), config("famo"), config("uw", lr=3e-4)]
    fleet = Fleet(configs, "cpu", data=data)
    fleet.train_epoch(fleet.epoch_rows(0))
    for run, each in enumerate(configs):
        losses, parameters, balancer = train_alone(each, data)
        torch.testing.assert_close(fleet.losses_sum[run] / 3, losses, rtol=1e-4, atol=0)
        torch.testing.assert_close(fleet.balancers[run].weights, balancer.weights, rtol=1e-3, atol=1e-5)
        start = dict(QM9(seed=each.seed, tasks=TASKS).model().named_parameters())
        for name, found in weights_of(fleet, run).items():
            moved = parameters[name].detach() - start[name].detach()
            # Adam makes whole steps even of gradients that are rounding alone: a few entries may go elsewhere.
            assert (found - start[name] - moved).norm() < 0.05 * moved.norm(), (each.label, name)


def test_every_method_but_the_double_loop_trains_in_a_fleet(tmp_path):
    (tmp_path / "ten.npz").write_bytes(compact.encode(load_sample().take(np.arange(10))))
    names = [name for name in methods() if name != "ldc-double"]
    fleet = Fleet([config(name, batch_size=8) for name in names], "cpu", data=tmp_path / "ten.npz")
    before = fleet.trunk.detach().clone()
    fleet.train_epoch(fleet.epoch_rows(0))
    assert fleet.steps == 1 and fleet.losses_sum.isfinite().all()
    torch.testing.assert_close(fleet.losses_sum, fleet.losses_sum[:1].expand_as(fleet.losses_sum))  # one start for all
    for name, start, end in zip(names, before, fleet.trunk.detach(), strict=True):
        assert end.isfinite().all() and 0 < (end - start).abs().max() < 1.001e-3, name  # Adam's first step


def test_runs_of_other_methods_can_follow(data):
    fleet = Fleet([config("ls"), config("si", seed=1)], "cpu", data=data)
    fleet.train_epoch(fleet.epoch_rows(0))
    once = fleet.losses_sum.clone()
    fleet.train_epoch(fleet.epoch_rows(0))
    assert not torch.equal(fleet.losses_sum, once)
    fleet.restart([config("ls"), config("ldc", seed=1)])
    fleet.train_epoch(fleet.epoch_rows(0))
    assert torch.equal(fleet.losses_sum[0], once[0]) and not torch.equal(fleet.losses_sum[1], once[1])
    with pytest.raises(ValueError, match=r"must have the seeds \[0, 1\]; found \[0, 0\]"):
        fleet.restart([config("ls"), config("ls")])


def test_metrics_are_the_suites_own(data):
    fleet = Fleet([config("ls"), config("ls", seed=1)], "cpu", data=data)
    for run, metrics in enumerate(fleet.evaluate("test")):
        suite = QM9(seed=run, data=data, batch_size=20, tasks=TASKS)
        assert metrics == pytest.approx(suite.evaluate(suite.model(), "test"), rel=1e-5)


def test_configurations_that_cannot_share_a_step_are_refused(data):
    with pytest.raises(ValueError, match="must agree on `batch_size`"):
        Fleet([config("ls"), config("ls", batch_size=10)], "cpu", data=data)
    with pytest.raises(ValueError, match="at the features in a single loop; found 'ldc-double'"):
        Fleet([config("ldc-double")], "cpu", data=data)


def test_adam_is_torchs():
    generator = torch.Generator().manual_seed(0)
    ours = torch.randn(2, 50, generator=generator)
    theirs = torch.nn.Parameter(ours.clone())
    optimizer = torch.optim.Adam([theirs], lr=1e-2)
    moments = torch.zeros_like(ours), torch.zeros_like(ours)
    for step in range(1, 6):
        theirs.grad = torch.randn(2, 50, generator=generator)
        adam(ours, theirs.grad, *moments, torch.tensor([[1e-2], [1e-2]]), torch.tensor(float(step)).double())
        optimizer.step()
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-5, atol=1e-7)


def test_tiles_hold_every_row_once_and_little_else():
    """The layout that fits every batch of 300 epochs of QM9: 40 tiles, where its 2,452 rows fill 38.3."""
    groups = ((27, 17), (32, 19), (32, 21), (16, 23), (8, 25), (5, 29))
    tiles = make_tiles(groups)
    assert tiles.shape == (40, 3, 64)
    rows = tiles[:, 0][tiles[:, 0] >= 0]
    assert sorted(rows.tolist()) == list(range(2452))
    pair_of, begin, row = {}, 0, 0
    for count, capacity in groups:
        for _ in range(count):
            for atom in range(capacity):
                pair_of[row + atom] = (begin + atom * capacity, row)
            begin, row = begin + capacity**2, row + capacity
    for table, first, pairs in tiles:
        for place in np.flatnonzero(table >= 0):
            start, molecule = pair_of[int(table[place])]
            assert pairs[place] == start and table[first[place]] == molecule
        assert (first[table < 0] == -1).all()


def rows_but_time(run):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in run.metrics]


def test_killed_anywhere_it_ends_with_the_same_numbers(data, tmp_path):
    """A fleet killed with -9 twice, in an epoch and while it writes, and resumed."""
    whole = fleet_job.training(data, tmp_path, 3)
    whole.run()
    whole.write_folders(tmp_path / "whole")
    folder = tmp_path / "killed"
    folder.mkdir()
    command = [sys.executable, fleet_job.__file__, str(data), str(folder), "3"]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=one_thread) as process:
        while not (folder / "fleet.safetensors").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()  # in the second epoch
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=one_thread) as process:
        assert any(line.startswith("epoch 2") for line in process.stdout)
        process.kill()  # while the checkpoint is written
    last = subprocess.run(command, capture_output=True, text=True, check=True, env=one_thread)
    assert "goes on after epoch" in last.stdout
    for each in whole.runs:
        one, other = (read_run(root / each.config.folder) for root in (tmp_path / "whole", folder / "runs"))
        assert len(one.metrics) == 3 and rows_but_time(one) == rows_but_time(other)
        assert one.result["metrics"] == other.result["metrics"]
        assert one.result["best_epoch"] == other.result["best_epoch"]


def test_a_checkpoint_holds_everything_and_is_refused_to_other_runs(data, tmp_path):
    first = fleet_job.training(data, tmp_path, 1)
    first.run()
    again = fleet_job.training(data, tmp_path, 1)
    assert again.finished and [run.state() for run in again.runs] == [run.state() for run in first.runs]
    assert again.runs[0].best["epoch"] == 0 and again.runs[0].plateau.best == again.runs[0].best["score"]
    for one, other in zip(first.fleet.state()["moments"], again.fleet.state()["moments"], strict=True):
        assert torch.equal(one, other) and one.any()
    with pytest.raises(ValueError, match="is of other runs"):
        fleet_job.training(data, tmp_path, 2)
