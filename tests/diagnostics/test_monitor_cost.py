"""What `eq.Monitor` lets gradients cost, by a clock of the test's own."""

import pytest
import torch
from torch import nn

import equipoise as eq
from diagnostics.models import kinds
from equipoise.diagnostics import monitor as module


class Clock:
    """It goes when the test says so."""

    now = 0.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def generous(monkeypatch):
    """Gradients are never too dear."""
    monkeypatch.setattr(module, "SHARE", 1e9)


def test_gradients_at_features_are_taken_until_they_are_a_hundredth_of_the_time(monkeypatch):
    """Steps of a second; a look at gradients takes half of one."""
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    real = module.gram_of

    def dear(batch, shared):
        clock.now += 0.5
        return real(batch, shared)

    monkeypatch.setattr(module, "gram_of", dear)
    w = nn.Parameter(torch.ones(2))
    balancer = eq.LS(2)
    monitor = eq.Monitor(balancer, every=10)
    spent_at = []
    for step in range(1, 401):
        clock.now += 1.0
        before = clock.now
        features = w * 1.0
        balancer(list(features.unbind()), shared=features)
        if clock.now > before:
            spent_at.append(step)
            assert 0.5 * len(spent_at) <= 0.01 * clock.now or len(spent_at) == 1
    # the first is guessed at a twentieth of a step, a hundredth of 5 steps; then half a second needs 50 steps each
    assert spent_at == [10, 110, *range(150, 401, 50)]
    assert len(monitor.history) == 40
    assert monitor.report().look.conflict is not None  # the newest gradients there are


def test_gradients_at_parameters_wait_for_their_first_time(monkeypatch):
    """Two tasks are guessed at two steps, which are a hundredth of 200."""
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    w = nn.Parameter(torch.ones(2))
    balancer = eq.LS(2)
    monitor = eq.Monitor(balancer, every=70)
    taken = []
    for step in range(1, 281):
        clock.now += 1.0
        balancer([w[0] ** 2, w[1] ** 2], shared=[w])
        if step % 70 == 0:
            taken.append(monitor.history[-1]["lowest_cosine"] is not None)
            assert ("no-look" in kinds(monitor)) == (not any(taken))
    assert taken == [False, False, True, True]


def test_gradients_that_cannot_be_taken_do_not_stop_training(generous):
    w, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    balancer = eq.LS(2)
    monitor = eq.Monitor(balancer, every=1)
    for _ in range(2):
        balancer(w * 1.0, shared=[other]).backward()
    found = monitor.report()
    assert [f.kind for f in found.findings] == ["no-look"]
    assert "upstream of the losses" in str(found)
    balancer(w * 1.0, shared=iter([w])).backward()  # used up by the time it is looked at
    assert monitor.report().look.conflict is None
