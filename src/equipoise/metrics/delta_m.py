"""How a multi-task model compares with single-task models, in one number: delta-m; and the mean rank of methods."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from equipoise.losses import nearest

Values: TypeAlias = "Mapping[str, float] | Sequence[float] | Tensor"
Directions: TypeAlias = "Mapping[str, bool] | Sequence[bool] | bool"


def delta_m(
    metrics: Values,
    baseline: Values,
    higher_is_better: Directions,
    tasks: Mapping[str, Sequence[str]] | Sequence[str] | None = None,
) -> float:
    """The mean relative loss against the baseline, in percent: lower is better, below 0 beats it.

    Each metric counts (m - b) / |b| where lower is better and (b - m) / |b| where higher is.

    metrics, baseline: values by metric name; or plain sequences (arrays, tensors) in one order.
    higher_is_better: by metric name, in the same order, or one answer for all.
    tasks: None takes the mean over all metrics, as the published tables do. The metric names of each task, or the
        task of each metric in order, takes the mean within each task first and then over tasks.

    >>> import equipoise as eq
    >>> stl = {"miou": 0.74, "abs": 0.0125, "rel": 27.77}
    >>> ours = {"miou": 0.76, "abs": 0.0150, "rel": 27.77}
    >>> up = {"miou": True, "abs": False, "rel": False}
    >>> round(eq.delta_m(ours, stl, up), 3)
    5.766
    >>> round(eq.delta_m(ours, stl, up, tasks={"segmentation": ["miou"], "depth": ["abs", "rel"]}), 3)
    3.649
    >>> round(eq.delta_m([1.1, 2.0], [1.0, 2.0], higher_is_better=False), 3)
    5.0
    """
    names = _names(baseline)
    base = _in_order(baseline, names, "baseline")
    values = _in_order(metrics, names, "metrics")
    up = _directions(higher_is_better, names)
    for name, b in zip(names, base, strict=True):
        if b == 0 or not math.isfinite(b):
            raise ValueError(f"`baseline` must be finite and not 0 to be compared with; found {b:g} for {name!r}.")
    losses = [(b - m if u else m - b) / abs(b) for m, b, u in zip(values, base, up, strict=True)]
    if tasks is None:
        return 100 * _mean(losses)
    groups = _groups(tasks, names)
    return 100 * _mean([_mean([losses[i] for i in group]) for group in groups])


def mean_rank(table: Mapping[str, Values], higher_is_better: Directions = False) -> dict[str, float]:
    """Each method's rank averaged over the metrics: 1 is best, ties share their mean rank, NaN comes last.

    table: the metrics of each method, by name or in one order.
    higher_is_better: by metric name, in the same order, or one answer for all.

    >>> import equipoise as eq
    >>> eq.mean_rank({"LS": [0.3, 12.0, 5.0], "LDC": [0.2, 11.0, 5.0]})
    {'LS': 1.8333333333333333, 'LDC': 1.1666666666666667}
    """
    if not table:
        raise ValueError("`table` must hold at least one method; found none.")
    methods = list(table)
    names = _names(table[methods[0]])
    up = _directions(higher_is_better, names)
    rows = [_in_order(table[method], names, f"table[{method!r}]") for method in methods]
    ranks = [_ranks([row[i] for row in rows], up[i]) for i in range(len(names))]
    return {method: _mean([column[i] for column in ranks]) for i, method in enumerate(methods)}


def _ranks(values: list[float], up: bool) -> list[float]:
    keys = [math.inf if math.isnan(v) else -v if up else v for v in values]
    return [sum(k < key for k in keys) + (1 + sum(k == key for k in keys)) / 2 for key in keys]


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def _names(values: Values) -> list[str]:
    """The metrics' names; where they have none, their places."""
    names = list(values) if isinstance(values, Mapping) else [str(i) for i in range(len(values))]
    if not names:
        raise ValueError("there must be at least one metric; found none.")
    return names


def _in_order(values: Values, names: list[str], what: str) -> list[float]:
    if isinstance(values, Mapping):
        _check_names(list(values), names, what)
        return [float(values[name]) for name in names]
    numbers = torch.as_tensor(values, dtype=torch.float64)
    if numbers.shape != (len(names),):
        raise ValueError(f"`{what}` must hold {len(names)} numbers; found shape {list(numbers.shape)}.")
    return [float(number) for number in numbers]


def _directions(higher_is_better: Directions, names: list[str]) -> list[bool]:
    if isinstance(higher_is_better, bool):
        return [higher_is_better] * len(names)
    if isinstance(higher_is_better, Mapping):
        _check_names(list(higher_is_better), names, "higher_is_better")
        return [bool(higher_is_better[name]) for name in names]
    if len(higher_is_better) != len(names):
        raise ValueError(f"`higher_is_better` must hold {len(names)} answers; found {len(higher_is_better)}.")
    return [bool(answer) for answer in higher_is_better]


def _groups(tasks: Mapping[str, Sequence[str]] | Sequence[str], names: list[str]) -> list[list[int]]:
    """The places of each task's metrics."""
    if isinstance(tasks, Mapping):
        members = [name for group in tasks.values() for name in group]
        _check_names(members, names, "tasks")
        if len(members) != len(names) or not all(tasks.values()):
            raise ValueError(
                f"`tasks` must give every metric to one task, and every task a metric; found {dict(tasks)!r}."
            )
        return [[names.index(name) for name in group] for group in tasks.values()]
    if len(tasks) != len(names):
        raise ValueError(f"`tasks` must name the task of each of {len(names)} metrics; found {len(tasks)}.")
    return [[i for i, task in enumerate(tasks) if task == label] for label in dict.fromkeys(tasks)]


def _check_names(found: list[str], names: list[str], what: str) -> None:
    for name in found:
        if name not in names:
            raise ValueError(f"`{what}` has the unknown metric {name!r}; {nearest(str(name), names)}")
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(f"`{what}` must hold every metric; missing {', '.join(map(repr, missing))}.")
