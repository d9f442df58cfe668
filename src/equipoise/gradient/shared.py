"""Where per-task gradients come from: the graph of each loss, walked down to the shared tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

_Leaf = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]
_Stack = torch._C._functions.StackBackward0  # type: ignore[attr-defined]
_Cast = torch._C._functions.ToCopyBackward0  # type: ignore[attr-defined]


class Shared:
    """The shared tensors, frozen ones left out, laid side by side as the columns of one matrix.

    Representations come first (their columns belong to this rank's batch), parameters after.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        trainable = list({id(tensor): tensor for tensor in tensors if tensor.requires_grad}.values())
        if not trainable:
            raise ValueError("`shared` must hold at least one tensor that requires a gradient; found none.")
        if any(hasattr(tensor, "full_tensor") for tensor in trainable):
            raise TypeError(
                "`shared` must not hold sharded parameters (DTensor), of which a rank has a part: give the shared "
                "representation instead, or the module that makes it, to the constructor."
            )
        parameters = [tensor for tensor in trainable if isinstance(tensor, nn.Parameter)]
        representations = [tensor for tensor in trainable if not isinstance(tensor, nn.Parameter)]
        self.tensors = [*representations, *parameters]
        self.edges = [_edge(tensor) for tensor in self.tensors]
        self.sizes = [tensor.numel() for tensor in self.tensors]
        self.local = sum(tensor.numel() for tensor in representations)  # columns that differ between ranks
        self.width = sum(self.sizes)
        double = any(tensor.dtype == torch.float64 for tensor in self.tensors)
        self.dtype = torch.float64 if double else torch.float32

    def without_unreached(self, reached: Sequence[bool]) -> Shared:
        """The same without representations that no loss depends on: they may be of a pass that is over."""
        kept = [
            tensor
            for tensor, here in zip(self.tensors, reached, strict=True)
            if here or isinstance(tensor, nn.Parameter)
        ]
        return self if len(kept) == len(self.tensors) else Shared(kept)

    def split(self, row: Tensor) -> list[Tensor]:
        """A row of `width` numbers, as one view a tensor."""
        parts = row.split_with_sizes(self.sizes)
        return [part.view(tensor.shape) for part, tensor in zip(parts, self.tensors, strict=True)]

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Let no gradient flow on below the representations, so that what is taken is each tensor's own part."""
        outputs: dict[Any, set[int]] = {}
        for tensor, edge in zip(self.tensors, self.edges, strict=True):
            if not tensor.is_leaf:
                outputs.setdefault(edge.node, set()).add(edge.output_nr)
        handles = [node.register_prehook(_Cut(cut)) for node, cut in outputs.items()]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def _edge(tensor: Tensor) -> GradientEdge:
    """Where a tensor's gradient enters the graph: torch's own answer, without its checks for what is no leaf."""
    return GradientEdge(tensor.grad_fn, tensor.output_nr) if tensor.grad_fn is not None else get_gradient_edge(tensor)


UNREACHED = (
    "`shared` must be upstream of the losses; found no path from any loss to it. Shared features that a wrapper hands "
    "out beside the predictions (DistributedDataParallel with static_graph or find_unused_parameters, a compiled "
    "region, reentrant checkpointing) are not the ones the heads used: build the balancer with shared=model.trunk, the "
    "module itself, or compute the losses from the features that are passed (checkpoint with use_reentrant=False)."
)


class _Cut:
    """A hook before a node that drops the gradients of some of its outputs."""

    def __init__(self, outputs: set[int]) -> None:
        self.outputs = outputs

    def __call__(self, gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        return tuple(None if i in self.outputs else gradient for i, gradient in enumerate(gradients))


class Root(NamedTuple):
    """Where a task's gradient starts: an output of the graph, and the entry of the loss in it (None: a scalar)."""

    output: Tensor | GradientEdge
    entry: int | None
    like: Tensor  # shape, dtype and device of what flows into the output

    @property
    def edge(self) -> GradientEdge:
        return _edge(self.output) if isinstance(self.output, Tensor) else self.output

    def seed(self, size: Tensor) -> Tensor:
        """The gradient to start from, for a gradient `size` times as large."""
        if self.entry is None:
            return size.to(self.like.dtype)
        seed = torch.zeros_like(self.like)
        seed[self.entry] = size
        return seed


def find_roots(given: tuple[Tensor | None, ...] | Tensor) -> list[Root | None]:
    """One root a task, None for an absent one. A tensor that was stacked from scalars is taken apart again."""
    if not isinstance(given, Tensor):
        return [None if loss is None else Root(loss, None, loss.detach()) for loss in given]
    like = given.detach()
    node: Any = given.grad_fn
    if type(node) is _Stack:
        edges = node.next_functions
        return [None if edge[0] is None else Root(GradientEdge(*edge), None, like[k]) for k, edge in enumerate(edges)]
    return [Root(given, k, like) for k in range(len(like))]


class Walk(NamedTuple):
    """What lies between the losses and the shared tensors.

    own: the leaves below each loss alone; common: those below several; neither holds shared tensors.
    nodes: every node between. reached: which of the shared tensors were. half: float16 was met.
    """

    own: list[list[Tensor]]
    common: list[Tensor]
    nodes: list[Any]
    reached: list[bool]
    half: bool


_COMMON = -1


def walk(roots: Sequence[Root | None], shared: Shared) -> Walk:
    """Go down from each loss to the shared tensors; for all tasks together, a node is visited at most twice."""
    stop: dict[Any, set[int]] = {}
    for edge in shared.edges:
        stop.setdefault(edge.node, set()).add(edge.output_nr)
    owner: dict[Any, int] = {}
    reached: set[Any] = set()
    met: list[Any] = []  # edges where two tasks met
    for task, root in enumerate(roots):
        if root is not None:
            edge = root.edge
            start = (edge.node, edge.output_nr)
            if root.entry is None:
                _claim([start], task, owner, stop, reached, met)
            else:
                met.append(start)
    _claim(met, _COMMON, owner, stop, reached, met)
    own: list[list[Tensor]] = [[] for _ in roots]
    common: list[Tensor] = []
    half = any(tensor.dtype == torch.float16 for tensor in shared.tensors)
    half = half or any(root is not None and root.like.dtype == torch.float16 for root in roots)
    for node, task in owner.items():
        kind = type(node)
        if kind is _Leaf:
            (common if task == _COMMON else own[task]).append(node.variable)
        elif kind is _Cast:
            half = half or node._input_metadata[0].dtype == torch.float16
        elif kind.__name__ == "_DDPSinkBackward":
            _refuse_static_graph(node)
    return Walk(own, common, list(owner), [(edge.node, edge.output_nr) in reached for edge in shared.edges], half)


def _claim(
    pending: list[Any],
    task: int,
    owner: dict[Any, int],
    stop: dict[Any, set[int]],
    reached: set[Any],
    met: list[Any],
) -> None:
    """Mark what lies below `pending`; what another task has marked is put aside, or taken over by _COMMON."""
    while pending:
        edge = pending.pop()
        node = edge[0]
        if node is None:
            continue
        if node in stop and edge[1] in stop[node]:
            reached.add(edge)
            continue
        known = owner.get(node)
        if known is not None:
            if known == task:
                continue
            if task != _COMMON:
                met.append(edge)
                continue
        owner[node] = task
        pending += node.next_functions


def _refuse_static_graph(sink: Any) -> None:
    """With static_graph, DDP starts its first reduction from a node that the carrier does not pass."""
    wrapper = sink.ddp_weakref()
    if wrapper is not None and wrapper.static_graph:
        raise ValueError(
            "DistributedDataParallel(static_graph=True) around the heads would leave the first step's gradients "
            "unreduced: build it with static_graph=False."
        )
