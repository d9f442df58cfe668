"""The factors that are compared, shown and added up are those of the losses as they come, in whatever units."""

import re

import pytest
import torch
from torch import nn

import equipoise as eq

UNITS = (1.0, 1e6, 1e-4)
NOT_A_SUM = {"graddrop"}  # its gradient is no weighted sum of the tasks'
NO_STEP_HERE = {"ldc-double", "torchjd"}  # another way of calling, another library
LOSSES_ONLY = ["ldc", "si", "gls", "uw", "famo", "go4align", "stch", "ls", "stl"]


class Small(nn.Module):
    """Three losses in very different units on one trunk."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Sequential(nn.Linear(5, 16), nn.Tanh())
        self.heads = nn.ModuleList(nn.Linear(16, 1) for _ in UNITS)
        self.x, self.y = torch.randn(32, 5), torch.randn(3, 32, 1)

    def losses(self):
        features = self.trunk(self.x)
        pairs = zip(UNITS, self.heads, self.y, strict=True)
        return [unit * (head(features) - target).square().mean() for unit, head, target in pairs], features


def flat(gradients):
    return torch.cat([gradient.flatten().double() for gradient in gradients])


def train(net, balancer, steps):
    optimizer = torch.optim.Adam([*net.parameters(), *balancer.parameters()], lr=1e-3)
    for _ in range(steps):
        balancer.start_epoch()
        losses, features = net.losses()
        optimizer.zero_grad()
        balancer(losses, shared=features).backward()
        optimizer.step()
        if balancer.needs_after_step:
            with torch.no_grad():
                balancer.after_step(net.losses()[0])


@pytest.mark.parametrize("name", sorted(set(eq.methods()) - NOT_A_SUM - NO_STEP_HERE))
def test_the_pull_times_the_gradients_is_what_the_trunk_gets(name):
    net, balancer = Small(), eq.make(name, num_tasks=3)
    monitor = eq.Monitor(balancer, every=1)
    train(net, balancer, 4)
    trunk = list(net.trunk.parameters())
    losses, features = net.losses()
    rows = [flat(torch.autograd.grad(loss, trunk, retain_graph=True)) for loss in losses]
    net.zero_grad()
    balancer(losses, shared=features).backward()
    got = flat([parameter.grad for parameter in trunk])
    pull = monitor.history[-1]["pull"]
    made = sum(factor * row for factor, row in zip(pull, rows, strict=True))
    assert (made - got).norm() < 1e-5 * got.norm()


@pytest.mark.parametrize("name", LOSSES_ONLY)
def test_diagnose_asks_the_balancer_without_a_trace(name):
    """Its factors are those of the step that follows; neither the state nor what it says of itself moves."""
    net, balancer = Small(), eq.make(name, num_tasks=3)
    train(net, balancer, 4)
    losses, features = net.losses()
    before = {key: value.clone() for key, value in balancer.state_dict().items()}
    status = dict(balancer.status)
    found = eq.diagnose(losses, features, balancer=balancer, costs=False)
    assert all(torch.equal(before[key], value) for key, value in balancer.state_dict().items())
    assert balancer.training and balancer.status.keys() == status.keys()
    monitor = eq.Monitor(balancer, every=1)
    balancer(losses, shared=features)
    assert found.look.pull == pytest.approx(monitor.history[0]["pull"], rel=1e-5)


def test_a_loss_in_large_units_is_not_called_untrained():
    """LDC divides by the first losses: a gradient a million times as long is multiplied by a millionth."""
    net, balancer = Small(), eq.LDC(3)
    train(net, balancer, 3)
    losses, features = net.losses()
    found = eq.diagnose(losses, features, balancer=balancer, costs=False)
    assert min(found.look.shares) > 0.1
    assert "no-pull" not in [finding.kind for finding in found.findings]


def test_losses_the_balancer_cannot_take_leave_the_pull_unknown():
    w = nn.Parameter(torch.tensor([1.0, 2.0]))
    found = eq.diagnose([w[0], -w[1]], [w], balancer=eq.SI(2), costs=False)
    assert found.look.pull is None and found.look.shares is None


@pytest.mark.parametrize("units", [(1.0, 1.0, 1.0), UNITS])
def test_the_sum_it_names_is_the_sum_it_is(units):
    """LDC without a router, on losses that move in proportion: LS with the weights of the sentence does the same."""
    w = nn.Parameter(torch.ones(3))
    scale = torch.tensor(units)
    balancer = eq.LDC(3, router=None, router_objective="both", tau="ones")
    monitor = eq.Monitor(balancer, every=1)
    for step in range(1, 8):
        balancer(list((scale * w * step).unbind()))
    (text,) = [f.text for f in monitor.report().findings if f.kind == "equals-ls"]
    weights = [float(number) for number in re.search(r"LS\((.*)\)", text)[1].split(", ")]
    (theirs,) = torch.autograd.grad(balancer(list((scale * w).unbind())), w)
    (ours,) = torch.autograd.grad(eq.LS(3, weights=weights)(list((scale * w).unbind())), w)
    torch.testing.assert_close(ours / ours.sum(), theirs / theirs.sum(), rtol=0.02, atol=0)


def test_a_weight_that_moves_is_seen_in_any_unit():
    """SI's factors are 1 / l: the loss in large units, whose factor is tiny, falls by a tenth a step."""
    w = nn.Parameter(torch.ones(3))
    balancer = eq.SI(3)
    monitor = eq.Monitor(balancer, every=1)
    for step in range(8):
        balancer(list((w * torch.tensor([1.0, 1e6 * 0.9**step, 1e-4])).unbind()))
        assert "equals-ls" not in [finding.kind for finding in monitor.report().findings]
