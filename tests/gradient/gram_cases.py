"""Gradient matrices of every awkward kind, and the solvers they are put to."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.gradient import solvers
from gradient.helpers import oracle, step

SIZES = [2, 3, 5, 11, 40]
CASES = oracle("jac_cases")
each_size = pytest.mark.parametrize("tasks", SIZES)


class Case(NamedTuple):
    index: int
    kind: str
    jacobian: Tensor
    losses: Tensor

    @property
    def longest(self) -> float:
        return self.jacobian.norm(dim=1).max().item()


def cases(tasks: int) -> Iterator[Case]:
    columns = (CASES[f"names_K{tasks}"], CASES[f"J_K{tasks}"], CASES[f"losses_K{tasks}"])
    for index, (kind, jacobian, losses) in enumerate(zip(*columns, strict=True)):
        yield Case(index, str(kind), jacobian, losses)


def take(balancer: eq.Balancer, case: Case, where: str = "parameters") -> tuple[Tensor, Tensor, list[str]]:
    """The gradients of shared tensor and heads, and what was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        shared, heads = step(balancer.double(), case.jacobian, case.losses, where)
    return shared, heads, [str(w.message) for w in caught]


def agree(found: Tensor, exact: Tensor, case: Case, tolerance: float = 1e-6) -> None:
    """Relative to the exact vector, or to the longest gradient where the exact one is 0."""
    size = exact.norm().item()
    size = size if size > 1e-9 * case.longest else case.longest
    assert (found - exact).norm().item() <= tolerance * size, case.kind


def regularised(balancer: eq.Balancer, said: list[str]) -> bool:
    """Whether status says so; the warning must say the same."""
    flag = bool(balancer.status["regularised"])
    assert [("has no solution" in text) for text in said] == [True] * flag
    assert torch.isfinite(balancer.status["residual"])
    return flag


RIDGE = 1e-4


def everyone(tasks: int) -> Tensor:
    return torch.ones(tasks, dtype=torch.bool)


def upgrad(gram: Tensor, active: Tensor) -> solvers.Solution:
    return solvers.dual_cone(gram, active, torch.eye(len(gram), dtype=gram.dtype), RIDGE)


def dualproj(gram: Tensor, active: Tensor) -> solvers.Solution:
    return solvers.dual_cone(gram, active, torch.ones(len(gram), 1, dtype=gram.dtype), RIDGE)


SOLVERS: dict[str, Callable[[Tensor, Tensor], solvers.Solution]] = {
    "min_norm": solvers.min_norm,
    "cagrad": lambda gram, active: solvers.cagrad(gram, active, 0.4),
    "nash": lambda gram, active: solvers.fair(gram, active, 1.0),
    "fair 0.5": lambda gram, active: solvers.fair(gram, active, 0.5),
    "fair 2": lambda gram, active: solvers.fair(gram, active, 2.0),
    "equal_projections": solvers.equal_projections,
    "equal_cosines": solvers.equal_cosines,
    "aligned": lambda gram, active: solvers.aligned(gram, active, "min"),
    "upgrad": upgrad,
    "dualproj": dualproj,
}
# By which power of a common factor of the gradients the weights go.
POWERS = {"nash": -1.0, "fair 0.5": -2 / 3, "fair 2": -4 / 3}
