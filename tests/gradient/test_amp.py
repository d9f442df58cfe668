"""Float16 autocast on the CPU with a real GradScaler."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from gradient.helpers import Fixed

WHERE = ["features", "parameters"]


class Dense(nn.Module):
    """A trunk and two dense heads, whose losses are means over so many entries that float16 gradients are tiny."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 6, 3, padding=1))
        self.heads = nn.ModuleList(nn.Conv2d(6, c, 3, padding=1) for c in (5, 1))
        self.x = torch.randn(2, 3, 40, 40)
        self.y = torch.randn(2, 1, 40, 40)

    def losses(self, half: bool, factor: float = 1.0) -> tuple[list[Tensor], Tensor]:
        with torch.autocast("cpu", torch.float16, enabled=half):
            features = self.trunk(self.x)
            classes, depth = (head(features) for head in self.heads)
            first = nn.functional.cross_entropy(classes, (self.y[:, 0] > 0).long()) * factor
            return [first, nn.functional.l1_loss(depth, self.y) * factor], features

    def shared(self, where: str, features: Tensor) -> object:
        return features if where == "features" else list(self.trunk.parameters())


def taken(where: str, half: bool, scale: float = 65536.0) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The Gram matrix, and the gradients on the trunk and on the heads."""
    model, balancer = Dense(), Fixed(2)
    balancer.gradient_scale.fill_(scale)
    losses, features = model.losses(half, factor=0.01)
    balancer(losses, model.shared(where, features)).backward()
    rows = balancer._rows.view(2, -1).double()
    return rows, balancer.games[0].gram, [p.grad for p in model.heads.parameters()]


def error(found: Tensor, exact: Tensor) -> float:
    return ((found - exact).norm(dim=-1) / exact.norm(dim=-1)).max().item()


@pytest.mark.parametrize("where", WHERE)
def test_task_gradients_are_float32s_to_2_percent(where: str) -> None:
    exact, gram, heads = taken(where, half=False)
    found, half_gram, half_heads = taken(where, half=True)
    assert error(found, exact) < 0.02
    assert ((half_gram - gram).abs().max() / gram.abs().max()).item() < 0.02
    assert all(error(one.flatten(), other.flatten()) < 0.02 for one, other in zip(half_heads, heads, strict=True))
    if where == "features":  # what the scale is for
        assert error(taken(where, half=True, scale=1.0)[0], exact) > 0.02


@pytest.mark.parametrize("where", WHERE)
def test_weights_know_nothing_of_the_scaler(where: str) -> None:
    ends = []
    for scale in (1024.0, 65536.0):
        model, balancer = Dense(), eq.MoCo(2)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        weights = []
        for _ in range(3):
            optimizer.zero_grad()
            losses, features = model.losses(half=True)
            scaler.scale(balancer(losses, model.shared(where, features))).backward()
            scaler.step(optimizer)
            scaler.update()
            weights.append(balancer.weights)
        assert scaler.get_scale() == scale  # no step was skipped
        ends.append(torch.stack(weights))
    torch.testing.assert_close(ends[0], ends[1], rtol=2e-3, atol=0)
    assert not torch.equal(ends[0][0], ends[0][2])


def skipped_step(where: str, factor: float, init_scale: float) -> tuple[Dense, eq.Balancer, dict[str, Tensor], float]:
    """One good step, then one that the scaler must skip; the state before it, and the scaler's scale after it."""
    model, balancer = Dense(), eq.MoCo(2)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses, features = model.losses(half=True)
    scaler.scale(balancer(losses, model.shared(where, features))).backward()
    scaler.step(optimizer)
    scaler.update(init_scale)
    optimizer.zero_grad()
    before, parameters = copy.deepcopy(balancer.state_dict()), copy.deepcopy(model.state_dict())
    losses, features = model.losses(half=True, factor=factor)
    assert all(torch.isfinite(loss) for loss in losses)
    scaler.scale(balancer(losses, model.shared(where, features))).backward()
    scaler.step(optimizer)
    scaler.update()
    assert all(torch.equal(parameters[n], t) for n, t in model.state_dict().items())
    return model, balancer, before, scaler.get_scale() / init_scale


@pytest.mark.parametrize("where", WHERE)
def test_task_gradients_that_overflow_leave_the_state(where: str) -> None:
    _, balancer, before, scale = skipped_step(where, factor=1e9, init_scale=1024.0)
    after = balancer.state_dict()
    changed = {n for n in before if not torch.equal(before[n], after[n])}
    assert changed == {"gradient_scale", "good_steps"}
    assert after["gradient_scale"] == before["gradient_scale"] / 2 and after["good_steps"] == 0
    assert scale == 0.5  # the scaler saw it too


def test_a_trunk_that_overflows_alone_costs_one_ordinary_step() -> None:
    _, balancer, before, scale = skipped_step("features", factor=1.0, init_scale=2.0**34)
    assert scale == 0.5
    assert balancer.step == before["step"] + 1
    assert balancer.gradient_scale == before["gradient_scale"]
    assert all(torch.isfinite(t).all() for t in balancer.state_dict().values())


def test_the_scale_grows_back() -> None:
    model, balancer = Dense(), Fixed(2)
    balancer.gradient_scale.fill_(256.0)
    balancer.good_steps.fill_(1998)
    for expected in (256.0, 512.0, 512.0):
        losses, features = model.losses(half=True)
        balancer(losses, features)
        assert balancer.gradient_scale == expected
    assert balancer.good_steps == 1


@pytest.mark.parametrize("where", WHERE)
def test_the_scale_stays_out_of_float32(where: str) -> None:
    rows, gram, heads = taken(where, half=False, scale=torch.nan)
    assert all(torch.isfinite(t).all() for t in (rows, gram, *heads))


INSIDE = sorted(set(eq.methods()) - {"ldc-double", "stl", "torchjd"})


@pytest.mark.parametrize(("name", "dtype"), [*((n, torch.bfloat16) for n in INSIDE), ("cagrad", torch.float16)])
def test_inside_autocast_nothing_changes(name: str, dtype: torch.dtype) -> None:
    """Lightning, Accelerate and the Hugging Face Trainer call the balancer inside autocast."""
    ends = []
    for inside in (False, True):
        model, balancer = Dense(), eq.make(name, num_tasks=2)
        for _ in range(2):
            losses, features = model.losses(half=False)
            with torch.autocast("cpu", dtype, enabled=inside):
                total = balancer(losses, features)
            total.backward()
            if balancer.needs_after_step:
                with torch.autocast("cpu", dtype, enabled=inside):
                    balancer.after_step([loss.detach() * 0.9**i for i, loss in enumerate(losses)])
        ends.append([total.detach(), balancer.weights, *(p.grad for p in model.parameters())])
    exact = dtype == torch.bfloat16  # float16 gradients are taken at a scale, which rounds
    for outside, here in zip(*ends, strict=True):
        torch.testing.assert_close(here, outside, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-7)
