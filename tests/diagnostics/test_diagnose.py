"""`eq.diagnose`: it says what is so, leaves no trace, and prints well."""

import copy
import json
from html.parser import HTMLParser

import pytest
import torch
from torch import nn

import equipoise as eq
from diagnostics.models import Net, everything, same
from equipoise.diagnostics import costs
from equipoise.diagnostics.text import SHOWN
from equipoise.diagnostics.untouched import same_draws, untouched


@pytest.mark.parametrize("where", ["features", "parameters"])
def test_no_trace_is_left(where):
    """Parameters, gradients, buffers, random numbers, the balancer and the graph: all as they were."""
    net = Net()
    balancer = eq.LDC(tasks=("near", "far", "odd"))
    losses, features = net.losses()
    balancer(losses).backward()  # gradients that are there already
    losses, features = net.losses()
    if where == "features":
        features.retain_grad()
    total = sum(losses.values())
    shared = features if where == "features" else list(net.trunk.parameters())
    before, state = everything(net), copy.deepcopy(balancer.state_dict())
    found = eq.diagnose(losses, shared, forward=net.losses, balancer=balancer)
    assert found.costs is not None
    assert same(before, everything(net))
    assert where == "parameters" or features.grad is None
    assert same(list(state.values()), list(balancer.state_dict().values()))
    assert (balancer.training, net.training) == (True, True)
    total.backward()  # the graph is still there


def test_the_graph_gives_the_same_gradients_after_it():
    grads = []
    for looked_at in (False, True):
        net = Net()
        losses, features = net.losses()
        if looked_at:
            eq.diagnose(losses, features, forward=net.losses)
        sum(losses.values()).backward()
        grads.append([p.grad for p in net.parameters()] + [torch.rand(3)])
    assert same(*grads)


def test_untouched_puts_buffers_back_also_after_an_error():
    net = Net()
    before = everything(net)
    with pytest.raises(ZeroDivisionError), untouched():
        net.trunk(net.x)
        1 / 0  # noqa: B018
    assert same(before[:-12], everything(net)[:-12])
    net.trunk(net.x)
    assert not same(before, everything(net))  # outside, statistics do move


def test_same_draws():
    torch.manual_seed(5)
    first, second = same_draws(lambda: torch.rand(2)), same_draws(lambda: torch.rand(2))
    assert torch.equal(first, second)
    assert torch.equal(first, torch.rand(2))


# What it costs, on a clock that only `Slow` moves.


class Clock:
    now = 0.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(costs, "time", found)
    return found


class Slow(torch.autograd.Function):
    """Nothing but time: so much forward, so much backward."""

    @staticmethod
    def forward(ctx, x, clock, forward, backward):
        ctx.clock, ctx.seconds = clock, backward
        clock.now += forward
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.clock.now += ctx.seconds
        return gradient, None, None, None


def slow_losses(clock, tasks):
    """A trunk of 20 seconds and heads of 2: a step's backward is 20 + 2 tasks, its forward 30."""
    x = nn.Parameter(torch.ones(3))
    features = Slow.apply(x, clock, 30.0, 20.0)
    return x, features, [Slow.apply(features, clock, 0.0, 2.0).sum() * (k + 1.0) for k in range(tasks)]


def test_costs_are_those_of_the_graph(clock):
    x, features, losses = slow_losses(clock, 4)
    found = eq.diagnose(losses, features).costs
    assert found.loss_only_ms == pytest.approx(28e3)
    assert found.features == pytest.approx(1.0)  # each head once and the trunk once
    assert found.parameters == pytest.approx(4 * 22 / 28)
    assert (found.second_forward, found.with_forward) == (None, False)
    exact = eq.diagnose(losses, [x]).costs
    assert exact.features is None
    assert exact.parameters == found.parameters
    assert exact.loss_only_ms == found.loss_only_ms


def test_costs_with_a_forward(clock):
    _, features, losses = slow_losses(clock, 2)
    found = eq.diagnose(losses, features, forward=lambda: slow_losses(clock, 2)).costs
    assert found.with_forward
    assert found.loss_only_ms == pytest.approx(54e3)
    assert found.features == pytest.approx(1.0)
    assert found.parameters == pytest.approx((30 + 2 * 22) / 54)
    assert found.second_forward == pytest.approx((54 + 30) / 54)


def test_of_many_tasks_a_few_are_timed(clock):
    """Twelve tasks: eight are timed, and what one of them adds counts for the others."""
    x, _, losses = slow_losses(clock, 12)
    began = clock.now
    found = eq.diagnose(losses, [x]).costs
    assert found.parameters == pytest.approx(12 * 22 / 44)
    looks, rounds = 12 * 22, 4
    assert clock.now - began == pytest.approx(looks + rounds * (44 + 8 * 22 + 36))


def test_absent_tasks_cost_nothing(clock):
    x, _, losses = slow_losses(clock, 3)
    found = eq.diagnose(losses, [x], present=[True, False, True]).costs
    assert found.loss_only_ms == pytest.approx(24e3)
    assert found.parameters == pytest.approx(2 * 22 / 24)


def test_the_least_disturbed_round_counts(clock):
    """The machine is busy in three rounds of four, of which one is not counted."""
    x, _, losses = slow_losses(clock, 2)
    calls = []

    def forward():
        calls.append(None)
        clock.now += 1.0 if len(calls) in (1, 2, 5, 6) else 50.0  # the first round and the third, two calls in each

    found = eq.diagnose(losses, [x], forward=forward).costs
    assert len(calls) == 8
    assert found.loss_only_ms == pytest.approx(25e3)


def test_costs_are_not_measured_where_they_mean_nothing():
    net = Net()
    losses, features = net.losses()
    assert eq.diagnose(losses).costs is None
    assert eq.diagnose({**losses, "far": losses["far"] * torch.inf}, features).costs is None
    assert eq.diagnose(losses, features, costs=False).costs is None


# What it says.


def test_a_balancers_weights_are_looked_at():
    net = Net()
    losses, features = net.losses()
    balancer = eq.LDC(tasks=("near", "far", "odd"), router="sigmoid")
    balancer(losses)
    with torch.no_grad():
        balancer.router.logits[1] = -1.0
    found = eq.diagnose(losses, features, balancer=balancer, costs=False)
    assert "stuck" in [finding.kind for finding in found.findings]
    assert found.look.weights == balancer.weights.tolist()
    assert found.recommendation.startswith("Change the router")
    with pytest.raises(ValueError, match=r"must have 3 tasks.*found 2"):
        eq.diagnose(losses, features, balancer=eq.LDC(2))


def test_a_solver_that_fell_back_is_told_of():
    w = nn.Parameter(torch.tensor([1.0, 0.0]))
    losses = [w[0], -w[0]]
    balancer = eq.FairGrad(2)
    with pytest.warns(UserWarning, match="no solution"):
        balancer(losses, [w])
    found = eq.diagnose(losses, [w], balancer=balancer, costs=False)
    assert "The solver fell back in 1 of 1 steps" in str(found)
    assert found.to_dict()["status"]["regularised"] == 1.0


def test_to_dict_is_json_and_complete():
    net = Net()
    losses, features = net.losses()
    found = eq.diagnose({**losses, "gone": None}, features, forward=net.losses)
    content = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert content["tasks"] == ["near", "far", "odd", "gone"]
    assert content["losses"][3] is None
    assert content["cosines"][3] == [None] * 4
    assert content["gradient_norms"] == pytest.approx(found.look.conflict.norms.tolist())
    assert content["discrepancy"]["ratio"] == found.look.discrepancy.ratio
    assert content["stationarity"]["value"] == found.look.stationarity.value
    assert content["conflict"]["conflicting"] == found.look.conflict.conflicting
    assert content["costs"]["features"] == found.costs.features
    assert [item["kind"] for item in content["findings"]] == [finding.kind for finding in found.findings]
    assert content["recommendation"] == found.recommendation


def test_it_prints():
    net = Net()
    losses, features = net.losses()
    found = eq.diagnose(losses, features, forward=net.losses)
    text = str(found)
    for name in ("Losses", "Gradients", "Stationarity", "Cost", "Cosines", "near", "far", "odd", "So: "):
        assert name in text
    assert f"{found.look.losses[1]:.3g}" in text
    assert f"lowest cosine {found.look.conflict.lowest:.2f}" in text
    assert f"ratio {found.look.discrepancy.ratio:.3g}" in text
    table = text.split("\n\n")[1].splitlines()
    assert len({len(line) for line in table}) == 1  # columns stand below each other
    assert max(map(len, text.splitlines())) <= 80


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.seen, self.text = [], [], ""

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_html_is_whole_and_escaped():
    net = Net()
    losses, features = net.losses()
    evil = "<script>alert(1)</script>"
    found = eq.diagnose({evil: losses["near"], "b": losses["far"], "c": -losses["near"]}, features, costs=False)
    page = Tags()
    page.feed(found._repr_html_())
    assert page.open == []
    assert "script" not in page.seen
    assert "<script>" in page.text  # shown as text
    assert found.recommendation in page.text
    for finding in found.findings:
        assert finding.text in page.text
    assert f"{found.look.conflict.lowest:.2f}" in page.text


def test_of_many_tasks_both_ends_are_shown():
    w = nn.Parameter(torch.ones(30))
    losses = {f"t{k}": (k + 1) * w[k] ** 2 for k in range(30)}
    found = eq.diagnose(losses, [w], costs=False)
    lines = str(found).split("\n\n")[1].splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == [f"t{k}" for k in (29, 28, 27, 26, 25, 24, 5, 4, 3, 2, 1, 0)]
    assert lines[-1] == f"({SHOWN} of 30: the largest and the smallest)"
    assert "Cosines" not in str(found)
    assert f"{SHOWN} of 30 tasks" in found._repr_html_()


def test_a_long_name_stays_on_its_line():
    w = nn.Parameter(torch.ones(2))
    found = eq.diagnose({"a very long name\nof more than one line": w[0] ** 2, "b": w[1] ** 2}, [w], costs=False)
    assert "a very long name of mor…" in str(found)


# What it refuses.


def test_it_says_what_is_wrong():
    net = Net()
    losses, features = net.losses()
    with pytest.raises(ValueError, match=r"`shared` must hold at least one tensor.*found none"):
        eq.diagnose(losses, [])
    with pytest.raises(ValueError, match="upstream of the losses"):
        eq.diagnose(losses, [nn.Parameter(torch.ones(2))])
    with torch.no_grad(), pytest.raises(ValueError, match="found gradients turned off"):
        eq.diagnose(net.losses()[0], features)
    with pytest.raises(TypeError, match="'near' must be a 0-dim tensor"):
        eq.diagnose({"near": 1.0}, features)
    sum(losses.values()).backward()
    with pytest.raises(RuntimeError, match=r"graph is gone: look at it before \.backward"):
        eq.diagnose(losses, features)
