"""A comparison: which runs it is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from equipoise.registry import methods
from equipoise.runs.config import RunConfig, configure, expand

#: Not part of "all": it needs an inner learning rate of its own, and fifty inner steps a step.
NOT_IN_ALL = ("ldc-double",)


def plan(
    suite: str, names: Sequence[str], seeds: Sequence[int], settings: Mapping[str, Any] | None = None
) -> list[RunConfig]:
    """The runs of a comparison, seed by seed, so that a comparison cut short has whole seeds.

    names: methods and presets of the suite, with options behind colons; ``["all"]`` for every method.

    >>> [run.folder for run in plan("toy", ["ls", "stl"], [0])]
    ['toy/ls/seed-0', 'toy/stl/task-0/seed-0', 'toy/stl/task-1/seed-0']
    """
    if list(names) == ["all"]:
        names = [name for name in methods() if name not in NOT_IN_ALL]
    for what, values in (("methods", names), ("seeds", seeds)):
        if not values:
            raise ValueError(f"`{what}` must name at least one; found none.")
        if len(set(values)) != len(values):
            raise ValueError(f"`{what}` must be distinct; found {', '.join(map(str, values))}.")
    return [
        run for seed in seeds for name in names for run in expand(configure(suite, name, seed=seed, settings=settings))
    ]
