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
@pytest.mark.filterwarnings("ignore:(invalid value|overflow):RuntimeWarning")
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


@pytest.mark.parametrize("how", ["log", "ratio", "rescale", None])
def test_an_absent_task_whose_lower_bound_is_what_absence_reads_as(how: Any) -> None:
    """1 - 1 = 0 stood for the absent loss, and 0 log 0 is NaN."""
    balancer = eq.LDC(2, normalize=how, min_losses=(-2.0, 1.0))
    assert torch.isfinite(balancer(losses(-1.0, 2.0)))
    plain = copy.deepcopy(balancer)(losses(-1.0, 7.0), present=[True, False])
    assert torch.isfinite(plain)
    assert balancer([losses(-1.0)[0], None]).item() == plain.item()


@pytest.mark.parametrize("smooth", [1e-300, 1e-45])
def test_a_smoothing_that_float32_takes_for_none(smooth: float) -> None:
    """The slope of a root at 0 is infinite: the gradient was NaN where two losses were equal."""
    with pytest.raises(ValueError, match="`smooth` must be 0 or"):
        eq.LDC(2, smooth=smooth)


def test_moco_with_gradients_beside_which_1_is_rounding() -> None:
    """The projection on the simplex found no threshold."""
    x = torch.nn.Parameter(torch.ones(2))
    balancer = eq.MoCo(2)
    balancer([x[0] * 1e20, x[1] * 1e19], shared=[x]).backward()
    torch.testing.assert_close(balancer.weights, torch.tensor([0.0, 1.0]))


@pytest.mark.parametrize("name", ["dwa", "ldc", "famo"])
def test_losses_that_the_state_cannot_hold(name: str) -> None:
    """A float64 loss of 1e300 was kept as infinity in the float32 state, and nothing was right afterwards."""
    balancer = eq.make(name, 2)
    before = copy.deepcopy(balancer.state_dict())
    with pytest.raises(ValueError, match="'1' must be finite; found 1e"):
        balancer(losses(1.0, 1e300, dtype=torch.float64))
    same(balancer.state_dict(), before)
    assert torch.isfinite(eq.make(name, 2).double()(losses(1.0, 1e300, dtype=torch.float64)))


@pytest.mark.parametrize("name", ["mgda", "ldc", "moco", "famo", "uw"])
def test_a_state_that_does_not_fit_changes_nothing(name: str) -> None:
    """Loading stopped half way: the state was of two balancers then."""
    x = torch.nn.Parameter(torch.ones(2))
    balancer, other = eq.make(name, 2), eq.make(name, 2)
    for one, factor in ((balancer, 1.0), (other, 3.0)):
        one([x[0] * factor + 1, x[1] * x[0] + 2], shared=[x]).backward()
    before = copy.deepcopy(balancer.state_dict())
    good = other.state_dict()
    first, last = next(iter(good)), list(good)[-1]
    wrong: list[dict[str, Any]] = [
        {k: v for k, v in good.items() if k != first},
        {**good, "stranger": torch.ones(1)},
        {**good, last: torch.ones(7, 7)},
        {**good, "last_weights": torch.full((2,), torch.nan)},
        {**good, "step": 3},
        eq.make(name, 3).state_dict(),
        eq.make("dwa", 2).state_dict(),
    ]
    for state in wrong:
        with pytest.raises(RuntimeError, match="Error"):
            balancer.load_state_dict(state)
        same(balancer.state_dict(), before)
    halved = {k: v.half() if v.is_floating_point() else v for k, v in good.items()}
    if name in ("mgda", "moco"):  # 2^16, where the scale of float16 gradients starts, is no float16 number
        with pytest.raises(RuntimeError, match="`gradient_scale` must be finite"):
            balancer.load_state_dict(halved)
    doubled = {k: v.double() if v.is_floating_point() else v for k, v in good.items()}
    balancer.load_state_dict(doubled)
    assert all(
        torch.equal(a, b) and a.dtype == b.dtype
        for a, b in zip(balancer.state_dict().values(), good.values(), strict=True)
    )


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


@pytest.mark.parametrize("tasks", [1, 2])
def test_an_epoch_mean_that_grew_by_more_than_float32_holds(tasks: int) -> None:
    """The task that grew gets all the weight."""
    balancer = eq.DWA(tasks, epoch_steps=1)
    for first in (1e-20, 3e38, 1.0):
        assert torch.isfinite(balancer(torch.tensor([first, 1.0][:tasks], requires_grad=True)))
    assert balancer.weights.tolist() == ([1.0] if tasks == 1 else [2.0, 0.0])
