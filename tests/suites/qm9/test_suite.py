"""QM9 as a suite: what a seed and an epoch determine, standardisation, losses and metrics; all on the sample."""

import numpy as np
import pytest
import torch

from equipoise.suites import suite_class
from equipoise.suites.qm9 import TASKS, data, load_sample
from equipoise.suites.qm9.suite import QM9, QM9Sample

SUITE = QM9Sample(seed=2)


def batch_rows(suite, epoch):
    return [batch.atoms[0].tolist() for batch in suite.batches(epoch)]


def test_the_suites_by_name():
    assert suite_class("qm9") is QM9 and suite_class("qm9-sample") is QM9Sample
    assert QM9.protocol.epochs == 300 and QM9.protocol.batch_size == 120 and QM9.protocol.lr == 1e-3
    assert [m.name for m in QM9.metrics] == list(TASKS) == list(QM9.stl)
    assert not any(m.higher_is_better for m in QM9.metrics)
    assert QM9.stl["homo"] == 60.576 and QM9.stl["cv"] == 0.07212


def test_seed_and_epoch_decide_everything():
    assert batch_rows(SUITE, 1) == batch_rows(QM9Sample(seed=2), 1)
    rows = SUITE.training_rows(1)
    assert not np.array_equal(rows, SUITE.training_rows(0))
    assert not np.array_equal(rows, QM9Sample(seed=3).training_rows(1))
    # every training molecule once an epoch, no other ever
    shown = rows[rows != SUITE.resident.empty]
    assert sorted(shown) == sorted(SUITE.parts.train) and len(shown) == 1000
    one, two, other = (suite.model().state_dict() for suite in (SUITE, QM9Sample(seed=2), QM9Sample(seed=3)))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["lin0.weight"], other["lin0.weight"])


def test_batches_are_those_of_the_permutation():
    """Sorting by size moves no molecule to another batch; the last batch is the rest."""
    order = np.random.RandomState([2, 0]).permutation(SUITE.parts.train)
    rows = SUITE.training_rows(0)
    assert len(SUITE.batches(0)) == len(rows) == 17
    for step, row in enumerate(rows):
        assert sorted(row[row != SUITE.resident.empty]) == sorted(order[step * 60 : step * 60 + 60])
        sizes = SUITE.resident.sizes[row]
        assert (np.diff(sizes) >= 0).all()
    assert (rows[-1] == SUITE.resident.empty).sum() == 20


def test_targets_are_standardised_by_the_training_part():
    chosen = torch.from_numpy(SUITE.parts.train)
    targets = SUITE.resident.targets[0, chosen].double()
    torch.testing.assert_close(targets.mean(0), torch.zeros(11, dtype=torch.float64), atol=1e-5, rtol=0)
    torch.testing.assert_close(targets.std(0), torch.ones(11, dtype=torch.float64), atol=1e-5, rtol=0)
    assert abs(float(SUITE.resident.targets[0, torch.from_numpy(SUITE.parts.test)].mean())) > 1e-4


def test_losses_and_metrics_are_what_they_say():
    model = SUITE.model()
    raw = load_sample().targets()
    mean, std = data.statistics(raw, SUITE.parts.train)
    last = list(SUITE.batches(0))[-1]  # two thirds full
    losses, shared = SUITE.losses(model, last)
    there = last.atoms[0] > 0
    assert int(there.sum()) == 40 and shared.shape == (60, 64)
    predictions = model(last)[0]
    torch.testing.assert_close(losses, (predictions - last.targets[0])[there].square().mean(0))
    # the metric, molecule by molecule, in the reported units
    found = np.zeros((len(raw), 11))
    for batch, row in zip(SUITE.batches(0), SUITE.training_rows(0), strict=True):
        found[row[row < len(raw)]] = (model(batch)[0].detach().double().numpy() * std + mean)[row < len(raw)]
    errors = np.abs(found - raw)[SUITE.parts.train].mean(0) * np.array(data_scales())
    everything = QM9Sample(seed=2)
    everything.parts = data.Split(SUITE.parts.train, SUITE.parts.train, SUITE.parts.test)
    metrics = everything.evaluate(model, "validation")
    np.testing.assert_allclose([metrics[task] for task in TASKS], errors, rtol=1e-4)


def data_scales():
    return [1000.0 if task in ("homo", "lumo", "zpve", "U0", "U", "H", "G") else 1.0 for task in TASKS]


def test_some_of_the_tasks():
    suite = QM9Sample(seed=2, tasks=("cv", "mu"))
    assert suite.tasks == ("cv", "mu") and [m.name for m in suite.metrics] == ["cv", "mu"]
    assert suite.stl == {"cv": 0.07212, "mu": 0.0671} and QM9Sample.tasks == TASKS
    first = next(iter(suite.batches(0)))
    all_tasks = next(iter(SUITE.batches(0)))
    assert torch.equal(first.targets[..., 0], all_tasks.targets[..., 10])
    assert set(suite.evaluate(suite.model(), "test")) == {"cv", "mu"}
    with pytest.raises(ValueError, match="did you mean 'homo'"):
        QM9Sample(tasks=("home",))


def test_the_trunk_is_all_but_the_heads():
    model = SUITE.model()
    trunk = {id(p) for p in SUITE.shared_parameters(model)}
    heads = [p for name, p in model.named_parameters() if "heads" in name]
    assert len(heads) == 22 and not any(id(p) in trunk for p in heads)
    assert len(trunk) + len(heads) == len(list(model.parameters()))


def test_qm9_reads_a_file_and_a_permutation(tmp_path):
    """The full suite's own path, on a file that holds some of the molecules."""
    from equipoise.suites.qm9 import compact

    file = tmp_path / "some.npz"
    file.write_bytes(compact.encode(load_sample().take(np.arange(200))))
    np.save(tmp_path / "order.npy", np.arange(200)[::-1])
    suite = QM9(data=file, permutation=tmp_path / "order.npy", batch_size=50)
    assert suite.parts.test.tolist() == list(range(199, 179, -1))
    assert len(suite.batches(0)) == 4 and suite.name == "qm9"


def test_it_learns():
    """A few steps of plain Adam lower the loss: the gradient points the right way."""
    suite = QM9Sample(seed=0, tasks=("alpha", "zpve"))
    model = suite.model()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    seen = []
    for batch in suite.batches(0):
        losses, _ = suite.losses(model, batch)
        optimizer.zero_grad()
        losses.sum().backward()
        optimizer.step()
        seen.append(float(losses.detach().mean()))
    assert np.mean(seen[-4:]) < 0.85 * np.mean(seen[:2])
