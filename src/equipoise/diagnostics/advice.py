"""One sentence on what to do: the first rule that applies, in the order docs/diagnose.md has them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from equipoise.diagnostics.costs import Costs
from equipoise.diagnostics.look import Look
from equipoise.diagnostics.rules import CONFLICTING, Finding

UNEVEN = 10.0  # the largest gradient norm over the smallest; without gradients, the same of the losses
AFFORDABLE = 1.5  # times the step of a loss-only method


def advise(look: Look, findings: Sequence[Finding], costs: Costs | None = None) -> str:
    """What the findings and the prices come to."""
    texts: dict[str, str] = {}
    for finding in findings:
        texts.setdefault(finding.kind, finding.text)
    for kind in ("not-finite", "no-gradient"):
        if kind in texts:
            return f"Mend this first: {texts[kind][0].lower()}{texts[kind][1:]}"
    if len(look.here) < 2:
        return "With one task there is nothing to balance: its own loss is the objective."
    if "dead-router" in texts or "stuck" in texts:
        return (
            "Change the router, whose weights no longer move: the default, router='softmax' with "
            "router_objective='upper', keeps its gradient, and weights that are to stay are eq.LS."
        )
    if "equals-ls" in texts:
        return "Save yourself the method: eq.LS with these weights now does the same, unless you want them to move."
    if "stationary" in texts:
        return "What is left is a choice between tasks, not a method: say what matters with eq.LS(weights=...)."
    spread, known = _spread(look)
    uneven = spread > UNEVEN
    apart = look.conflict is not None and look.conflict.opposed >= CONFLICTING
    if apart:
        return _of_conflict(uneven, costs)
    if uneven:
        what = "gradients" if look.conflict is not None else "losses"
        return (
            "Even the scales out, by hand with eq.LS(weights=...) or by a loss-only method such as eq.LDC: the "
            f"{what} differ in size ({spread:.3g} times) "
            + ("and not in direction." if look.conflict is not None else "; give `shared` to see their directions.")
        )
    if not known:
        return (
            "Look at the gradients before choosing: give `shared`, the features or the parameters tasks have in common."
        )
    losses = look.discrepancy
    if losses is not None and losses.ratio > UNEVEN:
        return (
            "Compare eq.LS with a loss-only method such as eq.LDC: the losses differ in size "
            f"({losses.ratio:.3g} times), their gradients here do not ({spread:.3g} times)."
        )
    return "Stay with plain summing, eq.LS: the tasks' gradients are of like size and hardly conflict."


def _spread(look: Look) -> tuple[float, bool]:
    """How uneven the tasks are, and whether by their gradients."""
    if look.conflict is not None:
        spread = look.conflict.spread
        return (spread if math.isfinite(spread) else 1.0), True
    losses = look.discrepancy
    return (losses.ratio if losses is not None and math.isfinite(losses.ratio) else 1.0), False


def _of_conflict(uneven: bool, costs: Costs | None) -> str:
    method = "eq.NashMTL, whose step no scale changes" if uneven else "eq.UPGrad, whose step goes against no task"
    if costs is None:
        return f"The tasks conflict: ask eq.diagnose what {method}, would cost here, and compare it with eq.LDC."
    prices = [("at the features", costs.features), ("with exact parameters", costs.parameters)]
    for where, price in prices:
        if price is not None and price <= AFFORDABLE:
            times = f"{max(price, 1.0):.2f} times a plain step"
            return f"Try {method}, {where}: the tasks conflict, and it costs {times} here."
    where, price = min(((w, p) for w, p in prices if p is not None), key=lambda item: item[1])
    hint = "" if costs.features is not None else " (give the features as `shared` for the cheaper way)"
    return (
        "Compare eq.LS, its weights swept, with a loss-only method such as eq.LDC, at the price of plain summing: the "
        f"tasks conflict, but a gradient method {where} costs {price:.1f} times a plain step here{hint}."
    )
