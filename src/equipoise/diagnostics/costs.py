"""What a step of each family of methods costs on the user's own model, measured on the user's own graph."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.balancer import Balancer
from equipoise.diagnostics.gradients import grads_put_back, leaves_of
from equipoise.diagnostics.untouched import same_draws, untouched
from equipoise.distributed import alone
from equipoise.gradient.mgda import MGDA
from equipoise.losses import Batch, Losses
from equipoise.weighting.ls import LS

ROUNDS = 3
TIMED_TASKS = 8  # of how many tasks the passes through the trunk are timed, when there are more


@dataclass(frozen=True)
class Costs:
    """The time of a step over that of a loss-only method; None where it could not be measured.

    features: gradient methods at the features; parameters: with exact gradients of the parameters below;
    second_forward: methods that look at the losses again after the step.
    with_forward: whether a step is the forward and the backward, or the backward alone.
    loss_only_ms: what is 1, in milliseconds.
    """

    features: float | None
    parameters: float | None
    second_forward: float | None
    with_forward: bool
    loss_only_ms: float


@torch.enable_grad()
def measure_costs(batch: Batch, shared: Sequence[Tensor], forward: Callable[[], object] | None = None) -> Costs:
    """Time backwards through the graph, which is kept, with the library's own LS and MGDA.

    Exact gradients of the parameters take a pass through the trunk for every task: of more than 8 tasks 8 are timed,
    and each of the others is counted like one of them.

    forward: computes the losses again; run a few times without gradients, and its effects on buffers and random
        numbers are undone.
    """
    features = [tensor for tensor in shared if not tensor.is_leaf]
    leaves = leaves_of(batch)
    trunk = leaves_of(batch, below=features) if features else [tensor for tensor in shared if tensor.is_leaf]
    present = [True] * len(batch.losses) if batch.present is None else batch.present.tolist()
    timed = _first(present, TIMED_TASKS)
    calls = {"losses": _step(LS, batch, present, None, leaves)}
    if features:
        calls["features"] = _step(MGDA, batch, present, features, leaves)
    calls["parameters"] = _step(MGDA, batch, timed, trunk, leaves)
    calls["timed"] = _step(LS, batch, timed, None, leaves)
    if forward is not None:
        calls["forward"] = lambda: same_draws(forward)
        calls["second"] = lambda: same_draws(torch.no_grad()(forward))
    with grads_put_back(shared), untouched():
        seconds = _least_seconds(calls, batch.losses.device)
    before = seconds.get("forward", 0.0)
    base = before + seconds["losses"]
    # The heads' part of the backward is there once; what more than one task adds is a pass of the trunk each.
    extra = max(0.0, seconds["parameters"] - seconds["timed"])
    passes = max(1, sum(timed) - 1)
    whole = seconds["losses"] + extra * max(sum(present) - 1, 0) / passes
    return Costs(
        features=(before + seconds["features"]) / base if features else None,
        parameters=(before + whole) / base,
        second_forward=(base + seconds["second"]) / base if forward is not None else None,
        with_forward=forward is not None,
        loss_only_ms=1e3 * base,
    )


def _step(
    method: type[Balancer],
    batch: Batch,
    present: Sequence[bool],
    shared: Sequence[Tensor] | None,
    leaves: Sequence[Tensor],
) -> Callable[[], object]:
    """The balancer's forward and the backward of its scalar, for the tasks present, as a call."""
    balancer = method(len(present), process_group=alone()).to(batch.losses.device)
    given: Losses = batch.given
    mask: Sequence[bool] | None = present
    if not isinstance(batch.given, Tensor):  # left out whole: masked, a loss still has its backward, of zeros
        given = tuple(loss if here else None for loss, here in zip(batch.given, present, strict=True))
        mask = None

    def step() -> object:
        scalar = balancer(given, shared, present=mask)
        return torch.autograd.grad(scalar, leaves, retain_graph=True, allow_unused=True)

    return step


def _first(present: Sequence[bool], count: int) -> list[bool]:
    """The first few of the tasks present."""
    left = iter(range(count))
    return [here and next(left, None) is not None for here in present]


def _least_seconds(calls: dict[str, Callable[[], object]], device: torch.device) -> dict[str, float]:
    """Each call's time in the round that was disturbed least, after one that is not counted."""
    least = dict.fromkeys(calls, math.inf)
    for number in range(ROUNDS + 1):
        for name, call in calls.items():
            _synchronise(device)
            began = time.perf_counter()
            call()
            _synchronise(device)
            if number > 0:
                least[name] = min(least[name], time.perf_counter() - began)
    return least


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
