"""One look at a step: everything that is measured, before any rule is applied."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from equipoise.balancer import Balancer
from equipoise.diagnostics.conflict import Conflict, conflict
from equipoise.diagnostics.discrepancy import Discrepancy, discrepancy
from equipoise.diagnostics.stationarity import Stationarity, stationarity
from equipoise.ldc.router import FeatureRouter, SigmoidRouter, SoftmaxRouter
from equipoise.losses import Batch

SATURATED = 0.01  # of the slope at equal weights


@dataclass(frozen=True)
class Look:
    """One step as it was seen.

    losses: [K], NaN for an absent task.  present: [K].
    weights: [K], what the balancer says it applied; None without one.
    pull: [K], the factor of each task's gradient in what the balancer makes of them; None where nothing is known.
    conflict, stationarity: of the gradients at the shared tensors; None where they were not taken or are not finite.
    bad_gradients: the tasks whose gradients are not finite.
    stuck: the tasks whose router weight can hardly move (behind a relu, at a bound, saturated).
    router_gradient: the norm of the gradient of a router's own parameters.
    status: the numbers the balancer left in its `status`.
    """

    losses: Sequence[float]
    present: Sequence[bool]
    step: int | None = None
    weights: Sequence[float] | None = None
    pull: Sequence[float] | None = None
    conflict: Conflict | None = None
    stationarity: Stationarity | None = None
    bad_gradients: Sequence[int] = ()
    stuck: Sequence[int] = ()
    router_gradient: float | None = None
    status: Mapping[str, float] = field(default_factory=dict)

    @property
    def here(self) -> list[int]:
        """The tasks present."""
        return [i for i, flag in enumerate(self.present) if flag]

    @property
    def finite(self) -> bool:
        """Whether the losses present are all finite."""
        return all(math.isfinite(self.losses[i]) for i in self.here)

    @property
    def discrepancy(self) -> Discrepancy | None:
        """The statistics of the finite losses present."""
        values = [self.losses[i] for i in self.here if math.isfinite(self.losses[i])]
        return discrepancy(values) if values else None

    @property
    def shares(self) -> list[float] | None:
        """Each task's part of the pull on the shared tensors, in units of an equal part: factor times gradient norm.

        None where gradients or factors are unknown.
        """
        if self.pull is None or self.conflict is None:
            return None
        sizes = self.conflict.norms.tolist()
        pulls = [abs(self.pull[i] * sizes[i]) if i in self.here else 0.0 for i in range(len(self.present))]
        total = sum(pulls)
        if not (math.isfinite(total) and total > 0):
            return None
        return [pull / total * len(self.here) for pull in pulls]


def look_at(batch: Batch, gram: Tensor | None = None, **seen: Any) -> Look:
    """A look from the losses and the Gram matrix of their gradients; `seen` are the other fields of `Look`."""
    count = len(batch.losses)
    present = [True] * count if batch.present is None else batch.present.tolist()
    values = [v if here else math.nan for v, here in zip(batch.values.tolist(), present, strict=True)]
    bad: list[int] = []
    if gram is not None:
        gram = gram.detach().to("cpu", torch.float64)
        bad = [i for i in (~gram.diagonal().isfinite()).nonzero().flatten().tolist() if present[i]]
        if bad:
            gram = None
    return Look(
        losses=values,
        present=present,
        conflict=None if gram is None else conflict(gram),
        stationarity=None if gram is None else stationarity(gram, batch.present),
        bad_gradients=bad,
        **seen,
    )


def seen_of(balancer: Balancer) -> dict[str, Any]:
    """What a balancer shows of its last step by itself."""
    weights = balancer.weights.tolist()
    status = {name: float(value) for name, value in balancer.status.items() if _is_number(value)}
    return {"weights": weights, "pull": weights, "stuck": stuck_tasks(balancer), "status": status}


def stuck_tasks(balancer: Balancer) -> list[int]:
    """The tasks whose router weight gets next to no gradient.

    Its logit is behind a relu, the weight is at a bound, or the softmax or sigmoid is saturated: the slope s (1 - s)
    of a weight in its own logit is below 1 % of what it is at equal weights (of 1/4 for a sigmoid).
    """
    router = getattr(balancer, "router", None)
    if not isinstance(router, (SoftmaxRouter, SigmoidRouter, FeatureRouter)) or not balancer.step:
        return []
    weights = balancer.weights
    logits = None if isinstance(router, FeatureRouter) else router.logits.detach()
    if isinstance(router, SigmoidRouter) or getattr(router, "output", None) == "sigmoid":
        parts, most = weights, 0.25
    else:
        parts = weights if logits is None else logits.softmax(0)
        most = (1 - 1 / len(weights)) / len(weights)
    stuck = parts * (1 - parts) < SATURATED * most
    if isinstance(router, SigmoidRouter):
        if router.relu:
            stuck |= router.logits.detach() <= 0
    elif router.bounds is not None:
        for bound in router.bounds:
            stuck |= (weights - bound).abs() <= 1e-6
    found: list[int] = stuck.nonzero().flatten().tolist()
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) or (isinstance(value, Tensor) and value.numel() == 1)
