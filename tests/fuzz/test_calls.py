"""Calls in any order: a balancer is right, or refuses in a sentence and is then what it was.

A twin takes each step that trains and nothing else. Evaluations, refused losses, refused states, a backward too many, a
second `start_epoch` or `after_step`, copies and reloads must leave no trace: the two states agree to the bit.
"""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from torch import Tensor

import equipoise as eq
from contract.table import CASES, ROWS, Problem, Row, same
from fuzz.count import EXAMPLES, counted
from fuzz.problem import all_finite, assert_clear, make

Call = Any
STATES = [make(row, tasks).state_dict() for row in ROWS for tasks in (2, 3)]  # of every method, for two sizes
BAD: dict[str, Call] = {
    "nan": lambda ls: ([ls[0] * torch.nan, *ls[1:]], {}),
    "infinite": lambda ls: ([*ls[:-1], ls[-1] * torch.inf], {}),
    "one too many": lambda ls: ([*ls, ls[0]], {}),
    "none": lambda ls: ([], {}),
    "no scalar": lambda ls: ([ls[0][None], *ls[1:]], {}),
    "detached": lambda ls: ([loss.detach() for loss in ls], {}),
    "numbers": lambda ls: ([1.0] * len(ls), {}),
    "whole numbers": lambda ls: ([loss.detach().long() for loss in ls], {}),
    "a mapping without names": lambda ls: (dict(enumerate(ls)), {}),
    "a string": lambda ls: ("losses", {}),
    "a number": lambda ls: (3, {}),
    "nobody": lambda ls: (torch.stack(ls), {"present": [False] * len(ls)}),
    "all absent": lambda ls: ([None] * len(ls), {}),
    "a mask too long": lambda ls: (ls, {"present": [True] * (len(ls) + 1)}),
    "a mask of numbers": lambda ls: (ls, {"present": torch.ones(len(ls))}),
    "counts too long": lambda ls: (ls, {"counts": [1.0] * (len(ls) + 1)}),
    "negative": lambda ls: ([-loss for loss in ls], {}),
    "zero": lambda ls: ([loss * 0 for loss in ls], {}),
    "large": lambda ls: ([loss * 0 + 3e38 for loss in ls], {}),
    "far apart": lambda ls: ([loss * 0 + (3e38 if i else 1e-20) for i, loss in enumerate(ls)], {}),
    "huge": lambda ls: ([loss * 1e38 * 3e38 for loss in ls], {}),
    "a stranger as shared": lambda ls: (ls, {"shared": torch.ones(2, requires_grad=True)}),
    "a frozen tensor as shared": lambda ls: (ls, {"shared": torch.ones(2)}),
    "nothing as shared": lambda ls: (ls, {"shared": []}),
}


class Calls(RuleBasedStateMachine):
    cases = CASES

    @initialize(
        index=st.integers(0, 10_000), tasks=st.integers(1, 4), dtype=st.sampled_from([torch.float32, torch.float64])
    )
    def begin(self, index: int, tasks: int, dtype: torch.dtype) -> None:
        torch.default_generator.manual_seed(5)
        self.row, self.where = self.cases[index % len(self.cases)]
        self.balancer = make(self.row, tasks)
        self.twin = copy.deepcopy(self.balancer)
        self.problem = Problem(tasks, dtype, samples=3)
        self.scalar: Tensor | None = None  # the last one, until its backward has run
        self.spent: Tensor | None = None
        self.looked = True  # whether there is nothing for a second look

    def call(self, balancer: eq.Balancer, batch: int, change: Call = lambda ls: (ls, {})) -> Tensor:
        losses, features = self.problem.losses(batch)
        given, options = change(losses)
        return balancer(given, **{"shared": self.problem.shared(self.where, features), **options})

    @rule(batch=st.integers(0, 3), absent=st.booleans())
    def forward(self, batch: int, absent: bool) -> None:
        change = (lambda ls: ([None, *ls[1:]], {})) if absent and self.balancer.num_tasks > 1 else (lambda ls: (ls, {}))
        self.scalar = self.call(self.balancer, batch, change)
        other = self.call(self.twin, batch, change)
        assert torch.equal(self.scalar, other) and torch.isfinite(self.scalar)
        self.looked = False

    @precondition(lambda self: self.scalar is not None)
    @rule(times=st.integers(1, 2))
    def backward(self, times: int) -> None:
        """Twice with the graph kept is twice the gradient."""
        found = []
        for i in range(times):
            if i == 0:
                self.problem.clear(self.balancer)
            self.scalar.backward(retain_graph=i + 1 < times)
            found.append(self.problem.left(self.balancer))
        assert all_finite(found[0])
        if times == 2:
            for name, gradient in found[0].items():
                torch.testing.assert_close(found[1][name], 2 * gradient)
        self.scalar, self.spent = None, self.scalar

    @precondition(lambda self: self.spent is not None)
    @rule()
    def backward_too_often(self) -> None:
        """Autograd's own complaint about a graph that is gone, as for any loss."""
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            self.spent.backward()

    @rule(kind=st.sampled_from(list(BAD)), batch=st.integers(0, 3))
    def bad_forward(self, kind: str, batch: int) -> None:
        try:
            self.call(self.balancer, batch, BAD[kind])
        except Exception as error:
            assert_clear(error)
            if hasattr(self.balancer, "average"):  # MoCo's and DB-MTL's is moved in place, and stays moved
                assert torch.isfinite(self.balancer.average).all()
                self.twin.average = self.balancer.average.clone()
        else:
            self.call(self.twin, batch, BAD[kind])  # a method may take it
            self.looked = False

    @rule(batch=st.integers(0, 3), graph=st.booleans())
    def evaluate(self, batch: int, graph: bool) -> None:
        self.balancer.eval()
        with torch.set_grad_enabled(graph):
            assert torch.isfinite(self.call(self.balancer, batch))
        self.balancer.train()

    @rule(times=st.integers(1, 3))
    def start_epoch(self, times: int) -> None:
        for _ in range(times):
            self.balancer.start_epoch()
        self.twin.start_epoch()

    @rule(batch=st.integers(0, 3), times=st.integers(1, 2))
    def after_step(self, batch: int, times: int) -> None:
        losses = [loss.detach() for loss in self.problem.losses(batch)[0]]
        for _ in range(times):
            self.balancer.after_step(losses)
        if not self.looked:
            self.twin.after_step(losses)
        self.looked = True

    @rule()
    def after_step_of_bad_losses(self) -> None:
        if self.balancer.needs_after_step:
            with pytest.raises(ValueError, match="must be finite"):
                self.balancer.after_step([torch.tensor(torch.nan)] * self.balancer.num_tasks)

    @rule()
    def reload(self) -> None:
        file = io.BytesIO()
        torch.save(self.balancer.state_dict(), file)
        file.seek(0)
        self.balancer = make(self.row, self.balancer.num_tasks)
        self.balancer.load_state_dict(torch.load(file, weights_only=True))

    @rule(way=st.sampled_from(["copy", "pickle"]))
    def replace(self, way: str) -> None:
        self.balancer = copy.deepcopy(self.balancer) if way == "copy" else pickle.loads(pickle.dumps(self.balancer))

    @rule(state=st.sampled_from(STATES))
    def load_a_strangers_state(self, state: dict[str, Tensor]) -> None:
        """Of another method or another K: refused whole, or, where it has the same parts, taken back."""
        before, self.scalar = copy.deepcopy(self.balancer.state_dict()), None  # its graph reads what loading writes
        try:
            self.balancer.load_state_dict(state)
        except RuntimeError as error:
            assert "Error(s) in loading state_dict" in str(error)
        else:
            self.balancer.load_state_dict(before)

    @rule(dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float64]))
    def load_a_state_of_another_dtype(self, dtype: torch.dtype) -> None:
        before, self.scalar = copy.deepcopy(self.balancer.state_dict()), None
        try:
            self.balancer.load_state_dict({k: t.to(dtype) if t.is_floating_point() else t for k, t in before.items()})
        except RuntimeError as error:
            assert "must be finite" in str(error) and dtype == torch.float16
        else:
            assert all(t.dtype == before[k].dtype for k, t in self.balancer.state_dict().items())
            self.balancer.load_state_dict(before)

    @rule()
    def look(self) -> None:
        self.balancer.check()
        repr(self.balancer)
        self.balancer.param_groups(lr=0.1)

    @invariant()
    def no_trace_of_anything_else(self) -> None:
        if hasattr(self, "twin"):
            state = dict(self.balancer.state_dict())
            same(state, dict(self.twin.state_dict()))
            assert all_finite(state) and torch.isfinite(self.balancer.weights).all()


LOOSE = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}


def test_any_order_of_calls() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_state_machine_as_test(
            Calls, settings=settings(max_examples=60, stateful_step_count=12, derandomize=True, **LOOSE)
        )


@pytest.mark.slow
@pytest.mark.parametrize(("row", "where"), CASES, ids=[f"{row}@{where}" for row, where in CASES])
def test_many_orders_of_calls(row: Row, where: str) -> None:
    with counted("calls", f"{row}@{where}") as tick, warnings.catch_warnings():
        warnings.simplefilter("ignore")

        class Counted(Calls):
            cases = [(row, where)]  # noqa: RUF012 (hypothesis reads the class)

            def teardown(self) -> None:
                tick()

        examples = max(1, EXAMPLES // 10)
        run_state_machine_as_test(Counted, settings=settings(max_examples=examples, stateful_step_count=30, **LOOSE))
