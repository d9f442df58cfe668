"""What runs in Python's own numbers on a CPU gives what the operators on tensors give."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from equipoise.gradient import moco, solvers
from equipoise.gradient.solvers.two import fair_of_two, min_norm_of_two

Solve = Callable[[Tensor, Tensor], solvers.Solution | None]
BOTH = torch.ones(2, dtype=torch.bool)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def pairs() -> dict[str, list[Tensor]]:
    """Two gradients of many kinds."""
    found: dict[str, list[Tensor]] = {}
    for seed in range(12):
        rows, common = normal(2, 20, seed=seed), normal(20, seed=100 + seed)
        spread = torch.logspace(-5, 5, 12, dtype=torch.float64)[seed]
        for kind, pair in {
            "independent": rows,
            "uneven": rows * torch.stack([spread, torch.ones_like(spread)]).unsqueeze(1),
            "common": rows + 3 * common,
            "conflict": rows * torch.tensor([[0.3], [0.2]]) + torch.stack([common, -2 * common]),
            "small": rows * 1e-9,
            "large": rows * 1e9,
        }.items():
            found.setdefault(kind, []).append(pair)
    return found


def as_three(solve: Solve, gram: Tensor) -> solvers.Solution:
    """The solver for any number of tasks: a third one is there and out of the game."""
    wider = torch.zeros(3, 3, dtype=torch.float64)
    wider[:2, :2] = gram
    solution = solve(wider, torch.tensor([True, True, False]))
    assert solution is not None
    return solution


@pytest.mark.parametrize("kind", pairs())
@pytest.mark.parametrize("alpha", [None, 0.3, 1.0, 2.0, 5.0])
def test_two_tasks(kind: str, alpha: float | None) -> None:
    for jacobian in pairs()[kind]:
        gram = jacobian @ jacobian.T
        if alpha is None:
            found, expected = min_norm_of_two(gram, BOTH), as_three(solvers.min_norm, gram)
        else:
            found = fair_of_two(gram, BOTH, alpha)
            expected = as_three(lambda g, on, alpha=alpha: solvers.fair(g, on, alpha), gram)  # type: ignore[misc]
        assert found is not None and not found.degenerate and not expected.degenerate
        torch.testing.assert_close(found.weights, expected.weights[:2], rtol=1e-7, atol=1e-7)
        assert found.residual < 1e-9


def test_two_gradients_that_are_one() -> None:
    """Any weights would do: those that are nearest to equal parts."""
    gradient = normal(1, 20)
    solution = min_norm_of_two(gradient.T.square().sum() * torch.ones(2, 2, dtype=torch.float64), BOTH)
    assert solution is not None
    torch.testing.assert_close(solution.weights, torch.tensor([0.5, 0.5], dtype=torch.float64))


def test_what_two_tasks_leave_to_the_solver_for_any_number() -> None:
    gradient = normal(1, 20)
    opposite = torch.cat([gradient, -gradient])
    gram = opposite @ opposite.T
    assert fair_of_two(gram, BOTH, 2.0) is None  # no solution
    stationary = min_norm_of_two(gram, BOTH)
    assert stationary is not None and stationary.degenerate
    for solve in (min_norm_of_two, lambda g, on: fair_of_two(g, on, 1.0)):
        assert solve(gram, torch.tensor([True, False])) is None
        assert solve(torch.zeros(2, 2, dtype=torch.float64), BOTH) is None
        assert solve(torch.eye(3, dtype=torch.float64), torch.ones(3, dtype=torch.bool)) is None


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e8])
@pytest.mark.parametrize("tasks", [1, 2, 7])
def test_the_nearest_point_of_the_simplex(tasks: int, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(20):
        point, present = scale * normal(tasks, seed=seed), normal(tasks, seed=seed + 50) > -0.5
        present[seed % tasks] = True
        found = moco._onto_simplex(point, present)
        with monkeypatch.context() as patch:
            patch.setattr(moco, "may_look", lambda _: False)
            torch.testing.assert_close(found, moco._onto_simplex(point, present), rtol=1e-9, atol=1e-12)
