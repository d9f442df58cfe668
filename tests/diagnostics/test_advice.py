"""The recommendation: which rule speaks first, on both sides of its threshold."""

import math

import pytest
import torch

from diagnostics.test_rules import ABC, look
from equipoise.diagnostics import rules
from equipoise.diagnostics.advice import advise
from equipoise.diagnostics.costs import Costs
from equipoise.diagnostics.rules import Finding

RIGHT_ANGLES = [[1.0, 0.0], [0.0, 1.0]]
OPPOSED = [[1.0, 0.0], [-1.0, 1.0]]


def said(losses=(1.0, 1.0), gradients=None, costs=None, extra=(), **seen):
    seen_look = look(list(losses), gradients, **seen)
    findings = [*rules.of_step(ABC[: len(losses)], seen_look), *(Finding(kind, "Why.") for kind in extra)]
    return advise(seen_look, findings, costs)


def costs(features=None, parameters=None):
    return Costs(features, parameters, None, False, 1.0)


def test_what_is_broken_comes_first():
    assert said([1.0, math.inf], present=[True, True]) == "Mend this first: the loss is not finite: 'b'."
    found = said([1.0, 1.0], [[1.0, 0.0], [0.0, 0.0]], extra=["equals-ls"])
    assert found.startswith("Mend this first: no gradient reaches the shared tensors")


def test_one_task():
    assert "nothing to balance" in said([1.0], [[1.0, 0.0]])
    assert "nothing to balance" in said([1.0, math.nan], [[1.0, 0.0], [0.0, 0.0]])


def test_weights_that_do_not_move():
    for kind in ("stuck", "dead-router"):
        assert said(gradients=OPPOSED, extra=[kind, "equals-ls"]).startswith("Change the router")
    assert "eq.LS with these weights" in said(gradients=OPPOSED, extra=["equals-ls"])


def test_a_stationary_point_is_a_choice():
    assert "choice between tasks" in said(gradients=[[1.0, 0.01], [-1.0, 0.01]])
    assert "choice between tasks" not in said(gradients=[[1.0, 0.2], [-1.0, 0.2]])


@pytest.mark.parametrize(("length", "expected"), [(0.11, "plain summing"), (0.09, "eq.LDC")])
def test_uneven_gradients(length, expected):
    assert expected in said(gradients=[[1.0, 0.0], [0.0, length]])


@pytest.mark.parametrize(("loss", "expected"), [(9.9, "Look at the gradients"), (10.1, "eq.LDC")])
def test_losses_alone(loss, expected):
    assert expected in said([1.0, loss])
    assert "give `shared`" in said([1.0, loss])


@pytest.mark.parametrize(("loss", "expected"), [(9.9, "plain summing"), (10.1, "Compare eq.LS with")])
def test_losses_that_gradients_do_not_confirm(loss, expected):
    assert expected in said([1.0, loss], RIGHT_ANGLES)


@pytest.mark.parametrize(("scale", "method"), [(5.0, "eq.UPGrad"), (20.0, "eq.NashMTL")])
def test_conflict_asks_for_the_price(scale, method):
    gradients = [[scale, 0.0], [-0.7, 0.7]]
    assert method in said(gradients=gradients)
    assert "ask eq.diagnose" in said(gradients=gradients)
    assert method in said(gradients=gradients, costs=costs(features=1.2))


def test_conflict_at_a_price():
    cheap = said(gradients=OPPOSED, costs=costs(features=1.5, parameters=3.0))
    assert "at the features" in cheap
    assert "1.50 times" in cheap
    exact = said(gradients=OPPOSED, costs=costs(features=1.51, parameters=1.4))
    assert "with exact parameters" in exact
    assert "1.40 times" in exact
    dear = said(gradients=OPPOSED, costs=costs(features=1.51, parameters=3.0))
    assert dear.startswith("Compare eq.LS, its weights swept, with a loss-only method such as eq.LDC")
    assert "at the features costs 1.5 times" in dear
    only = said(gradients=OPPOSED, costs=costs(parameters=3.0))
    assert "give the features" in only
    assert "0.9" not in said(gradients=OPPOSED, costs=costs(features=0.9))  # a step cannot cost less: noise


def test_it_is_one_sentence():
    for text in (
        said(), said(gradients=RIGHT_ANGLES), said(gradients=OPPOSED), said([1.0, 50.0]), said([1.0]),
        said([1.0, 50.0], RIGHT_ANGLES),
        said(gradients=OPPOSED, costs=costs(1.2)), said(gradients=OPPOSED, extra=["stuck"]),
        said(gradients=torch.diag(torch.tensor([1.0, 0.01])).tolist()),
    ):  # fmt: skip
        assert text.endswith(".")
        assert ". " not in text
