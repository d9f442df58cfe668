"""The toy problem from all five starts at once: one batched run a method."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from equipoise.balancer import Balancer
from equipoise.gradient.base import GradientBalancer, applied, play
from equipoise.losses import Batch
from equipoise.registry import make
from equipoise.suites.toy.problem import BALANCED, STARTS, Sign, toy_losses

PAPER = ("ls", "mgda", "famo", "ldc")
TRACE_POINTS = 400
NEAR = 0.5  # how far from the balanced middle still counts as having reached it


@dataclass(frozen=True)
class Trajectories:
    """Where a method went from each start, and how fast.

    points: [T, S, 2] along the way, losses: the same, the last entries the end; seconds: of all steps together.
    """

    method: str
    points: Tensor
    losses: Tensor
    steps: int
    seconds: float

    @property
    def reached(self) -> list[bool]:
        """From which starts it came to the balanced middle of the front."""
        away = self.points[-1] - torch.tensor(BALANCED)
        return [bool(distance < NEAR) for distance in away.norm(dim=-1)]


def run_starts(
    method: str,
    options: Mapping[str, Any],
    *,
    steps: int = 50_000,
    lr: float = 1e-3,
    sign: Sign = "code",
    starts: Sequence[Sequence[float]] = STARTS,
) -> Trajectories:
    """Descend with Adam from every start, side by side; each start has a balancer of its own.

    >>> run_starts("ls", {}, steps=10).points.shape
    torch.Size([11, 5, 2])
    """
    torch.manual_seed(0)
    leaves = [torch.tensor(start, dtype=torch.float32, requires_grad=True) for start in starts]
    balancers = [make(method, 2, **options) for _ in starts]
    own = [parameter for balancer in balancers for parameter in balancer.parameters()]
    optimizer = torch.optim.Adam([*leaves, *own], lr=lr, fused=True)
    batched = all(isinstance(b, GradientBalancer) and not b.needs_rows for b in balancers)
    stride = max(1, steps // TRACE_POINTS)
    trace = []
    began = time.perf_counter()
    for step in range(steps):
        if step % stride == 0:
            trace.append(torch.stack(leaves).detach())
        optimizer.zero_grad()
        x = torch.stack(leaves)
        losses = toy_losses(x, sign)
        if batched:
            for leaf, gradient in zip(leaves, _combined(balancers, losses, x), strict=True):
                leaf.grad = gradient
        else:
            _plain(balancers, losses, leaves)
        optimizer.step()
        if balancers[0].needs_after_step:
            with torch.no_grad():
                again = toy_losses(torch.stack(leaves), sign).unbind()
            for balancer, values in zip(balancers, again, strict=True):
                balancer.after_step(values)
    seconds = time.perf_counter() - began
    points = torch.stack([*trace, torch.stack(leaves).detach()])
    return Trajectories(method, points, toy_losses(points, sign), steps, seconds)


def _plain(balancers: Sequence[Balancer], losses: Tensor, leaves: Sequence[Tensor]) -> None:
    """Every start's scalar, in one backward: no start sees another's gradient."""
    scalars = [
        balancer(values, shared=[leaf] if balancer.needs_shared else None)
        for balancer, values, leaf in zip(balancers, losses.unbind(), leaves, strict=True)
    ]
    torch.autograd.backward(scalars)


@torch.no_grad()
def _combined(balancers: Sequence[Balancer], losses: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    """What the scalars' backward would leave on x, the task gradients of all starts taken in two passes, not ten."""
    with torch.enable_grad():
        rows = torch.stack(
            [torch.autograd.grad(column.sum(), x, retain_graph=True)[0] for column in losses.unbind(1)], 1
        )
    exact = rows.double()
    grams = exact @ exact.mT
    directions = []
    for balancer, gram, values, start in zip(balancers, grams, losses.detach(), exact, strict=True):
        assert isinstance(balancer, GradientBalancer)
        batch = Batch(values, None, None, values, None)
        game = play(gram, batch)
        weights = applied(game, balancer.combine(game))
        balancer._advance(batch, weights)
        directions.append(weights @ start)
    return torch.stack(directions).to(x.dtype).unbind()
