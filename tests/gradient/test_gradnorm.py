"""GradNorm against its definition: by finite differences, by hand, and by what it is for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import equipoise as eq
from gradient.helpers import close, oracle, step

CASES = oracle("jac_cases")


@pytest.mark.parametrize("where", ["features", "parameters"])
@pytest.mark.parametrize("tasks", [2, 5])
def test_logits_descend_the_distance_to_the_targets(tasks: int, where: str) -> None:
    jacobian, losses = CASES[f"J_K{tasks}"][0], CASES[f"losses_K{tasks}"][0]
    balancer = eq.GradNorm(tasks, alpha=0.7).double()
    step(balancer, jacobian, losses, where)  # the first losses
    balancer.logits.data = torch.linspace(-1, 1, tasks, dtype=torch.float64)
    balancer.logits.grad = None
    later = losses * torch.linspace(0.5, 1.5, tasks, dtype=torch.float64)
    found, heads = step(balancer, jacobian, later, where)

    def weighted(logits: torch.Tensor) -> torch.Tensor:
        return tasks * logits.softmax(0) * jacobian.norm(dim=1)

    rate = (later / losses) / (later / losses).mean()
    target = weighted(balancer.logits.data).mean() * rate**0.7
    eps = 1e-6 * torch.eye(tasks, dtype=torch.float64)
    logits = balancer.logits.data
    slope = [
        ((weighted(logits + e) - target).abs().sum() - (weighted(logits - e) - target).abs().sum()) / 2e-6 for e in eps
    ]
    close([balancer.logits.grad], [torch.stack(slope)], 1e-6)
    weights = tasks * logits.softmax(0)
    close([found, heads, balancer.weights], [jacobian.T @ weights, weights, weights], 1e-9)


def test_norms_become_equal_with_alpha_0() -> None:
    balancer = eq.GradNorm(3, alpha=0.0)
    optimizer = torch.optim.SGD(balancer.param_groups(lr=0.01))
    jacobian = torch.diag(torch.tensor([1.0, 4.0, 0.5]))
    for _ in range(800):
        optimizer.zero_grad()
        step(balancer, jacobian, torch.ones(3))
        optimizer.step()
    norms = balancer.weights * torch.tensor([1.0, 4.0, 0.5])
    assert norms.max() / norms.min() < 1.1
    assert balancer.weights.sum().item() == pytest.approx(3.0, rel=1e-5)


def test_a_task_that_lags_behind_is_to_gain() -> None:
    balancer = eq.GradNorm(2)
    step(balancer, torch.eye(2), torch.tensor([1.0, 1.0]))
    balancer.logits.grad = None
    step(balancer, torch.eye(2), torch.tensor([1.0, 0.1]))  # equal norms; the second trained ten times as far
    assert balancer.logits.grad[0] < 0 < balancer.logits.grad[1]


def test_first_losses_are_each_tasks_own_first() -> None:
    balancer = eq.GradNorm(2)
    x = nn.Parameter(torch.zeros(2))
    balancer([x[0] + 2.0, None], [x])
    balancer([x[0] + 3.0, x[1] + 5.0], [x])
    assert balancer.first.tolist() == [2.0, 5.0]


def test_alpha_is_checked() -> None:
    with pytest.raises(ValueError, match="`alpha` must be at least 0; found -1"):
        eq.GradNorm(2, alpha=-1)
