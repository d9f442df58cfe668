"""The toy problem from all five starts at once: one batched run a method."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.balancer import Balancer
from equipoise.gradient.base import GradientBalancer, applied, play
from equipoise.gradient.cagrad import CAGrad
from equipoise.gradient.dualproj import DualProj
from equipoise.gradient.fairgrad import FairGrad
from equipoise.gradient.mgda import MGDA
from equipoise.gradient.nashmtl import NashMTL
from equipoise.gradient.shared import Shared
from equipoise.gradient.upgrad import UPGrad
from equipoise.losses import Batch
from equipoise.registry import make
from equipoise.suites.toy.problem import BALANCED, STARTS, Sign, toy_losses

PAPER = ("ls", "mgda", "famo", "ldc")
TRACE_POINTS = 400
_TOGETHER = (MGDA, CAGrad, FairGrad, NashMTL, UPGrad, DualProj)  # take the games of all starts as a batch
NEAR = 0.5  # how far from the balanced middle still counts as having reached it


@dataclass(frozen=True)
class Trajectories:
    """Where a method went from each start, and how fast.

    points: [T, S, 2] along the way, losses: the same, the last entries the end.
    seconds: of the processor, all steps together; other work on the machine changes them less than a clock's.
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
) -> Trajectories:
    """Descend with Adam from every start, side by side; each start has a balancer of its own.

    >>> run_starts("ls", {}, steps=10).points.shape
    torch.Size([11, 5, 2])
    """
    torch.manual_seed(0)
    x = nn.Parameter(torch.tensor(STARTS))
    balancers = [make(method, 2, **options) for _ in STARTS]
    combine = _combination(balancers)
    optimizer = torch.optim.Adam(
        [x, *(own for balancer in balancers for own in balancer.parameters())], lr=lr, fused=True
    )
    stride = max(1, steps // TRACE_POINTS)
    trace = []
    began = time.process_time()
    for step in range(steps):
        if step % stride == 0:
            trace.append(x.detach().clone())
        optimizer.zero_grad()
        if combine is None:
            scalars = [b(losses) for b, losses in zip(balancers, toy_losses(x, sign).unbind(), strict=True)]
            torch.autograd.backward(scalars)  # no start sees another's gradient
        else:
            x.grad = combine(*_task_gradients(x.detach(), sign)).to(x.dtype)
        optimizer.step()
        if balancers[0].needs_after_step:
            with torch.no_grad():
                again = toy_losses(x, sign).unbind()
            for balancer, losses in zip(balancers, again, strict=True):
                balancer.after_step(losses)
    seconds = time.process_time() - began
    points = torch.stack([*trace, x.detach()])
    return Trajectories(method, points, toy_losses(points, sign), steps, seconds)


def _task_gradients(x: Tensor, sign: Sign) -> tuple[Tensor, Tensor]:
    """The losses [S, K] at all starts' points and their gradients [S, K, 2], in one pass."""
    copies = x.expand(2, -1, -1).clone().requires_grad_()  # of every point, one for each task
    losses = toy_losses(copies, sign).diagonal(dim1=0, dim2=2)
    (gradients,) = torch.autograd.grad(losses.sum(), copies)
    return losses.detach(), gradients.transpose(0, 1)


def _combination(balancers: Sequence[Balancer]) -> Callable[[Tensor, Tensor], Tensor] | None:
    """What a gradient method leaves on the points, from `_task_gradients`; None for a method of losses only."""
    first = balancers[0]
    if not isinstance(first, GradientBalancer):
        return None
    own = [balancer for balancer in balancers if isinstance(balancer, GradientBalancer)]
    if isinstance(first, _TOGETHER):
        for name, state in list(first.named_buffers()):
            if state.shape == (2,):  # a number for each task: now for each task of each start
                setattr(first, name, state.expand(len(STARTS), -1).clone())
        return torch.no_grad()(partial(_direction, first))
    return torch.no_grad()(lambda losses, rows: torch.stack([*map(_direction, own, losses, rows)]))


def _direction(balancer: GradientBalancer, losses: Tensor, rows: Tensor) -> Tensor:
    """The method's direction at one point, or at a batch of them."""
    batch = Batch(losses, None, None, losses, None)
    if balancer.needs_positive:
        balancer._check_losses(losses, None)
    exact = rows.double()
    game = play(exact @ exact.mT, batch)
    if balancer.needs_rows:
        direction, weights, _ = balancer.update(rows.clone(), Shared([nn.Parameter(rows[0])]), game)
    else:
        weights = applied(game, balancer.combine(game))
        direction = (weights.unsqueeze(-2) @ exact).squeeze(-2)
    Balancer._advance(balancer, batch, weights)  # a gradient method's own keeps nothing where gradients are off
    return direction
