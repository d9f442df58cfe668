"""Sweeps: one suite with one thing varied. Their runs are ordinary ones, so every report shows them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from equipoise.metrics.delta_m import delta_m
from equipoise.runs.compare import plan
from equipoise.runs.config import RunConfig, configure
from equipoise.suites import suite_class

Over = Literal["lambda", "weights", "order"]

LAMBDAS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)  # the paper's tables lie between 0.005 and 0.1
FIRST_WEIGHTS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # of the first of two tasks
DRAWS = 12  # weightings of more than two tasks
ORDERS = ("chain", "shuffle", "all")


def lambda_grid(
    suite: str, method: str, values: Sequence[float], seeds: Sequence[int], settings: Mapping[str, Any] | None = None
) -> list[RunConfig]:
    """LDC with each value of lambda (its `discrepancy`), and LS for the time ratio.

    >>> [run.label for run in lambda_grid("toy", "ldc", [0.1, 0.5], [0])]
    ['ls', 'ldc:discrepancy=0.1', 'ldc:discrepancy=0.5']
    """
    return plan(suite, ["ls", *(f"{method}:discrepancy={value:g}" for value in values)], seeds, settings)


def weight_sweep(
    suite: str,
    beside: Sequence[str],
    weights: Sequence[Sequence[float]],
    seeds: Sequence[int],
    settings: Mapping[str, Any] | None = None,
) -> list[RunConfig]:
    """LS with each of the fixed weights, and the methods that are to stand beside it.

    >>> [run.label for run in weight_sweep("toy", ["ldc"], [[0.1, 0.9]], [0])]
    ['ls:weights=[0.1,0.9]', 'ldc']
    """
    fixed = [f"ls:weights=[{','.join(f'{weight:g}' for weight in point)}]" for point in weights]
    return plan(suite, [*fixed, *beside], seeds, settings)


def order_ablation(
    suite: str, method: str, seeds: Sequence[int], settings: Mapping[str, Any] | None = None
) -> list[RunConfig]:
    """LDC over its chain in the order of the tasks, over a new order each step, and over all pairs.

    >>> [run.label for run in order_ablation("qm9-sample", "ldc", [0])]
    ['ldc:pairs=chain', 'ldc:pairs=shuffle', 'ldc:pairs=all']
    """
    tasks = configure(suite, method, settings=settings).tasks
    if len(tasks) < 3:
        raise ValueError(f"two tasks have one pair, whatever their order; found {', '.join(tasks)} of {suite!r}.")
    return plan(suite, [f"{method}:pairs={kind}" for kind in ORDERS], seeds, settings)


def fixed_weights(num_tasks: int, first: Sequence[float] | None = None, draws: int = DRAWS) -> list[list[float]]:
    """Weights that sum to 1: of two tasks by the first one's, of more drawn evenly from the simplex, always alike.

    >>> fixed_weights(2, [0.1, 0.5])
    [[0.1, 0.9], [0.5, 0.5]]
    >>> [len(point) for point in fixed_weights(3, draws=2)]
    [3, 3]
    """
    if num_tasks == 2:
        chosen = FIRST_WEIGHTS if first is None else first
        if not all(0 < weight < 1 for weight in chosen):
            raise ValueError(f"`first` must hold weights between 0 and 1; found {list(chosen)}.")
        return [[weight, round(1 - weight, 6)] for weight in chosen]
    if first is not None:
        raise ValueError(f"`first` fixes the weights of two tasks; there are {num_tasks}: say how many to draw.")
    draw = random.Random(0).expovariate
    points = []
    for _ in range(draws):
        shares = [draw(1.0) for _ in range(num_tasks)]
        points.append([max(round(share / sum(shares), 4), 1e-4) for share in shares])
    return points


def validation_score(config: RunConfig, result: Mapping[str, Any]) -> float | None:
    """The delta-m a run is chosen by, of its validation part against the published single-task numbers; or None."""
    suite, found = suite_class(config.suite), result.get("validation")
    if not found or not found.keys() <= suite.stl.keys():
        return None
    up = {metric.name: metric.higher_is_better for metric in suite.metrics}
    return delta_m(found, {name: suite.stl[name] for name in found}, {name: up[name] for name in found})


def pareto_front(table: Mapping[str, Mapping[str, float]], higher_is_better: Mapping[str, bool]) -> list[str]:
    """The rows that no other row equals or beats in every metric and beats in one.

    >>> rows = {"a": {"x": 1.0, "y": 2.0}, "b": {"x": 2.0, "y": 1.0}, "c": {"x": 2.0, "y": 2.0}}
    >>> pareto_front(rows, {"x": False, "y": False})
    ['a', 'b']
    """
    return [name for name in table if not beaten_by(name, table, higher_is_better)]


def beaten_by(name: str, table: Mapping[str, Mapping[str, float]], higher_is_better: Mapping[str, bool]) -> list[str]:
    """The rows that are as good as this one in every metric and better in one."""
    turned = {
        row: [-values[metric] if up else values[metric] for metric, up in higher_is_better.items()]
        for row, values in table.items()
    }
    mine = turned[name]
    return [
        row
        for row, theirs in turned.items()
        if theirs != mine and all(their <= own for their, own in zip(theirs, mine, strict=True))
    ]
