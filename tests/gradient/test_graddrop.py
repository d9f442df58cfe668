"""GradDrop against the recorded draws of the reference, and its options."""

from __future__ import annotations

import pytest
import torch

import equipoise as eq
from gradient.helpers import close, oracle, step

CASES = oracle("jac_cases")
DROPS = oracle("graddrop")


@pytest.mark.parametrize("where", ["features", "parameters"])
@pytest.mark.parametrize("tasks", [2, 3, 5, 11, 40])
def test_recorded_draws(tasks: int, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference's probability has an epsilon, ours has none: only draws between the two may differ."""
    jacobians, losses = CASES[f"J_K{tasks}"], CASES[f"losses_K{tasks}"]
    compared = 0
    for draw, expected in zip(DROPS[f"K{tasks}__U"], DROPS[f"K{tasks}__d"], strict=True):
        for case, jacobian in enumerate(jacobians):
            monkeypatch.setattr("equipoise.gradient.graddrop.uniform", lambda *_, case=case, draw=draw: draw[case])
            found, heads = step(eq.GradDrop(tasks), jacobian, losses[case], where)
            size = jacobian.abs().sum(0)
            ours = torch.where(size > 0, 0.5 + 0.5 * jacobian.sum(0) / size, 0.5)
            theirs = DROPS[f"K{tasks}__P"][case]
            agree = (ours > draw[case]) == (theirs > draw[case])
            close([found[agree]], [expected[case][agree]], 1e-12)
            assert agree.float().mean() > 0.95
            compared += int(agree.sum())
            close([heads], [torch.ones(tasks, dtype=torch.float64)])
    assert compared > 0.99 * 2 * jacobians[:, 0].numel()


def test_scale_of_the_gradients_changes_no_choice() -> None:
    jacobian, losses = CASES["J_K5"][0], CASES["losses_K5"][0]
    base, _ = step(eq.GradDrop(5, seed=1), jacobian, losses)
    for scale in (1e-8, 1e8):
        found, _ = step(eq.GradDrop(5, seed=1), jacobian * scale, losses)
        close([found / scale], [base], 1e-12)


def test_signs_are_kept_as_often_as_their_probability() -> None:
    jacobian = torch.tensor([[3.0], [-1.0]]).repeat(1, 20000)
    found, _ = step(eq.GradDrop(2, seed=0), jacobian, torch.ones(2))
    assert set(found.tolist()) == {3.0, -1.0}
    assert (found > 0).float().mean().item() == pytest.approx(0.75, abs=0.015)


def test_draws_differ_from_step_to_step() -> None:
    balancer = eq.GradDrop(3, seed=0)
    jacobian, losses = CASES["J_K3"][0], CASES["losses_K3"][0]
    first, second = (step(balancer, jacobian, losses)[0] for _ in range(2))
    assert not torch.equal(first, second)


def test_leak_and_weights() -> None:
    jacobian = torch.tensor([[2.0, 1.0], [-1.0, 1.0]], dtype=torch.float64)
    ones = torch.ones(2, dtype=torch.float64)
    kept, _ = step(plain := eq.GradDrop(2, seed=0), jacobian, ones)
    leaked, _ = step(leaky := eq.GradDrop(2, seed=0, leak=(0.0, 0.25)), jacobian, ones)
    assert kept[1] == leaked[1] == 2.0
    if kept[0] == 2.0:  # the second task's first entry was dropped
        assert leaked[0] == 2.0 - 0.25
        close([plain.weights, leaky.weights], [torch.tensor([1.0, 0.5]), torch.tensor([1.0, 0.625])], 1e-6)
    else:
        assert kept[0] == leaked[0] == -1.0
        close([plain.weights], [torch.tensor([0.2, 1.0])], 1e-6)
    for full in (1.0, (1.0, 1.0)):
        found, _ = step(eq.GradDrop(2, leak=full), jacobian, ones)
        close([found], [jacobian.sum(0)])


@pytest.mark.parametrize("leak", [-0.1, 1.5, (0.1, 0.2, 0.3), float("nan")])
def test_leak_is_checked(leak: object) -> None:
    with pytest.raises(ValueError, match="`leak` must be a number from 0 to 1, or 2 of them; found"):
        eq.GradDrop(2, leak=leak)
