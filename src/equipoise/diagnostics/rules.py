"""What the numbers mean: each finding follows from one rule, all of which docs/diagnose.md lists."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from equipoise.diagnostics.conflict import OPPOSED
from equipoise.diagnostics.look import Look

FAR_APART = 100.0  # the largest loss over the smallest
DROWNED = 0.01  # a gradient norm over the largest
CONFLICTING = 0.1  # of the pairs, with a cosine below OPPOSED
STATIONARY = 0.01  # of what gradients at right angles would give
NEXT_TO_NO_PULL = 0.01  # of an equal part
SAME = 1e-3  # by how much of themselves the factors of the losses may differ and still be called the same
RARE = 0.1  # of the steps
WINDOW = 5  # looks that a finding on weights rests on
ENOUGH = 3  # the fewest of them
ENOUGH_STEPS = 20  # before a task may be called rare

KINDS = (
    "not-finite", "no-gradient", "far-apart", "drowned", "conflict", "stationary", "equals-ls", "no-pull", "stuck",
    "dead-router", "fell-back", "absent", "no-look",
)  # fmt: skip


class Finding(NamedTuple):
    """What a rule found: its kind, one of `KINDS`, and a sentence."""

    kind: str
    text: str


def of_step(tasks: Sequence[str], look: Look) -> list[Finding]:
    """Findings on the losses and gradients of one step."""
    found = []
    bad = [i for i in look.here if not math.isfinite(look.losses[i])]
    for what, where in (("loss", bad), ("gradient", look.bad_gradients)):
        if where:
            found.append(Finding("not-finite", f"The {what} is not finite: {names(tasks, where)}."))
    spread = look.discrepancy
    if spread is not None and spread.ratio > FAR_APART:
        high, low = (look.losses.index(value) for value in (spread.max, spread.min))
        text = f"The loss of {tasks[high]!r} is {spread.ratio:.3g} times that of {tasks[low]!r}."
        found.append(Finding("far-apart", text))
    if look.conflict is not None:
        found += _of_gradients(tasks, look)
    return found


def _of_gradients(tasks: Sequence[str], look: Look) -> list[Finding]:
    assert look.conflict is not None
    found = []
    norms = look.conflict.norms.tolist()
    none = [i for i in look.here if norms[i] == 0]
    if none:
        text = f"No gradient reaches the shared tensors (detached before them, or solved): {names(tasks, none)}."
        found.append(Finding("no-gradient", text))
    largest = max(norms)
    drowned = [i for i in look.here if 0 < norms[i] < DROWNED * largest]
    if drowned:
        least = min(norms[i] for i in drowned) / largest
        strongest = tasks[norms.index(largest)]
        text = f"Drowned by {strongest!r}, with gradients down to {least:.2g} of its length: {names(tasks, drowned)}."
        found.append(Finding("drowned", text))
    if look.conflict.opposed >= CONFLICTING:
        first, second, cosine = look.conflict.worst(1)[0]
        text = (
            f"{look.conflict.opposed:.0%} of the pairs of tasks pull apart (cosine below {OPPOSED}), most of all "
            f"{tasks[first]!r} and {tasks[second]!r} ({cosine:.2f})."
        )
        found.append(Finding("conflict", text))
    point = look.stationarity
    if point is not None and not none and len(look.here) > 1 and point.relative < STATIONARY / len(look.here):
        text = (
            "No step improves every task any more: the gradients can be mixed to next to nothing "
            f"(|Gw|^2 down to {point.relative:.1g} of the shortest gradient's)."
        )
        found.append(Finding("stationary", text))
    return found


def of_weights(tasks: Sequence[str], looks: Sequence[Look], *, fixed: bool, enough: int = ENOUGH) -> list[Finding]:
    """Findings on what a balancer makes of the tasks, from its last looks.

    fixed: the weights are meant to be what they are (LS, STL).
    """
    window = [look for look in looks if look.pull is not None][-WINDOW:]
    if len(window) < max(1, enough) or len(tasks) < 2:
        return []
    found = []
    same = None if fixed or len(window) < WINDOW else _constant(window)
    if same is not None:
        found.append(Finding("equals-ls", f"This objective now equals LS({', '.join(same)}) to {SAME:g}."))
    stuck = [i for i in range(len(tasks)) if _always(i, window)]
    if stuck:
        text = f"Router weights are saturated, next to no gradient moves them: {names(tasks, stuck)}."
        found.append(Finding("stuck", text))
    gradients = [look.router_gradient for look in window]
    if all(gradient == 0.0 for gradient in gradients):
        found.append(Finding("dead-router", "The router gets no gradient at all: its weights stay as they are."))
    return found


def of_pull(tasks: Sequence[str], looks: Sequence[Look], *, fixed: bool, enough: int = ENOUGH) -> list[Finding]:
    """Findings on who trains the shared tensors, from the last looks that have gradients."""
    if fixed or len(tasks) < 2:
        return []
    window = [(look, shares) for look in looks if (shares := look.shares) is not None][-WINDOW:]
    parts = [[shares[i] for look, shares in window if look.present[i]] for i in range(len(tasks))]
    weak = [i for i, own in enumerate(parts) if len(own) >= enough and statistics.median(own) < NEXT_TO_NO_PULL]
    if not weak:
        return []
    return [
        Finding("no-pull", f"Hardly trained, with less than 1 % of an equal part of the pull: {names(tasks, weak)}.")
    ]


def _always(task: int, window: Sequence[Look]) -> bool:
    """Whether the task's weight is stuck in every look that the task is in."""
    there = [look for look in window if look.present[task]]
    return bool(there) and all(task in look.stuck for look in there)


def _constant(window: Sequence[Look]) -> list[str] | None:
    """The normalised factors that all looks agree on, as written in a sentence; None where they do not.

    Each factor is compared with itself, up to one that all have in common: the factor of a loss in small units is
    large, and added to it the others would not count.
    """
    rows = []
    for look in window:
        assert look.pull is not None
        there = [abs(value) for value in look.pull if value]
        if not all(look.present) or not there or not all(map(math.isfinite, there)):
            return None
        size = math.exp(statistics.fmean(map(math.log, there)))
        rows.append([value / size for value in look.pull])
    middle = [statistics.fmean(column) for column in zip(*rows, strict=True)]
    if any(_apart(row, middle) > SAME for row in rows):
        return None
    total = sum(map(abs, middle))
    middle = [value / total for value in middle]
    if len(middle) > 8:
        least, most = min(middle), max(middle)
        equal = most - least <= SAME / len(middle)
        return [f"{least:.2g} for each of {len(middle)}" if equal else f"{len(middle)}: {least:.2g} to {most:.2g}"]
    short = all(value == 0 or abs(value) >= 0.01 for value in middle)
    return [f"{value:.2f}" if short else f"{value:.2g}" for value in middle]


def _apart(row: Sequence[float], middle: Sequence[float]) -> float:
    """How far factors are from others, each relative to its own size: the mean over the tasks."""
    return statistics.fmean(
        0.0 if value == m else abs(value / m - 1) if m else math.inf for value, m in zip(row, middle, strict=True)
    )


def of_training(tasks: Sequence[str], steps: int, fell_back: int, absent: Sequence[int]) -> list[Finding]:
    """Findings on all steps so far: how often the solver fell back, how often each task was absent."""
    found = []
    if fell_back:
        text = f"The solver fell back in {fell_back} of {steps} steps: no solution, so its documented replacement."
        found.append(Finding("fell-back", text))
    if steps >= ENOUGH_STEPS:
        rare = [i for i in range(len(tasks)) if absent[i] > (1 - RARE) * steps]
        if rare:
            most = max(absent[i] for i in rare)
            found.append(Finding("absent", f"Absent too often, in {most} of {steps} steps: {names(tasks, rare)}."))
    return found


def names(tasks: Sequence[str], places: Sequence[int]) -> str:
    """The tasks' names in a sentence, a few of many."""
    shown = [repr(tasks[i]) for i in places[:3]]
    if len(places) > 3:
        return f"{', '.join(shown)} and {len(places) - 3} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
