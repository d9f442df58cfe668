"""What the fuzzing found, one test a defect, so that none comes back."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import equipoise as eq
from contract.table import same
from gradient.helpers import step


def losses(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, requires_grad=True)


@pytest.mark.parametrize("name", ["ls", "rlw", "si", "ldc", "famo"])
def test_a_mask_with_nobody_in_it(name: str) -> None:
    """It gave NaN weights, silently."""
    balancer = eq.make(name, 2)
    before = copy.deepcopy(balancer.state_dict())
    with pytest.raises(ValueError, match="at least one task present"):
        balancer(losses(1.0, 2.0), present=[False, False])
    same(balancer.state_dict(), before)


def test_a_mask_with_nobody_in_it_where_nobody_looks() -> None:
    balancer = eq.RLW(2)
    compiled = torch.compile(lambda ls, here: balancer(ls, present=here), backend="eager")
    scalar = compiled(losses(1.0, 2.0), torch.tensor([False, False]))
    assert scalar.item() == 0.0 and torch.equal(balancer.weights, torch.ones(2))
    with pytest.raises(ValueError, match="at least one task present"):
        balancer.check()


@pytest.mark.parametrize("name", ["si", "stch", "gls", "dbmtl"])
@pytest.mark.parametrize("tiny", [1e-45, 1e-38])
def test_losses_without_a_reciprocal(name: str, tiny: float) -> None:
    """1 / l was infinite."""
    balancer = eq.make(name, 2)
    x = torch.nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match="the loss of task '1' must be above 0"):
        balancer([x[0], x[1] * tiny], shared=[x])


@pytest.mark.parametrize(
    ("name", "values"),
    [("ls", (3e38, 3e38)), ("famo", (1.0, 3e38)), ("go4align", (1e-20, 3e38)), ("dwa", (3e38, 3e38))],
)
@pytest.mark.parametrize("rule", ["raise", "skip"])
def test_results_beyond_float32(name: str, values: tuple[float, float], rule: Any) -> None:
    """The weights or the scalar were infinite, and the state kept them."""
    balancer = eq.make(name, 2, on_nonfinite=rule)
    balancer(losses(1.0, 2.0))
    before = copy.deepcopy(balancer.state_dict())
    try:
        scalar = balancer(losses(*values))
    except ValueError as error:
        assert rule == "raise" and "`losses` and their gradients must be of sizes" in str(error)
    else:
        assert torch.isfinite(scalar) and torch.isfinite(balancer.weights).all()
        if not balancer.skipped:
            return
        assert rule == "skip" and scalar.item() == 0.0
    same(balancer.state_dict(), before)


GAME = torch.tensor([[2.0, 1.0, 0.0], [-1.0, 1.0, 0.5], [0.0, -1.0, 2.0]])
SHORT = ["mgda", "nash-mtl", "imtl-g", "cagrad", "pcgrad", "upgrad", "dualproj", "aligned-mtl", "config", "graddrop"]


@pytest.mark.parametrize("where", ["features", "parameters"])
@pytest.mark.parametrize("name", SHORT)
@pytest.mark.parametrize("power", [-22, 22])
def test_gradients_whose_squares_are_not_float32(name: str, power: int, where: str) -> None:
    """Their Gram matrix was 0 or infinite in float32: the trunk got nothing, or the wrong weights."""
    scale = 10.0**power
    seeded = {"seed": 1} if name in ("pcgrad", "graddrop") else {}
    plain, _ = step(eq.make(name, 3, **seeded), GAME, torch.ones(3), where)
    scaled, _ = step(eq.make(name, 3, **seeded), GAME * scale, torch.ones(3), where)
    expected = plain if name == "nash-mtl" else plain * scale  # the bargain has unit length
    torch.testing.assert_close(scaled, expected, rtol=1e-5, atol=1e-6 * expected.abs().max().item())


@pytest.mark.parametrize("power", [-22, 22])
def test_narrow_linear_layers_whose_squares_are_not_float32(power: int) -> None:
    """The same where the Gram matrix is taken from the layer's outputs."""
    weights = {}
    for scale in (1.0, 10.0**power):
        torch.manual_seed(0)
        trunk = torch.nn.Linear(20, 4)
        outputs = trunk(torch.randn(3, 20))
        balancer = eq.MGDA(5)
        balancer([(outputs * torch.randn(3, 4)).sum() * scale for _ in range(5)], shared=list(trunk.parameters()))
        weights[scale] = balancer.weights
    torch.testing.assert_close(weights[1.0], weights[10.0**power], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["moco", "dbmtl"])
def test_an_average_that_would_overflow_is_left_alone(name: str) -> None:
    options = {"form": "libmtl"} if name == "moco" else {}
    balancer = eq.make(name, 2, **options)
    x = torch.nn.Parameter(torch.ones(2))
    balancer([x[0], x[1]], shared=[x])
    before = copy.deepcopy(balancer.state_dict())
    big = [x[0] * 1e-8 + 3e38, x[1]] if name == "moco" else [x[0] * 3e38 - 3e38 + 1e-20, x[1]]
    with pytest.raises(ValueError, match=r"must|above 0"):
        balancer(big, shared=[x])
    same(balancer.state_dict(), before)
