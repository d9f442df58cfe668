"""DB-MTL against the reference, over steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import equipoise as eq
from gradient.helpers import close, oracle, step

INPUTS = oracle("seq_inputs")
EXPECTED = oracle("dbmtl")
OPTIONS: dict[str, dict[str, Any]] = {"default": {}, "decay": {"beta": 0.5, "beta_sigma": 0.5}}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("tasks", [2, 3, 5, 11, 40])
def test_twenty_steps_with_parameters(tasks: int, options: str) -> None:
    balancer = eq.DBMTL(tasks, **OPTIONS[options]).double()
    key = f"K{tasks}__{options}"
    for t, (jacobian, losses) in enumerate(zip(INPUTS[f"K{tasks}__J"], INPUTS[f"K{tasks}__losses"], strict=True)):
        found, heads = step(balancer, jacobian, losses)
        close([balancer.weights, found], [EXPECTED[f"{key}__alpha"][t], EXPECTED[f"{key}__d"][t]], 1e-6)
        close([heads], [(jacobian.norm(dim=1) > 0).double() / losses + (jacobian.norm(dim=1) == 0)], 1e-12)
    has_gradient = jacobian.norm(dim=1) > 0
    close([heads[has_gradient]], [EXPECTED[f"{key}__head_last"][has_gradient]], 1e-6)


def test_at_a_representation_this_batch_is_brought_to_the_running_norms() -> None:
    balancer = eq.DBMTL(3).double()
    running = torch.zeros(3, 3, dtype=torch.float64)
    for jacobian, losses in zip(INPUTS["K3__J"][:7], INPUTS["K3__losses"][:7], strict=True):
        h = jacobian / losses[:, None]
        running = h @ h.T + 0.9 * (running - h @ h.T)
        norms = running.diagonal().sqrt()
        found, _ = step(balancer, jacobian, losses, "features")
        close([found], [(norms.max() / norms) @ h], 1e-9)
        close([balancer.weights], [norms.max() / norms / losses], 1e-9)


def test_plain_heads() -> None:
    _, heads = step(eq.DBMTL(3, heads="sum"), INPUTS["K3__J"][0], INPUTS["K3__losses"][0])
    close([heads], [torch.ones(3, dtype=torch.float64)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": 1.0}, "`beta` must be at least 0 and below 1; found 1.0"),
        ({"beta_sigma": -0.5}, "`beta_sigma` must be at least 0; found -0.5"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        eq.DBMTL(2, **options)
