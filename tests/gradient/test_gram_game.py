"""What all methods on the Gram matrix have in common: scale, zero gradients, one task, options."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import equipoise as eq
from gradient.gram_cases import CASES, Case, agree, cases, take

METHODS: list[tuple[str, dict[str, Any], float]] = [  # and the power of the gradients' scale that the weights follow
    ("mgda", {}, 0.0),
    ("mgda", {"normalize": "l2"}, 0.0),
    ("pcgrad", {"seed": 0}, 0.0),
    ("cagrad", {}, 0.0),
    ("cagrad", {"c": 0.8}, 0.0),
    ("imtl-g", {}, 0.0),
    ("nash-mtl", {"max_norm": None}, -1.0),
    ("fairgrad", {}, -4 / 3),
    ("fairgrad", {"alpha": 0.5}, -2 / 3),
    ("upgrad", {}, 0.0),
    ("aligned-mtl", {}, 0.0),
    ("dualproj", {}, 0.0),
    ("config", {}, 0.0),
]
each_method = pytest.mark.parametrize(("name", "options", "power"), METHODS)


@each_method
@pytest.mark.parametrize("tasks", [3, 11])
def test_weights_do_not_move_with_the_scale(name: str, options: dict[str, Any], power: float, tasks: int) -> None:
    for case in cases(tasks):
        balancer = eq.make(name, tasks, **options)
        take(balancer, case)
        for scale in (1e-8, 1e8):
            scaled = eq.make(name, tasks, **options)
            take(scaled, case._replace(jacobian=case.jacobian * scale))
            torch.testing.assert_close(
                scaled.weights * scale**-power, balancer.weights, rtol=1e-6, atol=1e-6 * balancer.weights.abs().max()
            )


@each_method
@pytest.mark.parametrize("tasks", [2, 5])
def test_zero_gradient_leaves_the_game(name: str, options: dict[str, Any], power: float, tasks: int) -> None:
    """The others get what they get without it, but for the factor K; only plain MGDA stops."""
    case = list(cases(tasks))[CASES[f"names_K{tasks}"].tolist().index("zero")]
    moving = case.jacobian.norm(dim=1) > 0
    balancer = eq.make(name, tasks, heads="weighted", **options)
    found, heads, said = take(balancer, case)
    assert not said and heads[~moving].item() == 1.0 and balancer.weights[~moving].item() == 0.0
    if (name, options) == ("mgda", {}):
        assert found.abs().max() < 1e-12 and bool(balancer.status["stationary"])
        return
    if name == "pcgrad":
        return  # draws other orders for fewer tasks
    alone = eq.make(name, tasks - 1, heads="weighted", **options)
    rest = case._replace(jacobian=case.jacobian[moving], losses=case.losses[moving])
    expected, _, _ = take(alone, rest)
    factor = tasks / (tasks - 1) if name in ("mgda", "fairgrad") else 1.0
    agree(found, expected * factor, case)
    torch.testing.assert_close(balancer.weights[moving], alone.weights * factor, rtol=1e-6, atol=1e-9)


@each_method
def test_all_gradients_zero(name: str, options: dict[str, Any], power: float) -> None:
    case = Case(0, "none", torch.zeros(3, 4, dtype=torch.float64), torch.ones(3, dtype=torch.float64))
    found, heads, _ = take(eq.make(name, 3, **options), case)
    assert found.abs().max() == 0 and torch.isfinite(heads).all()


@each_method
def test_one_task(name: str, options: dict[str, Any], power: float) -> None:
    row = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    found, _, said = take(eq.make(name, 1, **options), Case(0, "one", row, torch.ones(1, dtype=torch.float64)))
    factor = {"cagrad": (1 + options.get("c", 0.4)) / (1 + options.get("c", 0.4) ** 2)}.get(name, 5.0**power)
    torch.testing.assert_close(found, row[0] * factor)
    assert not said


BAD_OPTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("mgda", {"normalize": "l1"}, "`normalize`"),
    ("cagrad", {"c": 1.0}, "`c`"),
    ("cagrad", {"c": -0.1}, "`c`"),
    ("cagrad", {"rescale": 3}, "`rescale`"),
    ("nash-mtl", {"max_norm": 0.0}, "`max_norm`"),
    ("nash-mtl", {"every": 0}, "`every`"),
    ("nash-mtl", {"every": 1.5}, "`every`"),
    ("fairgrad", {"alpha": 0.0}, "`alpha`"),
    ("fairgrad", {"max_norm": -1.0}, "`max_norm`"),
    ("upgrad", {"ridge": -1.0}, "`ridge`"),
    ("dualproj", {"ridge": float("inf")}, "`ridge`"),
    ("aligned-mtl", {"scale": "max"}, "`scale`"),
    ("pcgrad", {"seed": -1}, "`seed`"),
]


@pytest.mark.parametrize(("name", "options", "names"), BAD_OPTIONS)
def test_bad_options_are_named(name: str, options: dict[str, Any], names: str) -> None:
    with pytest.raises(ValueError, match=names):
        eq.make(name, 2, **options)


def test_mgda_by_losses_needs_positive_losses() -> None:
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match="above 0 for MGDA"):
        eq.MGDA(2, normalize="loss")([x[0], -x[1]], shared=[x])


@pytest.mark.parametrize("method", ["mgda", "cagrad", "upgrad", "dualproj"])
def test_dependent_gradients_of_float32(method: str) -> None:
    """Products of float32 numbers are not those of a rank-one matrix to 1e-8: weights must not vanish for it."""
    slopes, values = torch.tensor([7e-8, 1.5e-7, -3e-8, 7e-8]), torch.tensor([0.124, 5.05, 0.939, 0.631])
    for options in [{"normalize": n} for n in (None, "l2", "loss")] if method == "mgda" else [{}]:
        x = torch.zeros(1, requires_grad=True)
        balancer = eq.make(method, 4, **options)
        balancer([v + s * x[0] for v, s in zip(values, slopes, strict=True)], shared=[x]).backward()
        assert torch.isfinite(x.grad).all() and balancer.weights.sum() > 0.1
        if method == "mgda":
            torch.testing.assert_close(balancer.weights.sum(), torch.tensor(4.0))
