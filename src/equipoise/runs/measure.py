"""What a run measures besides its suite's metrics: the score it is selected by, and how its gradients conflict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from equipoise.metrics.delta_m import delta_m
from equipoise.suites.suite import Suite

CONFLICT_TASKS = 8  # of how many tasks, drawn at random, the gradients are compared when there are more


def selection_score(suite: Suite | type[Suite], row: Mapping[str, float], task: int | None) -> float | None:
    """The delta-m of a validation row against the published single-task numbers; None where there are none.

    task: only this task's metrics count, for a run that trains one task.
    """
    if not suite.stl:
        return None
    metrics = [metric for metric in suite.metrics if task is None or metric.task == suite.tasks[task]]
    return delta_m(
        {metric.name: row[metric.name] for metric in metrics},
        {metric.name: suite.stl[metric.name] for metric in metrics},
        {metric.name: metric.higher_is_better for metric in metrics},
    )


def conflict(suite: Suite, losses: Sequence[Tensor] | Tensor, trunk: Sequence[Tensor], seed: int) -> dict[str, Any]:
    """Cosines between the tasks' gradients on the trunk, of all tasks or of eight drawn at random."""
    tasks = torch.arange(len(suite.tasks))
    if len(tasks) > CONFLICT_TASKS:
        drawn = torch.randperm(len(tasks), generator=torch.Generator().manual_seed(seed))
        tasks = drawn[:CONFLICT_TASKS].sort().values
    rows = [_flat_gradient(losses[task], trunk) for task in tasks.tolist()]
    unit = torch.nn.functional.normalize(torch.stack(rows), dim=1)
    cosines = (unit @ unit.T).clamp(-1, 1)
    return {"tasks": [suite.tasks[task] for task in tasks.tolist()], "cosine": cosines.tolist()}


def _flat_gradient(loss: Tensor, trunk: Sequence[Tensor]) -> Tensor:
    grads = torch.autograd.grad(loss, trunk, retain_graph=True, materialize_grads=True)
    return torch.cat([grad.reshape(-1).float() for grad in grads])
