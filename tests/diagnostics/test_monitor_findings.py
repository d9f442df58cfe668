"""What `eq.Monitor` finds over many steps."""

import pytest
import torch
from torch import nn

import equipoise as eq
from diagnostics.models import TASKS, Net, kinds, train
from equipoise.diagnostics import monitor as module


@pytest.fixture
def generous(monkeypatch):
    """Gradients are never too dear."""
    monkeypatch.setattr(module, "SHARE", 1e9)


def test_a_router_that_died_and_an_objective_that_is_ls():
    w = nn.Parameter(torch.ones(3))
    balancer = eq.LDC(3, router="sigmoid", discrepancy=0.0)
    monitor = eq.Monitor(balancer, every=1)
    with torch.no_grad():
        balancer.router.logits.fill_(-1.0)
    for count in range(1, 6):
        balancer(list((w * count).unbind()))
        assert ("equals-ls" in kinds(monitor)) == (count == 5)
    found = monitor.report()
    assert [f.kind for f in found.findings] == ["equals-ls", "stuck", "dead-router"]
    assert "LS(0.33, 0.33, 0.33) to 0.001" in str(found)
    assert found.recommendation.startswith("Change the router")


def test_the_default_router_is_alive():
    net, balancer = Net(), eq.LDC(tasks=TASKS)
    monitor = eq.Monitor(balancer, every=5)
    train(net, balancer, 40)
    assert not {"stuck", "dead-router", "equals-ls"} & set(kinds(monitor))


def test_fixed_weights_are_not_called_ls():
    w = nn.Parameter(torch.ones(2))
    for balancer in (eq.LS(2), eq.STL(2)):
        monitor = eq.Monitor(balancer, every=1)
        for _ in range(8):
            balancer(w * 1.0)
        assert not {"equals-ls", "no-pull"} & set(kinds(monitor))


@pytest.mark.parametrize("form", ["hole", "missing", "mask", "both"])
def test_a_task_that_is_absent_too_often(form):
    w = nn.Parameter(torch.ones(3))
    balancer = eq.LS(tasks=("a", "b", "c"))
    monitor = eq.Monitor(balancer, every=10)
    for step in range(40):
        losses = dict(zip("abc", (w * 1.0).unbind(), strict=True))
        here = step % 20 == 0
        present = None
        if not here and form in ("hole", "both"):
            losses["b"] = None
        if not here and form == "missing":
            del losses["b"]
        if form in ("mask", "both"):
            present = [True, here or form == "both", True]  # a loss that is None is absent, whatever the mask says
        balancer(losses, present=present)
    assert "Absent too often, in 38 of 40 steps: 'b'." in [f.text for f in monitor.report().findings]
    assert monitor.state_dict()["absent"] == [0, 38, 0]


def test_a_solver_that_falls_back_is_counted():
    w = nn.Parameter(torch.tensor([1.0, 1.0]))
    balancer = eq.FairGrad(2)
    monitor = eq.Monitor(balancer, every=10)
    with pytest.warns(UserWarning, match="no solution"):
        for step in range(10):
            sign = -1.0 if step < 3 else 1.0
            balancer([w[0] * 1.0, sign * w[0] + (0.0 if step < 3 else 1.0) * w[1]], [w])
    assert "The solver fell back in 3 of 10 steps" in str(monitor.report())


def test_bad_gradients_are_reported(generous):
    w = nn.Parameter(torch.tensor([0.0, 1.0]))
    balancer = eq.LS(2)
    monitor = eq.Monitor(balancer, every=1)
    balancer([w[0].sqrt() + 1.0, w[1] * 1.0], shared=[w])  # the slope of a root at 0
    assert [f.text for f in monitor.report().findings] == ["The gradient is not finite: '0'."]
    assert monitor.report().recommendation.startswith("Mend this first")
