"""The gradients of one step: each task's once, for the shared tensors and for the leaves of its own head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from equipoise.distributed import world_size
from equipoise.gradient.shared import Leaves, Shared, find_leaves, find_roots
from equipoise.losses import Batch

_COLUMNS = 16384  # columns of the rows multiplied at once, so that float32 sums stay short


class TaskGradients:
    """Takes the gradients of a step's losses.

    Under float16 they are taken at `scale` and divided by it in float32. On several ranks each counts by the
    task's factor, as in the joined loss.
    """

    def __init__(self, batch: Batch, shared: Shared, scale: Tensor, group: dist.ProcessGroup | None) -> None:
        self.shared = shared
        self.group = group
        self.ranks = world_size(group)
        self.roots = find_roots(batch.given)
        self.leaves: Leaves = find_leaves(self.roots, shared)
        self.half = self.leaves.half or _half_autocast(batch.losses.device)
        self.scale = scale
        mask = batch.present if batch.factor is None else batch.factor > 0
        self.mask = mask if mask is not None and mask.is_cuda else None  # where asking would cost a sync
        asked = [True] * len(self.roots) if mask is None or mask.is_cuda else mask.tolist()
        self.live = [root is not None and here for root, here in zip(self.roots, asked, strict=True)]
        one = scale if self.half else torch.ones_like(scale)
        self.sizes = one.expand(len(self.roots)) if batch.factor is None else one * batch.factor
        self.own: list[list[Tensor]] = [[] for _ in self.roots]

    def rows(self, out: Tensor) -> Tensor:
        """The Jacobian, one row a task, in `out`; the own heads' gradients are kept aside."""
        shared, reached = self.shared, False
        count = len(shared.tensors)
        with shared.cut():
            for task, root in enumerate(self.roots):
                row = out[task]
                if root is None or not self.live[task]:
                    row.zero_()
                    self.own[task] = [torch.zeros_like(leaf) for leaf in self.leaves.own[task]]
                    continue
                own = self.leaves.own[task]
                taken = self._grad([root.output], [root.seed(self.sizes[task])], [*shared.tensors, *own])
                reached = self._write(row, taken[:count], task) or reached
                self.own[task] = [
                    torch.zeros_like(leaf) if gradient is None else gradient
                    for gradient, leaf in zip(taken[count:], own, strict=True)
                ]
        if not reached:
            raise ValueError(_UNREACHED)
        if self.ranks > 1 and shared.local < shared.width:
            self._average(out[:, shared.local :])
        return out

    def gram(self, rows: Tensor) -> Tensor:
        """J J^T of the joined batch, in float64."""
        local = self.shared.local
        if self.ranks == 1 or local == 0:
            return gram(rows)
        joined = gram(rows[:, :local])
        dist.all_reduce(joined, group=self.group)
        joined /= self.ranks**2
        return joined + gram(rows[:, local:]) if local < self.shared.width else joined

    def heads(self, weights: Tensor, plain: bool) -> tuple[list[Tensor], list[Tensor]]:
        """The leaves that are not shared and their gradients, each task's counted by its weight.

        plain: the weights are ones.
        """
        leaves = [leaf for own in self.leaves.own for leaf in own]
        if plain and not self.half and self.mask is None:
            gradients = [gradient for own in self.own for gradient in own]
        else:
            counts = weights / self.scale if self.half else weights
            gradients = [self._count(gradient, counts, task) for task, own in enumerate(self.own) for gradient in own]
        common = self.leaves.common
        if common:
            leaves += common
            gradients += self._common(weights)
        return leaves, gradients

    def _count(self, gradient: Tensor, counts: Tensor, task: int) -> Tensor:
        if gradient.dtype in (torch.float16, torch.bfloat16):
            gradient = gradient.float()
        counted = gradient * counts[task].to(gradient.dtype)
        return counted if self.mask is None else torch.where(self.mask[task], counted, 0.0)

    def _common(self, weights: Tensor) -> list[Tensor]:
        """The gradients of leaves that several tasks use, by one weighted backward through the heads."""
        sizes = weights * self.sizes
        if self.mask is not None:
            sizes = torch.where(self.mask, sizes, 0.0)
        live = [(task, root) for task, root in enumerate(self.roots) if root is not None and self.live[task]]
        if live[0][1].entry is None:
            outputs = [root.output for _, root in live]
            seeds = [root.seed(sizes[task]) for task, root in live]
        else:
            outputs, seeds = [live[0][1].output], [sizes.to(live[0][1].like.dtype)]
        common = self.leaves.common
        with self.shared.cut():
            taken = self._grad(outputs, seeds, common)
        gradients = [
            torch.zeros_like(leaf) if gradient is None else gradient
            for gradient, leaf in zip(taken, common, strict=True)
        ]
        return [gradient.float() / self.scale for gradient in gradients] if self.half else gradients

    def _grad(self, outputs: Sequence[Any], seeds: Sequence[Tensor], inputs: Sequence[Tensor]) -> tuple[Any, ...]:
        # The graph is kept: terms that the caller adds to the scalar may need it.
        return torch.autograd.grad(outputs, inputs, seeds, retain_graph=True, allow_unused=True)

    def _write(self, row: Tensor, gradients: Sequence[Tensor | None], task: int) -> bool:
        """Lay the shared tensors' gradients side by side; whether there were any."""
        reached = False
        for part, gradient in zip(row.split_with_sizes(self.shared.sizes), gradients, strict=True):
            if gradient is None:
                part.zero_()
                continue
            reached = True
            part.view(gradient.shape).copy_(gradient)
        if self.half:
            row.div_(self.scale)
        if self.mask is not None:
            row.copy_(torch.where(self.mask[task], row, 0.0))
        return reached

    def _average(self, rows: Tensor) -> None:
        joined = rows.contiguous()
        dist.all_reduce(joined, group=self.group)
        torch.div(joined, self.ranks, out=rows) if joined is not rows else rows.div_(self.ranks)


_UNREACHED = (
    "`shared` must be upstream of the losses; found no path from any loss to it. Shared features that a wrapper hands "
    "out beside the predictions (DistributedDataParallel with static_graph or find_unused_parameters, a compiled "
    "region, reentrant checkpointing) are not the ones the heads used: build the balancer with shared=model.trunk, the "
    "module itself, or compute the losses from the features that are passed."
)


def gram(rows: Tensor) -> Tensor:
    """J J^T in float64.

    >>> import torch
    >>> from equipoise.gradient.tasks import gram
    >>> gram(torch.tensor([[1.0, 2.0], [0.0, 1.0]]))
    tensor([[5., 2.],
            [2., 1.]], dtype=torch.float64)
    """
    if rows.dtype == torch.float64:
        return rows @ rows.T
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for start in range(0, rows.shape[1], _COLUMNS):
        part = rows[:, start : start + _COLUMNS]
        total += part @ part.T
    return total


def _half_autocast(device: torch.device) -> bool:
    return torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type) == torch.float16
