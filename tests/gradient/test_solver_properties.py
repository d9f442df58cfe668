"""The K x K solvers on awkward matrices: optimality conditions, symmetries, and the paths a GPU takes."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from equipoise.gradient import solvers
from equipoise.gradient.pcgrad import project
from equipoise.gradient.solvers.eigen import eigen, jacobi
from gradient.gram_cases import CASES, POWERS, RIDGE, SOLVERS, everyone
from gradient.helpers import oracle

each_solver = pytest.mark.parametrize("name", SOLVERS)

# Awkward matrices: small whole numbers, so that dependent, opposite, equal and zero gradients are exact.

whole = st.integers(1, 6).flatmap(
    lambda tasks: st.integers(1, 5).flatmap(
        lambda width: st.lists(
            st.lists(st.integers(-3, 3), min_size=width, max_size=width), min_size=tasks, max_size=tasks
        )
    )
)
quick = settings(deadline=None, max_examples=60)


def play(matrix: list[list[int]]) -> tuple[Tensor, Tensor, Tensor]:
    jacobian = torch.tensor(matrix, dtype=torch.float64)
    return jacobian, jacobian @ jacobian.T, (jacobian != 0).any(1)


@quick
@given(whole)
def test_min_norm_conditions(matrix: list[list[int]]) -> None:
    """w is in the simplex and no gradient is shorter along d than d itself: zero gradients among them."""
    jacobian, gram, _ = play(matrix)
    solution = solvers.min_norm(gram, everyone(len(gram)))
    assert solution.weights.min() >= 0 and solution.weights.sum().item() == pytest.approx(1.0)
    d = jacobian.T @ solution.weights
    assert (jacobian @ d).min() >= d @ d - 1e-8
    assert bool(solution.degenerate) == (d.norm() < 1e-6)
    twice = torch.cat([jacobian, jacobian[:1]])
    again = solvers.min_norm(twice @ twice.T, everyone(len(twice)))
    torch.testing.assert_close(twice.T @ again.weights, d, rtol=0, atol=1e-7)


@quick
@given(whole, st.sampled_from([0.1, 0.5, 0.9]))
def test_cagrad_conditions(matrix: list[list[int]], c: float) -> None:
    """d is in the ball, and no other direction of it improves the worst task more: the value of the dual is met."""
    jacobian, gram, active = play(matrix)
    solution = solvers.cagrad(gram, active, c)
    if not active.any():
        return
    mean = jacobian[active].mean(0)
    d = jacobian.T @ solution.weights
    radius = c * mean.norm()
    assert (d - mean).norm() <= radius * (1 + 1e-6) + 1e-9
    if not solution.degenerate:
        w = (solution.weights - active.double() / active.sum()).clamp(min=0.0)
        g_w = jacobian.T @ w / w.sum()
        bound = mean @ g_w + radius * g_w.norm()  # no direction in the ball improves the worst task by more
        assert (jacobian[active] @ d).min() >= bound - 1e-6 * (1 + bound.abs())


@quick
@given(whole, st.sampled_from([0.5, 1.0, 2.0]))
def test_fair_solves_its_equations(matrix: list[list[int]], alpha: float) -> None:
    _, gram, active = play(matrix)
    solution = solvers.fair(gram, active, alpha)
    assert torch.isfinite(solution.weights).all() and (solution.weights[active] > 0).all()
    assert solution.weights[~active].abs().sum() == 0
    if active.any():
        size = int(active.sum())
        delta = 1e-8 * gram.trace() / size if solution.degenerate else 0.0
        gram = gram + delta * torch.diag(active.double())
        miss = (gram @ solution.weights) * solution.weights ** (1 / alpha) - 1
        assert miss[active].abs().max() < (1e-4 if solution.degenerate else 1e-6)
        hull = solvers.min_norm(gram, active)
        assert bool(solution.degenerate) <= bool(hull.degenerate | (delta > 0))


@quick
@given(whole)
def test_equal_projections_conditions(matrix: list[list[int]]) -> None:
    """The least squares of least norm, as LAPACK finds it from task 1's equations (where they have a solution)."""
    jacobian, gram, active = play(matrix)
    solution = solvers.equal_projections(gram, active)
    if not active.any() or solution.degenerate:
        return
    inside = jacobian[active]
    units = inside / inside.norm(dim=1, keepdim=True)
    system = torch.cat([(units[:1] - units[1:]) @ inside.T, torch.ones(1, len(inside))])
    target = torch.zeros(len(system), dtype=torch.float64)
    target[-1] = 1.0
    expected = torch.from_numpy(np.linalg.lstsq(system.numpy(), target.numpy(), rcond=1e-12)[0])
    torch.testing.assert_close(solution.weights[active], expected, rtol=1e-6, atol=1e-6)


@quick
@given(whole)
def test_dual_cone_conditions(matrix: list[list[int]]) -> None:
    """v >= start, the slope is not negative, and 0 wherever v is above start."""
    _, gram, active = play(matrix)
    for start in (torch.ones(len(gram), 1, dtype=torch.float64), torch.eye(len(gram), dtype=torch.float64)[:, :1]):
        solution = solvers.dual_cone(gram, active, start, RIDGE)
        v = solution.weights[active]
        above = v - start[active, 0]
        if active.any():
            inside = gram[active][:, active]
            slope = (inside / inside.trace() + RIDGE * torch.eye(len(inside))) @ v
            assert above.min() >= -1e-12
            assert slope.min() >= -1e-7 * (1 + v.abs().max())
            assert (slope * above).abs().max() <= 1e-7 * (1 + v.abs().max()) ** 2
        assert solution.residual < 1e-7


@each_solver
@quick
@given(matrix=whole, order=st.randoms(use_true_random=False))
def test_order_of_tasks_does_not_matter(name: str, matrix: list[list[int]], order: Any) -> None:
    _, gram, active = play(matrix)
    places = list(range(len(gram)))
    order.shuffle(places)
    one = SOLVERS[name](gram, active)
    other = SOLVERS[name](gram[places][:, places], active[places])
    assert bool(one.degenerate) == bool(other.degenerate)
    size = one.weights.abs().max().item()
    torch.testing.assert_close(other.weights, one.weights[places], rtol=0, atol=2e-6 * size + 1e-12)


@each_solver
@quick
@given(matrix=whole, scale=st.sampled_from([1e-16, 1e16]))
def test_scale_of_gradients_does_not_matter(name: str, matrix: list[list[int]], scale: float) -> None:
    _, gram, active = play(matrix)
    one, other = SOLVERS[name](gram, active), SOLVERS[name](gram * scale, active)
    assert bool(one.degenerate) == bool(other.degenerate)
    factor = scale ** (POWERS.get(name, 0.0) / 2)
    size = one.weights.abs().max().item()
    torch.testing.assert_close(other.weights / factor, one.weights, rtol=0, atol=2e-6 * size + 1e-12)


@each_solver
@quick
@given(matrix=whole)
def test_a_task_out_of_the_game_is_not_there(name: str, matrix: list[list[int]]) -> None:
    _, gram, active = play(matrix)
    active[0] = False
    found = SOLVERS[name](gram, active)
    assert found.weights[0] == 0 and torch.isfinite(found.weights).all() and torch.isfinite(found.residual)
    if active.any():
        alone = SOLVERS[name](gram[active][:, active], everyone(int(active.sum())))
        size = alone.weights.abs().max().item()
        torch.testing.assert_close(found.weights[active], alone.weights, rtol=0, atol=2e-6 * size + 1e-12)


@quick
@given(whole, st.randoms(use_true_random=False))
def test_pcgrad_against_its_definition(matrix: list[list[int]], random: Any) -> None:
    """One gradient at a time, in full."""
    jacobian, gram, _ = play(matrix)
    tasks = len(gram)
    order = torch.tensor([random.sample(range(tasks), tasks) for _ in range(tasks)])
    expected = torch.zeros_like(jacobian[0])
    for i in range(tasks):
        g = jacobian[i]
        for j in order[i].tolist():
            product = g @ jacobian[j]
            if j != i and product < -1e-12:
                g = g - product / gram[j, j] * jacobian[j]
        expected = expected + g
    torch.testing.assert_close(jacobian.T @ project(gram, order), expected, rtol=0, atol=1e-9)


# What runs on a GPU, where the host may not look, and what runs when pivoting does not end.


def _blind(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("complementarity", "fair", "equal_projections", "eigen", "two"):
        module = importlib.import_module(f"equipoise.gradient.solvers.{name}")
        monkeypatch.setattr(module, "may_look", lambda _: False)


def _agree(name: str, tasks: int, change: Callable[[], None], leave_out: Sequence[str] = ()) -> None:
    """A solver on every kind of case as it is, and after `change`."""
    grams = CASES[f"J_K{tasks}"] @ CASES[f"J_K{tasks}"].mT
    before = [SOLVERS[name](gram, gram.diagonal() > 0) for gram in grams]
    change()
    for kind, gram, expected in zip(CASES[f"names_K{tasks}"].tolist(), grams, before, strict=True):
        if kind in leave_out:
            continue
        found = SOLVERS[name](gram, gram.diagonal() > 0)
        assert bool(found.degenerate) == bool(expected.degenerate), kind
        size = expected.weights.abs().max().item()
        torch.testing.assert_close(found.weights, expected.weights, rtol=0, atol=3e-6 * size + 1e-12)


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("tasks", [2, 11])
def test_the_same_without_looking(name: str, tasks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _agree(name, tasks, lambda: _blind(monkeypatch))


@pytest.mark.parametrize("name", ["min_norm", "cagrad", "upgrad", "dualproj"])
@pytest.mark.parametrize("tasks", [2, 11])
def test_the_same_by_the_interior_point_method(name: str, tasks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    complementarity = importlib.import_module("equipoise.gradient.solvers.complementarity")
    # there CAGrad may stop at a hull point 0 and say so: the next test
    leave_out = ["opposite_scaled"] if name == "cagrad" else []
    _agree(name, tasks, lambda: monkeypatch.setattr(complementarity, "_LOOKING", (8, 1, 3)), leave_out)


def test_cagrad_never_answers_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    """With pivoting crippled every answer is the right one or the documented replacement."""
    complementarity = importlib.import_module("equipoise.gradient.solvers.complementarity")
    expected = oracle("cagrad")
    for guesses in (1, 2):
        monkeypatch.setattr(complementarity, "_LOOKING", (8, guesses, 3))
        for tasks in (5, 11):
            for case, jacobian in enumerate(CASES[f"J_K{tasks}"]):
                for c in (0.2, 0.4, 0.8):
                    gram = jacobian @ jacobian.T
                    solution = solvers.cagrad(gram, gram.diagonal() > 0, c)
                    d = jacobian.T @ solution.weights
                    exact = expected[f"K{tasks}__c{c}__exact_d"][case]
                    if solution.degenerate:
                        torch.testing.assert_close(d, jacobian[gram.diagonal() > 0].mean(0))
                    elif not exact.isnan().any():
                        assert (d - exact).norm() < 1e-6 * exact.norm()


@pytest.mark.parametrize("tasks", [2, 3, 5, 11, 40])
def test_jacobi_is_eigh(tasks: int) -> None:
    for jacobian in CASES[f"J_K{tasks}"]:
        gram = jacobian @ jacobian.T
        values, vectors = jacobi(gram)
        largest = values[-1].item()
        torch.testing.assert_close(values, eigen(gram)[0].clamp(min=0.0), rtol=0, atol=1e-12 * largest)
        torch.testing.assert_close((vectors * values) @ vectors.mT, gram, rtol=0, atol=1e-11 * largest)
        torch.testing.assert_close(vectors.mT @ vectors, torch.eye(tasks, dtype=torch.float64), rtol=0, atol=1e-12)
