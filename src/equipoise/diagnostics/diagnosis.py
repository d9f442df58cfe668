"""`diagnose`: do the tasks conflict, does one drown the others, and is balancing worth its price, in one call."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from equipoise.balancer import Balancer
from equipoise.capture import tensors_in
from equipoise.diagnostics import rules
from equipoise.diagnostics.advice import advise
from equipoise.diagnostics.costs import Costs, measure_costs
from equipoise.diagnostics.gradients import gram_of
from equipoise.diagnostics.html import as_html
from equipoise.diagnostics.look import Look, look_at, seen_of
from equipoise.diagnostics.pull import pull_of
from equipoise.diagnostics.rules import Finding
from equipoise.diagnostics.text import as_text
from equipoise.losses import Batch, Losses, read_any
from equipoise.weighting.ls import LS
from equipoise.weighting.stl import STL

WORST_PAIRS = 10  # how many conflicting pairs are listed


@dataclass(frozen=True)
class Diagnosis:
    """What was measured, what it means, and one sentence on what to do.

    Prints as text, shows itself in a notebook, and gives plain numbers by `to_dict()`.

    tasks: their names.  look: the measurements.  costs: the price of each family of methods, where it was measured.
    findings: each with its `kind` and `text`.  recommendation: one sentence.  steps: seen so far, by a monitor.
    """

    tasks: tuple[str, ...]
    look: Look
    costs: Costs | None
    findings: tuple[Finding, ...]
    recommendation: str
    steps: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values that JSON can hold; what is not finite is None."""
        look, conflict, point = self.look, self.look.conflict, self.look.stationarity
        spread = look.discrepancy
        found = {
            "tasks": list(self.tasks),
            "step": look.step,
            "steps": self.steps,
            "present": list(look.present),
            "losses": list(look.losses),
            "discrepancy": None if spread is None else spread._asdict(),
            "weights": None if look.weights is None else list(look.weights),
            "pull": None if look.pull is None else list(look.pull),
            "gradient_norms": None if conflict is None else conflict.norms.tolist(),
            "cosines": None if conflict is None else conflict.cosines.tolist(),
            "conflict": None
            if conflict is None
            else {
                "conflicting": conflict.conflicting,
                "opposed": conflict.opposed,
                "lowest": conflict.lowest,
                "norm_ratio": conflict.spread,
                "worst": [[self.tasks[i], self.tasks[j], cosine] for i, j, cosine in conflict.worst(WORST_PAIRS)],
            },
            "stationarity": None
            if point is None
            else {"value": point.value, "relative": point.relative, "weights": point.weights.tolist()},
            "status": dict(look.status),
            "costs": None if self.costs is None else asdict(self.costs),
            "findings": [finding._asdict() for finding in self.findings],
            "recommendation": self.recommendation,
        }
        cleaned: dict[str, Any] = plain(found)
        return cleaned

    def __str__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        return as_html(self)


def diagnose(
    losses: Losses,
    shared: Tensor | Sequence[Tensor] | Iterator[Tensor] | None = None,
    *,
    present: Tensor | Sequence[bool] | None = None,
    forward: Callable[[], object] | None = None,
    balancer: Balancer | None = None,
    costs: bool = True,
) -> Diagnosis:
    """Examine one step of any model; nothing of it changes, and the graph stays usable.

    losses: K scalars, a tensor [K], or a mapping from names; an absent task is None, or False in `present`.
    shared: what the tasks have in common, as one or several feature tensors or as parameters. Features are cheaper,
        and tell the price of both ways of taking gradients. Without it only the losses are looked at.
    forward: computes the losses again. With it a step's price counts its forward, and a second look at the losses
        has a price; its effects on buffers and random numbers are undone.
    balancer: the one in use: its weights after its last step are looked at too, and what it makes of these losses.
    costs: whether to measure what each family of methods would cost, which takes most of the time.

    It takes a few backwards a task, and at parameters the memory of K gradients; hooks on tensors run, and tensors
    beside `shared` that keep their gradients (`retain_grad()`) get some. On several ranks each examines its own batch
    and waits for no other. What each rule is, and what the sentence follows from: docs/diagnose.md.

    >>> import torch, equipoise as eq
    >>> x = torch.nn.Parameter(torch.tensor([1.0, 1.0]))
    >>> found = eq.diagnose({"near": (x[0] - 2) ** 2, "far": 300 * (x + 2).square().sum()}, [x])
    >>> [finding.kind for finding in found.findings]
    ['far-apart', 'drowned', 'conflict']
    >>> round(found.look.conflict.lowest, 3)
    -0.707
    """
    tasks, values, mask, given = read_any(losses, present)
    batch = Batch(values, mask, None, given, None)
    tensors = _tensors(shared)
    seen: dict[str, Any] = {}
    if balancer is not None:
        if balancer.num_tasks != len(tasks):
            raise ValueError(f"`balancer` must have {len(tasks)} tasks, as the losses; found {balancer.num_tasks}.")
        seen = {**seen_of(balancer), "pull": pull_of(balancer, batch, tensors)}
    look = look_at(batch, gram_of(batch, tensors) if tensors else None, **seen)
    sound = bool(tensors) and look.finite and not look.bad_gradients
    prices = measure_costs(batch, tensors, forward) if costs and sound else None
    findings = rules.of_step(tasks, look)
    if balancer is not None:
        fixed = is_fixed(balancer)
        findings += rules.of_weights(tasks, [look], fixed=fixed, enough=1)
        findings += rules.of_pull(tasks, [look], fixed=fixed, enough=1)
        findings += rules.of_training(tasks, 1, int(look.status.get("regularised", 0.0)), [0] * len(tasks))
    return Diagnosis(tasks, look, prices, tuple(findings), advise(look, findings, prices))


def is_fixed(balancer: Balancer) -> bool:
    """Whether the weights are meant to stay as they are."""
    return isinstance(balancer, (LS, STL))


def plain(value: Any) -> Any:
    """The same with None for every number that JSON has no sign for."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _tensors(shared: Tensor | Sequence[Tensor] | Iterator[Tensor] | None) -> list[Tensor]:
    if shared is None:
        return []
    tensors = list(tensors_in(list(shared) if not isinstance(shared, (Tensor, dict)) else shared))
    if not tensors or not torch.is_grad_enabled():
        raise ValueError(
            "`shared` must hold at least one tensor of a graph that was built with gradients on; found "
            + ("none." if not tensors else "gradients turned off.")
        )
    return tensors
