"""The Gram matrix of the tasks' gradients at a point of the user's own graph, which is left as it was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from equipoise.distributed import alone
from equipoise.gradient.shared import Shared
from equipoise.gradient.tasks import TaskGradients
from equipoise.losses import Batch
from equipoise.precision import full_precision

_HALF_SCALE = 2.0**16  # float16 gradients are taken this much larger


@torch.no_grad()
def gram_of(batch: Batch, shared: Sequence[Tensor]) -> Tensor:
    """J J^T [K, K] in float64, of this rank's batch; an absent task's row is 0.

    batch: the losses as `equipoise.losses.read` has them.  shared: features or parameters.
    """
    with grads_put_back(shared):
        scale = torch.tensor(_HALF_SCALE, device=batch.losses.device)
        tasks = TaskGradients(batch, Shared(shared), scale, alone(), whole=False)
        room = torch.empty(len(tasks.roots), tasks.width, dtype=tasks.shared.dtype, device=batch.losses.device)
        with full_precision(batch.losses.device), _graph_there():
            return tasks.gram(tasks.rows(room, tasks.parts, heads=False), tasks.parts)


def leaves_of(batch: Batch, *, below: Sequence[Tensor] | None = None) -> list[Tensor]:
    """The leaves that require gradients in the losses' graph; or in the part of it below some tensors."""
    if below is not None:
        edges = [edge.node for edge in Shared(below).edges]
    else:
        given = [batch.given] if isinstance(batch.given, Tensor) else batch.given
        edges = [torch.autograd.graph.get_gradient_edge(loss).node for loss in given if loss is not None]
    pending: list[Any] = list(edges)
    seen: set[Any] = set(pending)
    leaves = []
    while pending:
        node = pending.pop()
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                pending.append(child)
    return leaves


@contextmanager
def _graph_there() -> Iterator[None]:
    """Says what to do where a backward has used the graph up."""
    try:
        yield
    except RuntimeError as error:
        if "backward through the graph a second time" not in str(error):
            raise
        raise RuntimeError(
            "the losses' graph is gone: look at it before .backward(), or call .backward(retain_graph=True)."
        ) from error


@contextmanager
def grads_put_back(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Undoes what happens inside to `.grad` of tensors that keep it (`features.retain_grad()`)."""
    kept = [(tensor, tensor.grad) for tensor in tensors if tensor.is_leaf or tensor.retains_grad]
    try:
        yield
    finally:
        for tensor, grad in kept:
            tensor.grad = grad
