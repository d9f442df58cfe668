"""Any losses, any gradients: a step is right, or refused in a sentence and forgotten."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

import equipoise as eq
from contract.table import Row, same
from fuzz import oracles
from fuzz.count import EXAMPLES, counted
from fuzz.problem import KNOWN, Case, Leaves, all_finite, assert_clear, cases, make

LOOSE = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}


def put_to(row: Row, where: str, case: Case, rule: str) -> None:
    """Two steps. What a refused one leaves is what was there, except for MoCo's and DB-MTL's average of gradients,
    which is moved in place, and stays finite."""
    torch.default_generator.manual_seed(0)  # alone: `torch.manual_seed` takes longer than a step
    balancer = make(row, len(case.values))
    balancer.on_nonfinite = rule
    leaves = Leaves(case)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(2):
            leaves.zero_grad()
            before = {name: tensor.clone() for name, tensor in balancer.state_dict().items()}
            try:
                losses, shared = leaves.losses(where)
                scalar = balancer(losses, shared)
            except Exception as error:
                assert_clear(error)
                unchanged(balancer, before)
                assert rule == "raise" or "finite" not in str(error)
                return
            if balancer.skipped:
                assert rule == "skip" and scalar.item() == 0.0
                unchanged(balancer, before)
                return
            assert case.finite, "not refused"
            scalar.backward()
            assert torch.isfinite(scalar) and all_finite(balancer.state_dict())
            assert torch.isfinite(balancer.weights).all()
            if number == 0:
                assert leaves.x.grad is not None
                found = leaves.x.grad.double().numpy()
                oracles.check(row, where, case, balancer, found, balancer.weights.double().numpy())
            if balancer.needs_after_step:
                balancer.after_step(leaves.losses(where)[0])
                assert all_finite(balancer.state_dict())


def unchanged(balancer: eq.Balancer, before: dict[str, Tensor]) -> None:
    state = dict(balancer.state_dict())
    assert all_finite(state)
    before.pop("average", None), state.pop("average", None)
    same(state, before)


@settings(max_examples=300, derandomize=True, **LOOSE)
@given(st.sampled_from(KNOWN), cases, st.sampled_from(["raise", "raise", "skip"]))
@example(KNOWN[0], Case(torch.ones(1, 1), torch.ones(1), [True]), "raise")
def test_a_step_is_right_or_refused(method: tuple[Row, str], case: Case, rule: str) -> None:
    put_to(*method, case, rule)


@pytest.mark.slow
@pytest.mark.parametrize(("row", "where"), KNOWN, ids=[f"{row}@{where}" for row, where in KNOWN])
def test_many_steps_are_right_or_refused(row: Row, where: str) -> None:
    with counted("values", f"{row}@{where}") as tick:

        @settings(max_examples=EXAMPLES, phases=[Phase.generate], **LOOSE)
        @given(cases, st.sampled_from(["raise", "raise", "skip"]))
        def many(case: Case, rule: str) -> None:
            tick()
            put_to(row, where, case, rule)

        many()


numbers = st.sampled_from([0.0, 1e-300, 1e-8, 0.5, 1.0, 2.0, 1e8, 1e300, -1.0, float("inf"), float("nan")])
OPTIONS = {
    "ldc": ["discrepancy", "smooth", "floor"], "stch": ["mu"], "dwa": ["temperature"], "uw": ["init"],
    "famo": ["gamma", "lr"], "go4align": ["step"], "cagrad": ["c"], "fairgrad": ["alpha", "max_norm"],
    "nash-mtl": ["max_norm"], "moco": ["beta", "beta_sigma", "gamma", "gamma_sigma", "rho"], "graddrop": ["leak"],
    "dbmtl": ["beta", "beta_sigma"], "gradnorm": ["alpha"], "ldc-double": ["inner_lr"],
}  # fmt: skip


@settings(max_examples=200, derandomize=True, **LOOSE)
@given(st.sampled_from([(name, option) for name, options in OPTIONS.items() for option in options]), numbers)
def test_any_number_as_an_option(option: tuple[str, str], value: float) -> None:
    """Refused by the constructor by name, or harmless."""
    name, key = option
    needed = {"inner_lr": 0.1} if name == "ldc-double" else {}
    try:
        balancer = eq.make(name, 2, **{**needed, key: value})
    except ValueError as error:
        assert_clear(error)
        assert f"`{key}`" in str(error)
        return
    x = torch.nn.Parameter(torch.ones(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            losses = [2 * x[0], x[0] + x[1]]
            try:
                balancer(losses, [x]).backward()
            except ValueError as error:
                assert_clear(error)
                return
            if balancer.needs_after_step:
                balancer.after_step(losses)
            assert all_finite(balancer.state_dict()) and torch.isfinite(x.grad).all()
