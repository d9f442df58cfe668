"""Every number against another way of getting it."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn

import equipoise as eq
from diagnostics.models import TASKS, Net, jacobian
from equipoise.diagnostics import conflict, discrepancy, pareto_stationarity, stationarity
from equipoise.diagnostics.look import Look


def least_norm(gram):
    """min w'Gw over the simplex, by a general solver from several starts."""
    size = len(gram)
    unit = np.trace(gram) / size
    starts = np.vstack([np.full(size, 1 / size), np.random.default_rng(0).dirichlet(np.ones(size), 10)])
    found = [
        minimize(
            lambda w: w @ gram @ w / unit,
            start,
            jac=lambda w: 2 * gram @ w / unit,
            bounds=[(0, 1)] * size,
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": lambda w: np.ones(size)},
            method="SLSQP",
            options={"ftol": 1e-15, "maxiter": 500},
        )
        for start in starts
    ]
    return min(result.fun for result in found) * unit


@pytest.mark.parametrize("where", ["features", "parameters"])
def test_gradients_of_a_network(where):
    net = Net()
    losses, features = net.losses()
    shared = features if where == "features" else list(net.trunk.parameters())
    found = eq.diagnose(losses, shared).look
    J = jacobian(losses, [features] if where == "features" else shared).numpy()
    norms = np.linalg.norm(J, axis=1)
    np.testing.assert_allclose(found.conflict.norms, norms, rtol=1e-5)
    np.testing.assert_allclose(found.conflict.cosines, J @ J.T / np.outer(norms, norms), atol=1e-5)
    assert found.stationarity.value == pytest.approx(least_norm(J @ J.T), rel=1e-4)
    assert found.conflict.spread == pytest.approx(norms.max() / norms.min(), rel=1e-5)


def test_shares_of_pairs():
    generator = torch.Generator().manual_seed(3)
    J = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    J[2] = 0.0
    found = conflict(J @ J.T)
    rows = [i for i in range(7) if i != 2]
    cosines = [(i, j, float(J[i] @ J[j] / J[i].norm() / J[j].norm())) for i in rows for j in rows if i < j]
    values = [c for *_, c in cosines]
    assert found.conflicting == pytest.approx(np.mean([v < 0 for v in values]))
    assert found.opposed == pytest.approx(np.mean([v < -0.1 for v in values]))
    assert found.opposed < found.conflicting < 1
    assert found.lowest == pytest.approx(min(values))
    expected = sorted((pair for pair in cosines if pair[2] < 0), key=lambda pair: pair[2])[:4]
    assert [pair[:2] for pair in found.worst(4)] == [pair[:2] for pair in expected]
    assert [pair[2] for pair in found.worst(4)] == pytest.approx([pair[2] for pair in expected])
    assert all(cosine < 0 for *_, cosine in found.worst(100))
    assert found.cosines[2].isnan().all()


def test_no_pair_no_conflict():
    found = conflict(torch.ones(1, 1))
    assert found.conflicting == found.opposed == 0.0
    assert math.isnan(found.lowest)
    assert math.isnan(conflict(torch.zeros(2, 2)).spread)


def test_discrepancy_statistics():
    losses = [0.5, 4.0, 1.5, 2.0]
    found = discrepancy(losses)
    assert found == pytest.approx((np.mean(losses), np.std(losses), 0.5, 4.0, 8.0))
    assert math.isnan(discrepancy([-1.0, 2.0]).ratio)
    with pytest.raises(ValueError, match="at least one"):
        discrepancy([])


@pytest.mark.parametrize(("tasks", "width", "shift"), [(2, 9, 0.0), (5, 3, 0.0), (5, 3, 2.0), (12, 30, 0.5)])
def test_stationarity_against_a_general_solver(tasks, width, shift):
    generator = torch.Generator().manual_seed(tasks)
    J = torch.randn(tasks, width, generator=generator, dtype=torch.float64) + shift
    gram = J @ J.T
    found = stationarity(gram)
    assert found.value == pytest.approx(least_norm(gram.numpy()), rel=1e-5, abs=1e-9 * float(gram.trace()))
    assert found.value == pytest.approx(float((found.weights @ J).square().sum()), rel=1e-6, abs=1e-9)
    assert found.weights.sum() == pytest.approx(1.0)
    assert found.weights.min() >= 0
    assert found.relative == pytest.approx(found.value / float(gram.diagonal().min()), abs=1e-9)


def test_stationarity_of_right_angles_is_one_over_k():
    found = stationarity(4.0 * torch.eye(5, dtype=torch.float64))
    assert (found.value, found.relative) == (pytest.approx(0.8), pytest.approx(0.2))


def test_stationarity_leaves_absent_tasks_out():
    J = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    found = stationarity(J @ J.T, torch.tensor([True, False, True]))
    assert found.value == pytest.approx(0.8)  # between (1, 0) and (0, 2)
    assert found.weights[1] == 0.0
    assert stationarity(J @ J.T).value == pytest.approx(
        0.0, abs=1e-30
    )  # a task without a gradient is a stationary point by itself


def test_pareto_stationarity_at_parameters_and_features():
    net = Net()
    losses, features = net.losses()
    for shared, at in ((features, [features]), (net.trunk.parameters(), list(net.trunk.parameters()))):
        J = jacobian(losses, at).numpy()
        assert pareto_stationarity(losses, shared).value == pytest.approx(least_norm(J @ J.T), rel=1e-4)
    losses["near"].backward()  # the graph is still there


def test_an_absent_task_has_no_numbers():
    net = Net()
    losses, features = net.losses()
    whole = eq.diagnose({"near": losses["near"], "odd": losses["odd"]}, features).look
    for absent in ({**losses, "far": None}, losses):
        present = None if absent["far"] is None else [True, False, True]
        found = eq.diagnose(absent, features, present=present).look
        assert found.here == [0, 2]
        assert math.isnan(found.losses[1])
        assert found.discrepancy == whole.discrepancy
        assert found.conflict.norms[1] == 0.0
        assert found.conflict.lowest == pytest.approx(whole.conflict.lowest)
        assert found.stationarity.value == pytest.approx(whole.stationarity.value)
        assert [finding.kind for finding in eq.diagnose(absent, features, present=present).findings] == []


def test_a_stacked_tensor_of_losses():
    net = Net()
    losses, features = net.losses()
    stacked = eq.diagnose(torch.stack(list(losses.values())), features).look
    torch.testing.assert_close(stacked.conflict.cosines, eq.diagnose(losses, features).look.conflict.cosines)


def test_parts_of_the_pull():
    gram = torch.diag(torch.tensor([1.0, 81.0, 1.0], dtype=torch.float64))
    found = Look([2.0, 4.0, 1.0], [True, True, False], pull=[3.0, -0.5, 1.0], conflict=conflict(gram))
    assert found.shares == pytest.approx([2 * 3 / 7.5, 2 * 4.5 / 7.5, 0.0])  # by weight times gradient
    assert Look([1.0], [True], conflict=conflict(torch.ones(1, 1))).shares is None
    assert Look([1.0], [True], pull=[1.0]).shares is None
    assert Look([1.0], [True], pull=[0.0], conflict=conflict(torch.ones(1, 1))).shares is None


def test_half_precision_gradients_are_not_lost():
    """Gradients of 1e-7 are below what float16 holds, and above what it holds times 2^16."""
    features = torch.full((4,), 0.5, dtype=torch.float16, requires_grad=True) * 1
    losses = [(features * scale).float().sum() * 1e-7 for scale in (1.0, -2.0)]
    found = eq.diagnose(losses, features).look.conflict
    torch.testing.assert_close(found.norms, torch.tensor([2e-7, 4e-7], dtype=torch.float64), rtol=2e-2, atol=0.0)
    assert found.lowest == pytest.approx(-1.0)


def test_several_shared_tensors_are_one_vector():
    a, b = nn.Parameter(torch.tensor([1.0, 2.0])), nn.Parameter(torch.tensor([3.0]))
    found = eq.diagnose([a.sum() + b.sum(), a[0] - 2 * b.sum()], [a, b]).look.conflict
    torch.testing.assert_close(found.norms, torch.tensor([3.0, 5.0], dtype=torch.float64).sqrt())
    assert found.lowest == pytest.approx(-1 / math.sqrt(15))


def test_names_come_from_the_losses():
    net = Net()
    losses, features = net.losses()
    assert eq.diagnose(losses, features).tasks == TASKS
    assert eq.diagnose(list(losses.values()), features).tasks == ("0", "1", "2")
