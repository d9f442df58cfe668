"""The K x K solvers against slow independent references."""

from __future__ import annotations

import sys

import cvxpy
import numpy as np
import pytest
import scipy.optimize
import torch
import torchjd.aggregation as peer
from torch import Tensor

from equipoise.gradient import solvers
from gradient.gram_cases import RIDGE, SOLVERS, everyone


def rows(seed: int, tasks: int, width: int = 12, common: float = 0.0) -> Tensor:
    """Gradients of uneven length, with or without a common part."""
    generator = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)  # noqa: E731
    return (normal(tasks, width) + common * normal(1, width)) * normal(tasks, 1).exp()


each_seed = pytest.mark.parametrize("seed", range(4))
SHAPES = [(3, 12, 0.0), (6, 4, 0.7), (11, 30, 0.5)]
each_shape = pytest.mark.parametrize(("tasks", "width", "common"), SHAPES)


@each_seed
@each_shape
def test_min_norm_against_nnls(seed: int, tasks: int, width: int, common: float) -> None:
    """The min-norm point is the solution of |J'u|^2 + (sum u - 1)^2 over u >= 0, divided by its sum."""
    jacobian = rows(seed, tasks, width, common)
    jacobian = jacobian / jacobian.norm(dim=1).mean()
    system = np.vstack([jacobian.T.numpy(), np.ones((1, tasks))])
    u, _ = scipy.optimize.nnls(system, np.r_[np.zeros(width), 1.0])
    expected = jacobian.T @ torch.from_numpy(u / u.sum())
    found = jacobian.T @ solvers.min_norm(jacobian @ jacobian.T, everyone(tasks)).weights
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("c", [0.3, 0.9])
@each_shape
def test_cagrad_against_cvxpy(c: float, tasks: int, width: int, common: float) -> None:
    """d as the best worst improvement in the ball, which is how the method is derived."""
    jacobian = rows(7, tasks, width, common + 0.3)
    jacobian = jacobian / jacobian.norm(dim=1).mean()
    mean = jacobian.mean(0)
    d = cvxpy.Variable(width)
    worst = cvxpy.min(jacobian.numpy() @ d)
    radius = c * mean.norm().item()
    problem = cvxpy.Problem(cvxpy.Maximize(worst), [cvxpy.norm(d - mean.numpy()) <= radius])
    problem.solve(solver="CLARABEL")
    solution = solvers.cagrad(jacobian @ jacobian.T, everyone(tasks), c)
    assert not solution.degenerate and solution.residual < 1e-9
    torch.testing.assert_close(jacobian.T @ solution.weights, torch.from_numpy(d.value), rtol=0, atol=2e-4)
    assert (jacobian @ jacobian.T @ solution.weights).min().item() >= problem.value - 1e-7


@each_seed
@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0, 5.0])
def test_fair_against_scipy(seed: int, alpha: float) -> None:
    jacobian = rows(seed, 6, 20, 0.5)
    gram = (jacobian @ jacobian.T).numpy()
    miss = lambda x: np.log(np.maximum(gram @ np.exp(x), 1e-12)) + x / alpha  # noqa: E731
    start = -np.log(np.diag(gram)) * alpha / (1 + alpha)
    reference = scipy.optimize.root(miss, start, tol=1e-13)
    assert reference.success
    solution = solvers.fair(torch.from_numpy(gram), everyone(6), alpha)
    assert not solution.degenerate and solution.residual < 1e-10
    torch.testing.assert_close(solution.weights, torch.from_numpy(np.exp(reference.x)), rtol=1e-8, atol=0)


@each_seed
@pytest.mark.filterwarnings("ignore")
def test_against_torchjd(seed: int) -> None:
    jacobian = rows(seed, 5, 9, 0.4)
    gram = jacobian @ jacobian.T
    expected = {
        "aligned": (peer.AlignedMTL(scale_mode="min")(jacobian), 1 / 5, 1e-6),  # combines like a mean there
        "equal_cosines": (peer.ConFIG()(jacobian), 1.0, 1e-6),
        "equal_projections": (peer.IMTLG()(jacobian), 1.0, 1e-6),
        "cagrad": (peer.CAGrad(c=0.4)(jacobian), 1.0, 1e-3),  # the accuracy of its own solver
    }
    for name, (vector, factor, accuracy) in expected.items():
        found = jacobian.T @ SOLVERS[name](gram, everyone(5)).weights * factor
        torch.testing.assert_close(found, vector, rtol=0, atol=accuracy * vector.abs().max().item())


def test_dual_cone_without_ridge_is_the_projection() -> None:
    """The nearest direction that conflicts with no task, by cvxpy."""
    jacobian = rows(3, 5, 6)
    gram = jacobian @ jacobian.T
    for start in (torch.eye(5)[:, :1].double(), torch.ones(5, 1).double()):
        d = cvxpy.Variable(6)
        target = (jacobian.T @ start)[:, 0]
        cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(d - target.numpy())), [jacobian.numpy() @ d >= 0]).solve(
            solver="CLARABEL"
        )
        found = jacobian.T @ solvers.dual_cone(gram, everyone(5), start, 0.0).weights
        torch.testing.assert_close(found, torch.from_numpy(d.value), rtol=0, atol=1e-5)
        assert (jacobian @ found).min() > -1e-9


def test_dual_cone_of_many_columns_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """K columns make K problems of K x K: a thousand tasks must not ask for K^3 entries at once."""
    module = sys.modules[solvers.dual_cone.__module__]
    jacobian = rows(5, 7)
    gram, each = jacobian @ jacobian.T, torch.eye(7, dtype=torch.float64)
    whole = solvers.dual_cone(gram, everyone(7), each, RIDGE)
    sizes, solve = [], module.solve
    monkeypatch.setattr(module, "_ENTRIES", 100)
    monkeypatch.setattr(module, "solve", lambda p: sizes.append(len(p.cost)) or solve(p))
    found = solvers.dual_cone(gram, everyone(7), each, RIDGE)
    assert sizes == [2, 2, 2, 1]
    torch.testing.assert_close(found.weights, whole.weights, rtol=1e-12, atol=0)
    torch.testing.assert_close(found.residual, whole.residual, rtol=0, atol=1e-14)
