"""What the callbacks share, without any trainer: which balancer, what it saw, and the second look."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.integrations.watch import Watch, find_balancer, look_again


class Model(nn.Module):
    """Losses of one linear layer, given to a balancer within the model, as a trainer's models do."""

    def __init__(self, balancer: eq.Balancer) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 2)
        self.balancer = balancer
        self.after = 0

    def losses(self, x: Tensor) -> Tensor:
        return self.layer(x).square().mean(0)

    def forward(self, x: Tensor) -> Tensor:
        scalar = self.balancer(self.losses(x))
        self.after += 1
        return scalar


def test_the_one_balancer_is_found() -> None:
    model = Model(eq.FAMO(2))
    assert find_balancer(model) is model.balancer
    with pytest.raises(ValueError, match=r"exactly one; found 0 in Linear"):
        find_balancer(model.layer)
    with pytest.raises(ValueError, match=r"exactly one; found 2 in ModuleList"):
        find_balancer(nn.ModuleList([eq.LS(2), eq.LS(2)]))


def test_a_second_look_is_after_step_by_hand() -> None:
    one, other = Model(eq.FAMO(2)), Model(eq.FAMO(2))
    x = torch.randn(4, 5, 3)
    for batch in x:
        for model in (one, other):
            optimizer = torch.optim.SGD(model.layer.parameters(), lr=0.1)
            model(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        look_again(one.balancer, lambda batch=batch: one(batch))
        with torch.no_grad():
            other.balancer.after_step(other.losses(batch))
    for (name, mine), theirs in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs), name
    assert one.balancer.logits.abs().max() > 0 and one.balancer.step == 4
    assert one.after == 4  # the model is left where it hands its losses over
    assert not one.balancer._forward_pre_hooks


def test_a_second_look_passes_masks_on() -> None:
    balancer = eq.FAMO(3)
    here = torch.tensor([True, False, True])
    losses = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    balancer(losses, present=here)
    look_again(balancer, lambda: balancer(losses=losses * 0.5, present=here))
    assert balancer.updates.tolist() == [1.0, 0.0, 1.0]


def test_a_step_without_the_balancer_is_named_and_leaves_no_hook() -> None:
    balancer = eq.FAMO(2)
    before = copy.deepcopy(balancer.state_dict())
    with pytest.raises(RuntimeError, match="did not call the balancer"):
        look_again(balancer, lambda: None)
    with pytest.raises(ZeroDivisionError):
        look_again(balancer, lambda: 1 / 0)
    assert not balancer._forward_pre_hooks
    assert all(torch.equal(before[name], tensor) for name, tensor in balancer.state_dict().items())


def test_metrics_leave_absent_tasks_out() -> None:
    balancer = eq.LS(tasks=("a", "b", "c"))
    watch = Watch(balancer)
    assert watch.metrics() == {"weight/a": 1.0, "weight/b": 1.0, "weight/c": 1.0}
    x = torch.tensor([2.0, 6.0, 100.0], requires_grad=True)
    balancer({"a": x[0], "b": x[1]})
    assert watch.metrics() == {
        "weight/a": 1.0, "weight/b": 1.0, "loss/a": 2.0, "loss/b": 6.0, "discrepancy": 2.0, "discrepancy_ratio": 3.0,
    }  # fmt: skip
    balancer.eval()  # a validation step is no training step
    balancer(x)
    assert "loss/c" not in watch.metrics()
    balancer.train()
    watch.close()
    balancer(x)
    assert "loss/c" not in watch.metrics()


def test_metrics_of_losses_below_zero_have_no_ratio() -> None:
    balancer = eq.LS(2)
    watch = Watch(balancer)
    balancer(torch.tensor([-1.0, 1.0], requires_grad=True))
    assert watch.metrics()["discrepancy"] == 1.0 and math.isnan(watch.metrics()["discrepancy_ratio"])


def test_nothing_of_a_graph_is_kept() -> None:
    balancer = eq.LS(2)
    watch = Watch(balancer)
    balancer(torch.ones(2, requires_grad=True) * 2)
    assert watch._losses is not None and not watch._losses.requires_grad
