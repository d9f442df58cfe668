"""Single-task learning: one of the losses alone."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Unpack

from equipoise.balancer import Balancer, CommonOptions
from equipoise.losses import Batch, alike, nearest


class STL(Balancer):
    """Single-task learning: the loss of one task, given by its index or its name; the others get weight 0.

    >>> import torch, equipoise as eq
    >>> losses = torch.tensor([2.0, 8.0], requires_grad=True)
    >>> eq.STL(num_tasks=2, task=1)(losses).item()
    8.0
    >>> eq.STL(tasks=("seg", "depth"), task="depth").task
    1
    """

    def __init__(self, num_tasks: int | None = None, *, task: int | str = 0, **common: Unpack[CommonOptions]) -> None:
        super().__init__(num_tasks, **common)
        if isinstance(task, str):
            if task not in self.tasks:
                raise ValueError(f"`task` must be one of the tasks; found {task!r}; {nearest(task, self.tasks)}")
            task = self.tasks.index(task)
        if isinstance(task, bool) or not isinstance(task, int) or not 0 <= task < self.num_tasks:
            raise ValueError(f"`task` must be a task's name or an index below {self.num_tasks}; found {task!r}.")
        self.task = task
        self.permutation_equivariant = self.num_tasks == 1
        self.chosen: Tensor
        self.register_buffer("chosen", torch.eye(self.num_tasks)[task], persistent=False)

    def objective(self, batch: Batch, shared: list[Tensor] | None) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        weights = alike(batch.only(self.chosen), batch.losses)
        return torch.dot(weights, batch.losses), weights
