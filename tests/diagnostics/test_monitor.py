"""`eq.Monitor`: it sees what happens, changes nothing, costs next to nothing."""

import copy
import json
import pickle
from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import equipoise as eq
from diagnostics.models import TASKS, Net, everything, jacobian, kinds, same, train
from equipoise.diagnostics import monitor as module


@pytest.fixture
def generous(monkeypatch):
    """Gradients are never too dear."""
    monkeypatch.setattr(module, "SHARE", 1e9)


@pytest.mark.parametrize("method", ["ldc", "fairgrad", "ls", "rlw"])
def test_training_is_the_same_bit_for_bit(method, generous):
    left = []
    for watched in (False, True):
        net = Net()
        balancer = eq.make(method, tasks=TASKS, **({"seed": 3} if method == "rlw" else {}))
        monitor = eq.Monitor(balancer, every=2) if watched else None
        train(net, balancer, 6)
        left.append(everything(net) + [value.clone() for value in balancer.state_dict().values()])
    assert same(*left)
    assert len(monitor.history) == 3
    assert all(row["lowest_cosine"] is not None for row in monitor.history)


def test_what_a_look_sees(generous):
    net, balancer = Net(), eq.LS(tasks=TASKS, weights=(1.0, 0.01, 2.0))
    monitor = eq.Monitor(balancer, every=3)
    train(net, balancer, 2)
    losses, features = net.losses()
    J = jacobian(losses, [features])
    balancer(losses, shared=features)
    row, found = monitor.history[0], monitor.report().look
    assert (row["step"], found.step, monitor.report().steps) == (3, 3, 3)
    assert row["losses"] == pytest.approx([loss.item() for loss in losses.values()])
    assert row["weights"] == row["pull"] == pytest.approx([1.0, 0.01, 2.0])
    assert row["gradient_norms"] == pytest.approx(J.norm(dim=1).tolist(), rel=1e-5)
    cosines = J @ J.T / J.norm(dim=1) / J.norm(dim=1)[:, None]
    torch.testing.assert_close(found.conflict.cosines, cosines, rtol=0, atol=1e-5)
    assert row["discrepancy"]["max"] == max(row["losses"])
    assert row["router_gradient"] is None
    json.dumps(monitor.history, allow_nan=False)


def test_pull_is_what_moves_the_scalar():
    """LDC's gap adds to a task's weight or takes from it: the pull is the derivative of the whole."""
    w = torch.tensor([1.0, 2.0, 6.0], requires_grad=True)
    balancer = eq.LDC(3, normalize=None, discrepancy=0.5)
    monitor = eq.Monitor(balancer, every=1)
    balancer(list((w * 1.0).unbind()))
    # u = l / 3; the gaps |u_0 - u_1| + |u_1 - u_2| have slopes (-1, 1 - 1, 1) / 3
    assert monitor.history[0]["pull"] == pytest.approx([1 / 3 - 0.5 / 3, 1 / 3, 1 / 3 + 0.5 / 3])
    assert monitor.history[0]["weights"] == pytest.approx([1 / 3] * 3)
    stacked = eq.LDC(3, normalize=None, discrepancy=0.5)
    monitor = eq.Monitor(stacked, every=1)
    stacked(w * 1.0)
    assert monitor.history[0]["pull"] == pytest.approx([1 / 6, 1 / 3, 1 / 2])


def test_the_routers_gradient():
    net, balancer = Net(), eq.LDC(tasks=TASKS)
    monitor = eq.Monitor(balancer, every=1)
    losses, _ = net.losses()
    balancer({"near": losses["near"], "far": losses["far"], "odd": losses["odd"]})
    scalar = balancer(net.losses()[0])
    scalar.backward()
    assert monitor.history[1]["router_gradient"] == pytest.approx(balancer.router.logits.grad.norm().item(), rel=1e-6)
    assert monitor.history[1]["router_gradient"] > 0


def test_a_gradient_methods_own_matrix_is_used(monkeypatch):
    monkeypatch.setattr(module, "gram_of", None)  # calling it would be an error
    net, balancer = Net(), eq.MGDA(tasks=TASKS)
    monitor = eq.Monitor(balancer, every=1)
    losses, features = net.losses()
    J = jacobian(losses, [features])
    balancer(losses, features)
    assert monitor.report().look.conflict.norms.tolist() == pytest.approx(J.norm(dim=1).tolist(), rel=1e-5)
    assert monitor.history[0]["pull"] == monitor.history[0]["weights"]  # what it applied


def test_a_module_tells_where_the_gradients_are(generous):
    net = Net()
    balancer = eq.LDC(tasks=TASKS)
    monitor = eq.Monitor(balancer, every=2, shared=net.trunk)
    train(net, balancer, 4, shared=False)
    assert [row["lowest_cosine"] is not None for row in monitor.history] == [True, True]
    monitor.close()
    train(net, balancer, 4, shared=False)
    assert monitor.steps == 4
    assert monitor._capture.outputs == []


def test_without_shared_the_losses_are_all_there_is():
    net, balancer = Net(), eq.LDC(tasks=TASKS)
    monitor = eq.Monitor(balancer, every=1)
    train(net, balancer, 2, shared=False)
    assert monitor.report().look.conflict is None
    assert "no-look" not in kinds(monitor)
    assert "give `shared`" in monitor.report().recommendation


# When it looks.


def test_it_looks_at_every_hundredth_step():
    w = nn.Parameter(torch.ones(2))
    balancer = eq.LS(2)
    monitor = eq.Monitor(balancer)
    assert "first look is at step 100" in monitor.report().recommendation
    for _ in range(250):
        balancer(w * 1.0)
    assert [row["step"] for row in monitor.history] == [100, 200]


def test_what_is_not_training_is_not_seen():
    w = nn.Parameter(torch.ones(2))
    balancer = eq.LS(2)
    monitor = eq.Monitor(balancer, every=1)
    with torch.no_grad():
        balancer(w * 1.0)
    balancer.eval()(w * 1.0)
    assert monitor.steps == 0
    balancer.train()
    eq.LS(2)(w * 1.0)  # another balancer
    balancer(w * 1.0)
    assert monitor.steps == 1
    monitor.close()
    balancer(w * 1.0)
    assert monitor.steps == 1


def test_skipped_steps_are_not_seen():
    w = nn.Parameter(torch.ones(2))
    balancer = eq.LS(2, on_nonfinite="skip")
    monitor = eq.Monitor(balancer, every=1)
    balancer(w / torch.tensor([1.0, 0.0]))
    balancer(w * 1.0)
    assert (monitor.steps, len(monitor.history)) == (1, 1)


def test_history_stays_short(monkeypatch):
    monkeypatch.setattr(module, "HISTORY", 4)
    w = nn.Parameter(torch.ones(2))
    balancer = eq.LS(2)
    monitor = eq.Monitor(balancer, every=2)
    for _ in range(26):
        balancer(w * 1.0)
        assert len(monitor.history) <= 4
    # 2 4 6 8; with 10 it is 4 8 10, and every fourth step from then on; 4 8 10 12; with 16 it is 8 16, and every eighth
    assert [row["step"] for row in monitor.history] == [8, 16, 24]


def operators(call):
    class Seen(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.counts = Counter()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.counts[str(func)] += 1
            return func(*args, **(kwargs or {}))

    with Seen() as mode:
        call()
    return mode.counts


@pytest.mark.parametrize("form", ["list", "mask", "hole", "gradients"])
def test_between_looks_nothing_is_asked_of_the_device(form):
    """Beyond the balancer's own operators there is at most a count of absences or fall-backs, and no transfer."""
    w = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))

    def step(balancer):
        features = w * 1.0
        losses = list(features.unbind())
        if form == "gradients":
            return balancer(losses, features)
        if form == "hole":
            return balancer([losses[0], None, losses[2]])
        return balancer(losses, present=torch.tensor([True, False, True]) if form == "mask" else None)

    make = eq.FairGrad if form == "gradients" else eq.LS
    plain, watched = make(3), make(3)
    eq.Monitor(watched, every=1000)
    for balancer in (plain, watched, watched):
        step(balancer)
    extra = operators(lambda: step(watched)) - operators(lambda: step(plain))
    assert sum(extra.values()) <= 4, extra
    assert not [name for name in extra if "_local_scalar_dense" in name or "copy" in name], extra


# Going on, copying.


def test_state_goes_on():
    w = nn.Parameter(torch.ones(2))
    balancer = eq.LS(2)
    monitor = eq.Monitor(balancer, every=2)
    for _ in range(5):
        balancer([w[0] * 1.0, None])
    state = json.loads(json.dumps(monitor.state_dict()))
    again = eq.LS(2)
    resumed = eq.Monitor(again, every=2)
    resumed.load_state_dict(state)
    for _ in range(5):
        again([w[0] * 1.0, None])
    assert [row["step"] for row in resumed.history] == [2, 4, 6, 8, 10]
    assert resumed.state_dict()["absent"] == [0, 10]
    with pytest.raises(ValueError, match="of 2 tasks; this monitor has 3"):
        eq.Monitor(eq.LS(3)).load_state_dict(state)


def test_a_watched_balancer_can_be_copied_and_pickled():
    w = nn.Parameter(torch.ones(2))
    balancer = eq.LDC(2)
    monitor = eq.Monitor(balancer, every=1)
    balancer(w * 1.0)
    for twin in (copy.deepcopy(balancer), pickle.loads(pickle.dumps(balancer))):
        twin(w * 1.0)
    assert monitor.steps == 1


def test_it_refuses():
    with pytest.raises(TypeError, match="must be a Balancer; found Linear"):
        eq.Monitor(nn.Linear(1, 1))
    for every in (0, 1.5, True):
        with pytest.raises(ValueError, match="`every` must be a whole number of at least 1"):
            eq.Monitor(eq.LS(2), every=every)


def test_it_prints():
    net, balancer = Net(), eq.LDC(tasks=TASKS)
    monitor = eq.Monitor(balancer, every=5)
    train(net, balancer, 10)
    text = str(monitor.report())
    assert text.startswith("3 tasks, 10 steps seen, the last look at step 10")
    assert "part of the pull" in text
    assert "<table" in monitor.report()._repr_html_()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: a CPU has nobody to wait for")
def test_no_synchronisation_between_looks():
    w = nn.Parameter(torch.ones(3, device="cuda"))
    for balancer in (eq.LDC(3).cuda(), eq.MGDA(3).cuda()):
        monitor = eq.Monitor(balancer, every=50)

        def step(balancer=balancer):
            features = w * 2.0
            balancer(list((features.square() + 1).unbind()), shared=features).backward()

        for _ in range(50):
            step()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(49):
                step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        step()
        assert len(monitor.history) == 2
