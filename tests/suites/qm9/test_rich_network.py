"""Rich features in use: dense batches, the network against others', the suites, a run and a fleet."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise.runs.config import RunConfig, configure
from equipoise.runs.store import read_run
from equipoise.runs.train import train
from equipoise.suites.qm9 import compact, load_sample, rich
from equipoise.suites.qm9.dense import unpack_pairs
from equipoise.suites.qm9.fleet import Fleet, Speed
from equipoise.suites.qm9.messages import make_tiles
from equipoise.suites.qm9.network import features, pack
from equipoise.suites.qm9.perception import AROMATIC, perceive
from equipoise.suites.qm9.suite import QM9, QM9Sample

sys.path.insert(0, str(Path(__file__).parent))
import qm9_reference as reference

SAMPLE = load_sample()
needs_rdkit = pytest.mark.skipif(importlib.util.find_spec("rdkit") is None, reason="rdkit is missing")
needs_pyg = pytest.mark.skipif(importlib.util.find_spec("torch_geometric") is None, reason="torch_geometric is missing")
quiet_pyg = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # its use of torch.jit


def test_a_pair_holds_distance_and_class():
    few = SAMPLE.take(np.arange(30))
    more, chosen = replace(few, perception=reference.made_up(few)), np.array([7])
    batch = reference.dense_batch(more, chosen)
    n = int(more.atoms[7])
    distance, found = (part.view(n, n) for part in unpack_pairs(batch.pairs, batch.rich))
    position = torch.from_numpy(more.position[slice(*more.atom_offset[7:9])])
    torch.testing.assert_close(distance, torch.cdist(position, position), rtol=2e-6, atol=2e-6)
    expected = torch.zeros(n, n, dtype=torch.int32)
    bonds = slice(*more.bond_offset[7:9])
    i, j = torch.from_numpy(more.bond[bonds].astype(np.int64)).T
    expected[i, j] = expected[j, i] = torch.from_numpy(more.bond_classes()[bonds].astype(np.int32))
    assert torch.equal(found, expected) and (found == AROMATIC).any()


def test_equals_the_network_written_out():
    few = SAMPLE.take(np.array([0, 17, 1234, 4999]))
    more = replace(few, perception=reference.made_up(few))
    chosen = reference.sorted_rows(more, np.arange(4))
    net, batch = reference.network(), reference.dense_batch(more, chosen, groups=2)
    predictions, shared = net(batch)
    slow, slow_shared = reference.slow_forward(dict(net.named_parameters()), more, chosen)
    assert reference.relative(predictions, slow) < 1e-5
    assert reference.relative(shared, slow_shared) < 1e-5
    fast, exact = (reference.gradients(net, found, batch.targets[0]) for found in (predictions, slow))
    for name, gradient in fast.items():
        assert reference.relative(gradient, exact[name]) < 2e-5, name
    published = net(reference.dense_batch(few, chosen, groups=2))[0]
    assert reference.relative(published, slow) > 1e-2  # the features matter


@quiet_pyg
@needs_pyg
@needs_rdkit
def test_equals_torch_geometric_on_real_molecules():
    few = SAMPLE.take(np.random.RandomState(5).permutation(5000)[:40])
    more = replace(few, perception=perceive(few))
    assert (more.bond_classes() == AROMATIC).sum() > 20
    chosen = reference.sorted_rows(more, np.arange(40))
    net, batch = reference.network(), reference.dense_batch(more, chosen)
    modules = reference.pyg_network()
    modules.load_state_dict(net.state_dict())
    predictions, shared = net(batch)
    expected, expected_shared = modules(reference.pyg_batch(more, chosen))
    assert reference.relative(predictions, expected) < 1e-5
    assert reference.relative(shared, expected_shared) < 1e-5
    fast = reference.gradients(net, predictions, batch.targets[0])
    slow = reference.gradients(modules, expected, batch.targets[0])
    for name, gradient in fast.items():
        assert reference.relative(gradient, slow[name]) < 1e-5, name


def test_fused_messages_refuse():
    few = SAMPLE.take(np.arange(6))
    batch = reference.dense_batch(replace(few, perception=reference.made_up(few)), np.arange(6))
    weights = pack(dict(reference.network().named_parameters()))
    tiles = torch.from_numpy(make_tiles(batch.layout.groups))
    with pytest.raises(ValueError, match="`tiles` must be None for rich features"):
        features(weights, batch, tiles=tiles)


# The suites.


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A file with sixty molecules; RDKit's answer about them is made up."""
    monkeypatch.setattr(rich, "perceive", lambda molecules, say: reference.made_up(molecules))
    path = tmp_path / "sixty.npz"
    path.write_bytes(compact.encode(SAMPLE.take(np.arange(60))))
    return path


def test_the_suites_option(file, monkeypatch):
    suite = QM9(data=file, rich=True, batch_size=20)
    batch = next(iter(suite.batches(0)))
    assert batch.rich and batch.nodes[..., 6:10].any()
    assert len(list(file.parent.glob("qm9-rich-*.npz"))) == 1
    part, _ = suite.share(batch, 1, 2)
    mine = range(1, 20, 2)
    torch.testing.assert_close(suite.model()(part)[0], suite.model()(batch)[0][mine], rtol=1e-5, atol=1e-6)
    plain = next(iter(QM9(data=file, batch_size=20).batches(0)))
    assert not plain.rich and not plain.nodes[..., 6:10].any()
    monkeypatch.setenv("EQUIPOISE_CACHE", str(file.parent / "cache"))
    assert QM9Sample(rich=True).molecules.perception is not None and QM9Sample().molecules.perception is None
    assert len(list((file.parent / "cache").glob("qm9-rich-*.npz"))) == 1
    with pytest.raises(ValueError, match=r"`rich` should be True or False\. Found 'yes'"):
        QM9(rich="yes")


SETTINGS = {"epochs": 1, "batch_size": 20, "suite.tasks": ["mu", "cv"], "suite.rich": True}


def test_a_run_takes_it_and_says_so(file, tmp_path):
    config = configure("qm9", "ls", settings={**SETTINGS, "data": str(file)})
    train(config, tmp_path / "runs")
    stored = read_run(tmp_path / "runs" / config.folder)
    assert stored.config == config and stored.config.suite_options["rich"] is True
    assert RunConfig.from_table(config.to_table()) == config
    plain = configure("qm9", "ls", settings={**SETTINGS, "suite.rich": False, "data": str(file)})
    train(plain, tmp_path / "plain")
    assert read_run(tmp_path / "plain" / plain.folder).result["metrics"] != stored.result["metrics"]


def test_a_fleet_takes_it_by_plain_products(file):
    configs = [configure("qm9", method, settings=SETTINGS) for method in ("ls", "si")]
    fleet = Fleet(configs, "cpu", data=file)
    assert fleet.resident.rich
    for run, metrics in enumerate(fleet.evaluate("test")):
        suite = QM9(seed=configs[run].seed, data=file, batch_size=20, tasks=("mu", "cv"), rich=True)
        assert metrics == pytest.approx(suite.evaluate(suite.model(), "test"), rel=1e-5)
    with pytest.raises(ValueError, match=r"`speed\.fused` must be False for rich features"):
        Fleet(configs, "cpu", Speed(fused=True), file)
    with pytest.raises(ValueError, match="must agree on `suite_options`"):
        Fleet([configs[0], configure("qm9", "si", settings={**SETTINGS, "suite.rich": False})], "cpu", data=file)
