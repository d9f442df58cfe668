"""The network on dense batches against edge lists, one edge at a time, and against PyTorch Geometric's modules."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise.suites.qm9 import load_sample
from equipoise.suites.qm9.dense import Layout, Resident, by_size, plan_layout, unpack_pairs
from equipoise.suites.qm9.model import Network
from equipoise.suites.qm9.network import pack, shapes, unpack
from equipoise.suites.qm9.precision import product

sys.path.insert(0, str(Path(__file__).parent))
import qm9_reference as reference

SAMPLE = load_sample()
TARGETS = (SAMPLE.targets() - SAMPLE.targets().mean(0)) / SAMPLE.targets().std(0)
needs_pyg = pytest.mark.skipif(importlib.util.find_spec("torch_geometric") is None, reason="torch_geometric is missing")
quiet_pyg = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # its use of torch.jit


def test_parameters_are_the_published_ones():
    net = Network()
    assert sum(p.numel() for p in net.parameters()) == 617_675
    for weight, shape in zip(pack(dict(net.named_parameters())), shapes(11), strict=True):
        assert tuple(weight.shape) == (1, *shape)


def test_unpacking_gives_back_what_was_packed():
    net = reference.network()
    packed = pack(dict(net.named_parameters()))
    named = unpack(packed, 0)
    assert set(named) == {name for name, _ in net.named_parameters()}
    for name, parameter in net.named_parameters():
        assert torch.equal(named[name], parameter), name


def test_equals_the_network_written_out():
    chosen = reference.sorted_rows(SAMPLE, [0, 17, 1234, 4999, 2500])
    net, batch = reference.network(), reference.dense_batch(SAMPLE, chosen, groups=2)
    predictions, shared = net(batch)
    parameters = {name: p.double() for name, p in net.named_parameters()}
    torch.set_default_dtype(torch.float64)
    try:
        slow, slow_shared = slow_double(parameters, chosen)
    finally:
        torch.set_default_dtype(torch.float32)
    assert reference.relative(predictions, slow) < 2e-6
    assert reference.relative(shared, slow_shared) < 2e-6
    fast = reference.gradients(net, predictions, batch.targets[0])
    expected = reference.gradients(net, slow, batch.targets[0].double())
    for name, gradient in fast.items():
        assert reference.relative(gradient, expected[name]) < 1e-5, name


def slow_double(parameters, chosen):
    return reference.slow_forward(parameters, _Double(SAMPLE), chosen)


class _Double:
    """The molecules with features and float32 positions handed out in float64."""

    def __init__(self, molecules):
        self.molecules = molecules

    def __getattr__(self, name):
        found = getattr(self.molecules, name)
        return found.astype(np.float64) if name == "position" else found

    def features(self):
        return self.molecules.features().astype(np.float64)


@quiet_pyg
@needs_pyg
def test_equals_torch_geometric_on_real_molecules():
    chosen = reference.sorted_rows(SAMPLE, np.random.RandomState(5).permutation(5000)[:40])
    net, batch = reference.network(), reference.dense_batch(SAMPLE, chosen)
    published = reference.pyg_network()
    published.load_state_dict(net.state_dict())
    predictions, shared = net(batch)
    expected, expected_shared = published(reference.pyg_batch(SAMPLE, chosen))
    assert reference.relative(predictions, expected) < 1e-5
    assert reference.relative(shared, expected_shared) < 1e-5
    fast = reference.gradients(net, predictions, batch.targets[0])
    slow = reference.gradients(published, expected, batch.targets[0])
    for name, gradient in fast.items():
        assert reference.relative(gradient, slow[name]) < 1e-5, name


@quiet_pyg
@needs_pyg
def test_edges_are_those_of_torch_geometric():
    chosen = np.array([7])
    batch = reference.dense_batch(SAMPLE, chosen)
    graph = reference.pyg_batch(SAMPLE, chosen)
    n = int(SAMPLE.atoms[7])
    distance, order = (part.view(n, n) for part in unpack_pairs(batch.pairs))
    source, target = graph.edge_index
    torch.testing.assert_close(distance[target, source], graph.edge_attr[:, 4], rtol=1e-6, atol=0)
    kinds = torch.nn.functional.one_hot(order[target, source].long(), 4)[:, 1:].float()
    assert torch.equal(kinds, graph.edge_attr[:, :3])
    assert (distance.diagonal() == 0).all() and (order.diagonal() == 0).all()


def test_layout_and_empty_places_change_nothing():
    chosen = reference.sorted_rows(SAMPLE, [3, 400, 800, 1200, 1600, 2000])
    net = reference.network()
    alone = net(reference.dense_batch(SAMPLE, chosen, groups=3))[0]
    padded = np.concatenate([[len(SAMPLE)] * 2, chosen])
    resident = Resident(SAMPLE, TARGETS[None], "cpu")
    batch = resident.gather(torch.from_numpy(padded)[None], Layout(((8, 27),)))
    torch.testing.assert_close(net(batch)[0][2:], alone, rtol=1e-5, atol=1e-6)
    assert batch.share[0].tolist() == pytest.approx([0, 0, *[1 / 6] * 6])


def test_runs_do_not_meet():
    """Two runs with their own weights and molecules give what each gives alone."""
    rows = by_size(np.arange(12), SAMPLE.atoms, 6, empty=len(SAMPLE))
    layout = plan_layout(SAMPLE.atoms[rows], 2)
    resident = Resident(SAMPLE, TARGETS[None], "cpu")
    nets = [reference.network(), Network()]
    alone = [net(resident.gather(torch.from_numpy(rows[r : r + 1]), layout))[0] for r, net in enumerate(nets)]
    from equipoise.suites.qm9.network import Weights, features, predictions

    both = Weights(*(torch.cat(pair) for pair in zip(*(pack(dict(n.named_parameters())) for n in nets), strict=True)))
    batch = resident.gather(torch.from_numpy(rows), layout)
    together = predictions(both, features(both, batch))
    for r in range(2):
        torch.testing.assert_close(together[r], alone[r], rtol=1e-5, atol=1e-6)


def test_layout_is_the_cheapest_that_fits():
    rng = np.random.RandomState(0)
    sizes = np.sort(rng.randint(3, 30, (5, 8)), axis=1)
    layout = plan_layout(sizes, most=3)
    assert layout.molecules == 8 and len(layout.groups) == 3
    for molecules, _, _, capacity in layout.slices():
        assert sizes[:, molecules].max() == capacity

    def cost(groups):
        return sum(count * n * (1 + n / 64) for count, n in groups)

    widest = sizes.max(0)
    cuts = [(a, b) for a in range(1, 7) for b in range(a + 1, 8)]
    others = [cost([(a, widest[a - 1]), (b - a, widest[b - 1]), (8 - b, widest[7])]) for a, b in cuts]
    assert cost(layout.groups) == pytest.approx(min(others))
    assert plan_layout(sizes, most=1).groups == ((8, int(widest[-1])),)


@pytest.mark.parametrize(
    ("precision", "bound"), [("float32", 3e-7), ("split", 1e-6), ("tf32", 1e-3), ("half", 1e-3), ("bf16", 8e-3)]
)
def test_products_are_as_exact_as_they_say(precision, bound):
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(3, 20, 132, generator=generator).requires_grad_()
    right = torch.randn(3, 132, 16, generator=generator).requires_grad_()
    with torch.no_grad():
        right[1] *= 1e-6  # out of half's range
    weight = torch.randn(3, 20, 16, generator=generator)
    weight[2] *= 1e-7
    out = product(left, right, precision)
    got = torch.autograd.grad((out * weight).sum(), (left, right))
    a, b = left.detach().double().requires_grad_(), right.detach().double().requires_grad_()
    exact = a @ b
    wanted = torch.autograd.grad((exact * weight).sum(), (a, b))
    for found, expected in zip((out, *got), (exact, *wanted), strict=True):
        for m in range(3):
            error = float((found[m] - expected[m]).detach().norm() / expected[m].detach().norm())
            assert error < bound, (precision, error)
    if precision != "float32":
        assert error > bound / 50  # the arithmetic is really the coarser one
