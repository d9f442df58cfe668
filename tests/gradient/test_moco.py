"""MoCo against the reference and the paper's formula, over steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise.gradient.moco import _onto_simplex
from gradient.helpers import close, oracle, step

INPUTS = oracle("seq_inputs")
EXPECTED = oracle("moco")
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "const": {"beta": 0.9, "beta_sigma": 0.0, "gamma": 1.0, "gamma_sigma": 0.0, "rho": 0.1},
}


@pytest.mark.parametrize("form", ["paper", "libmtl"])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("tasks", [2, 3, 5, 11, 40])
def test_twenty_steps_with_parameters(tasks: int, options: str, form: Any) -> None:
    balancer = eq.MoCo(tasks, form=form, **OPTIONS[options]).double()
    key = f"K{tasks}__{options}__" + ("paper_" if form == "paper" else "")
    for t, (jacobian, losses) in enumerate(zip(INPUTS[f"K{tasks}__J"], INPUTS[f"K{tasks}__losses"], strict=True)):
        found, heads = step(balancer, jacobian, losses)
        close([balancer.weights, found], [EXPECTED[f"{key}lambda"][t], EXPECTED[f"{key}d"][t]], 1e-6)
        close([heads], [torch.ones(tasks, dtype=torch.float64)])


@pytest.mark.parametrize("tasks", [2, 5])
def test_twenty_steps_at_a_representation(tasks: int) -> None:
    """The Gram matrix runs where the gradients cannot; the trunk gets this batch's gradients."""
    balancer = eq.MoCo(tasks).double()
    running, share = (
        torch.zeros(tasks, tasks, dtype=torch.float64),
        torch.full((tasks,), 1.0 / tasks, dtype=torch.float64),
    )
    for t, (jacobian, losses) in enumerate(zip(INPUTS[f"K{tasks}__J"], INPUTS[f"K{tasks}__losses"], strict=True), 1):
        running = running - 0.5 / t**0.5 * (running - jacobian @ jacobian.T)
        share = _onto_simplex(share - 0.1 / t**0.5 * running @ share, None)
        found, _ = step(balancer, jacobian, losses, "features")
        close([balancer.weights, found], [share, jacobian.T @ share], 1e-9)
    assert balancer.average.numel() == 0


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=6))
def test_projection_is_the_nearest_point(point: list[float]) -> None:
    """The optimality conditions: one threshold below which entries are 0 and above which they are lowered by it."""
    x = torch.tensor(point, dtype=torch.float64)
    y = _onto_simplex(x, None)
    assert y.min() >= 0 and y.sum().item() == pytest.approx(1.0, abs=1e-12)
    threshold = (x - y)[y > 0]
    assert threshold.max() - threshold.min() < 1e-12
    assert (x[y == 0] <= threshold.max() + 1e-12).all()


def test_projection_leaves_absent_tasks_out() -> None:
    x = torch.tensor([0.2, 9.0, 0.4], dtype=torch.float64)
    present = torch.tensor([True, False, True])
    close([_onto_simplex(x, present)], [torch.tensor([0.4, 0.0, 0.6], dtype=torch.float64)])


def test_an_absent_task_keeps_its_running_gradient() -> None:
    x = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    balancer = eq.MoCo(2).double()
    balancer([x[0] + 1, 2 * x[1] + 1], [x])
    before, share = balancer.average.clone(), balancer.share.clone()
    balancer([None, 4 * x[1] + 1], [x])
    assert torch.equal(balancer.average[0], before[0]) and not torch.equal(balancer.average[1], before[1])
    assert balancer.share[0] == share[0] and balancer.weights.tolist() == [0.0, 1.0]


def test_other_parameters_are_refused() -> None:
    x, y = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(3))
    balancer = eq.MoCo(1)
    balancer([x.sum()], [x])
    with pytest.raises(ValueError, match=r"same parameters at every step for MoCo.*2 entries; found 3"):
        balancer([y.sum()], [y])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": 0.0}, "`beta` must be above 0 and at most 1; found 0.0"),
        ({"gamma": -1.0}, "`gamma` must be at least 0; found -1.0"),
        ({"rho": float("nan")}, "`rho` must be at least 0; found nan"),
        ({"form": "mine"}, "`form` must be 'paper' or 'libmtl'; found 'mine'"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        eq.MoCo(2, **options)
