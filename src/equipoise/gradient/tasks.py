"""The gradients of one step: each task's once, for the shared tensors and for the leaves of its own head."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import GradientEdge

from equipoise.distributed import world_size
from equipoise.gradient.linear import Linear, find_linear
from equipoise.gradient.ranges import out_of_range
from equipoise.gradient.shared import UNREACHED, Shared, find_roots, walk
from equipoise.losses import Batch

_ENTRIES = 2**17  # of the rows multiplied at once, but not less than _COLUMNS a row: float32 sums stay short
_COLUMNS = 2**14
_GPU_ENTRIES = 2**24  # the same on a GPU, where they are float64: its float32 products may be TF32
_PASSES = 2  # of the backwards with low memory: half of the columns at a time


class Part(NamedTuple):
    """A stretch of a row: the gradient of one shared tensor, or (narrow) of a linear layer's output in its place."""

    tensor: int
    source: Tensor | GradientEdge
    width: int
    linear: Linear | None
    narrow: bool


class TaskGradients:
    """Takes the gradients of a step's losses.

    Under float16 they are taken at `scale` and divided by it in float32. On several ranks each counts by the
    task's factor, as in the joined loss.

    whole: rows hold the shared tensors' gradients and nothing in their place.
    """

    def __init__(
        self, batch: Batch, shared: Shared, scale: Tensor, group: dist.ProcessGroup | None, *, whole: bool
    ) -> None:
        self.group = group
        self.ranks = world_size(group)
        self.roots = find_roots(batch.given)
        self.walk = walk(self.roots, shared)
        if not any(self.walk.reached):
            raise ValueError(UNREACHED)
        # Ranks must keep the same columns; alone, what no loss depends on may go.
        self.shared = shared if self.ranks > 1 else shared.without_unreached(self.walk.reached)
        self.half = self.walk.half or _half_autocast(batch.losses.device)
        mask = batch.present if batch.factor is None else batch.factor > 0
        self.mask = mask if mask is not None and mask.is_cuda else None  # where asking would cost a sync
        asked = [True] * len(self.roots) if mask is None or mask.is_cuda else mask.tolist()
        self.live = [root is not None and here for root, here in zip(self.roots, asked, strict=True)]
        self.scale = scale.clone() if self.half else scale  # the step may move it
        one = self.scale if self.half else torch.ones_like(scale)
        self.sizes = one if batch.factor is None else one * batch.factor  # [K], or one for all
        self.own: list[list[Tensor]] = [
            [] if live else [torch.zeros_like(leaf) for leaf in leaves]
            for live, leaves in zip(self.live, self.walk.own, strict=True)
        ]
        self.parts = self._lay_out(whole)
        self.width = sum(part.width for part in self.parts)

    def _lay_out(self, whole: bool) -> list[Part]:
        """The parts of a row: whole gradients first, representations before parameters, then narrow ones."""
        shared = self.shared
        layers: dict[int, Linear] = {}
        if shared.local < shared.width:
            places = {edge.node: i for i, edge in enumerate(shared.edges) if shared.tensors[i].is_leaf}
            layers = {layer.weight: layer for layer in find_linear(self.walk.nodes, places, shared.dtype)}
        parts = []
        for i, (tensor, size) in enumerate(zip(shared.tensors, shared.sizes, strict=True)):
            layer = layers.get(i)
            narrow = layer is not None and not whole and self.ranks == 1 and layer.narrow(len(self.roots))
            width = layer.width if layer is not None and narrow else size
            parts.append(Part(i, tensor if layer is None else layer.output, width, layer, narrow))
        return sorted(parts, key=lambda part: part.narrow)

    def groups(self) -> list[list[Part]]:
        """The parts in a few groups of neighbours, each about as wide as the others or a single part."""
        limit = self.width / _PASSES
        groups: list[list[Part]] = [[]]
        for part in sorted(self.parts, key=lambda part: part.tensor):
            if groups[-1] and sum(other.width for other in groups[-1]) + part.width > limit:
                groups.append([])
            groups[-1].append(part)
        return [sorted(group, key=lambda part: part.narrow) for group in groups]

    def rows(self, out: Tensor, parts: Sequence[Part], *, heads: bool = True) -> Tensor:
        """The Jacobian, one row a task, in `out`; the own heads' gradients are kept aside."""
        sources = [part.source for part in parts]
        sizes = self.sizes.unbind() if self.sizes.ndim else [self.sizes] * len(self.roots)
        places = [self._places(part, stretch) for part, stretch in zip(parts, _split(out, parts), strict=True)]
        with self.shared.cut():
            for task, root in enumerate(self.roots):
                if root is None or not self.live[task]:
                    out[task].zero_()
                    continue
                own = self.walk.own[task] if heads else []
                taken = _grad([root.output], [root.seed(sizes[task])], [*sources, *own])
                self._write([of_part[task] for of_part in places], parts, taken)
                if self.half:
                    out[task].div_(self.scale)
                if self.mask is not None:
                    out[task].copy_(torch.where(self.mask[task], out[task], 0.0))
                if heads:
                    self.own[task] = _filled(taken[len(sources) :], own)
        if self.ranks > 1 and self.shared.local < out.shape[1]:
            self._average(out[:, self.shared.local :])
        return out

    def gram(self, rows: Tensor, parts: Sequence[Part]) -> Tensor:
        """J J^T of the joined batch, in float64."""
        local = self.shared.local
        plain = sum(part.width for part in parts if not part.narrow)
        products = []
        if local:
            products.append(gram(rows if local == rows.shape[1] else rows[:, :local]))
            if self.ranks > 1:
                dist.all_reduce(products[0], group=self.group)
                products[0] /= self.ranks**2
        if local < plain:
            products.append(gram(rows[:, local:plain]))
        start = plain
        for part in parts:
            if part.linear is not None and part.narrow:
                products.append(part.linear.gram(rows[:, start : start + part.width]))
                start += part.width
        return functools.reduce(torch.Tensor.add_, products)

    def norms(self, rows: Tensor) -> Tensor:
        """The diagonal of J J^T, in float64, for methods that work on whole rows of parameters."""
        squares: Tensor = torch.linalg.vector_norm(rows, dim=1).double().square()
        if out_of_range(squares, rows):
            squares = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).square()
        return squares.diag()

    def combined(self, weights: Tensor, rows: Tensor) -> list[Tensor]:
        """J^T weights, as one gradient a shared tensor."""
        gradients: list[Any] = [None] * len(self.shared.tensors)
        for part, stretch in zip(self.parts, _split(weights.to(rows.dtype) @ rows, self.parts), strict=True):
            whole = part.linear.weight_gradient(stretch) if part.linear is not None and part.narrow else stretch
            gradients[part.tensor] = whole.view(self.shared.tensors[part.tensor].shape)
        return gradients

    def streamed(self, memory: Callable[[int], Tensor]) -> Tensor:
        """The Gram matrix, a group of columns at a time; `memory` gives the room for each."""
        total = torch.zeros(len(self.roots), len(self.roots), dtype=torch.float64, device=self.sizes.device)
        for i, group in enumerate(self.groups()):
            out = memory(sum(part.width for part in group))
            total += self.gram(self.rows(out, group, heads=i == 0), group)
        return total

    def weighted(self, weights: Tensor, leaves: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of the weighted sum of the losses, by one backward."""
        sizes = weights * self.sizes
        if self.mask is not None:
            sizes = torch.where(self.mask, sizes, 0.0)
        live = [(task, root) for task, root in enumerate(self.roots) if root is not None and self.live[task]]
        if not live:
            return [torch.zeros_like(leaf) for leaf in leaves]
        outputs, seeds = [root.output for _, root in live], [root.seed(sizes[task]) for task, root in live]
        if live[0][1].entry is not None:  # all of them entries of one tensor
            outputs, seeds = outputs[:1], [torch.stack(seeds).sum(0)]
        with self.shared.cut():
            gradients = _filled(_grad(outputs, seeds, leaves), leaves)
        return [gradient.float() / self.scale for gradient in gradients] if self.half else gradients

    def heads(self, weights: Tensor, *, plain: bool) -> tuple[list[Tensor], list[Tensor]]:
        """The leaves that are not shared and their gradients, each task's counted by its weight (plain: by 1)."""
        leaves = [leaf for own in self.walk.own for leaf in own]
        if plain and not self.half and self.mask is None:
            gradients = [gradient for own in self.own for gradient in own]
        else:
            gradients = self._counted(weights / self.scale if self.half else weights)
        common = self.walk.common
        if common:
            leaves += common
            gradients += self.weighted(weights, common)
        return leaves, gradients

    def _counted(self, counts: Tensor) -> list[Tensor]:
        """The gradients of the tasks' own heads, each times its task's count."""
        tasks = [task for task, own in enumerate(self.own) for _ in own]
        gradients = [
            gradient.float() if gradient.dtype in (torch.float16, torch.bfloat16) else gradient
            for own in self.own
            for gradient in own
        ]
        if not gradients:
            return gradients
        each = counts.unbind()
        # a 0-dim count leaves the product the gradient's dtype
        counted: list[Tensor] = list(torch._foreach_mul(gradients, [each[task] for task in tasks]))
        if self.mask is None:
            return counted
        return [torch.where(self.mask[task], gradient, 0.0) for task, gradient in zip(tasks, counted, strict=True)]

    def _places(self, part: Part, stretch: Tensor) -> tuple[Tensor, ...]:
        """Where each task's gradient of a part belongs."""
        shape = part.linear.shape if part.linear is not None and part.narrow else self.shared.tensors[part.tensor].shape
        return stretch.view(len(stretch), *shape).unbind()

    def _write(self, places: Sequence[Tensor], parts: Sequence[Part], gradients: Sequence[Tensor | None]) -> None:
        """Lay one task's gradients side by side."""
        targets, copied = [], []
        for part, place, gradient in zip(parts, places, gradients, strict=False):
            if gradient is None:
                place.zero_()
            elif part.linear is not None and not part.narrow:
                part.linear.weight_gradient(gradient, out=place)
            else:
                targets.append(place)
                copied.append(gradient.to_dense() if gradient.is_sparse else gradient)
        if targets:
            torch._foreach_copy_(targets, copied)

    def _average(self, rows: Tensor) -> None:
        joined = rows.contiguous()
        dist.all_reduce(joined, group=self.group)
        torch.div(joined, self.ranks, out=rows)


def _split(rows: Tensor, parts: Sequence[Part]) -> Sequence[Tensor]:
    """The stretches of a row, or of each."""
    return [rows] if len(parts) == 1 else rows.split_with_sizes([part.width for part in parts], -1)


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
    total = _products(rows, double=rows.is_cuda)
    return _products(rows, double=True) if out_of_range(total.diagonal(), rows) else total


def _products(rows: Tensor, double: bool) -> Tensor:
    columns = max(_COLUMNS, (_GPU_ENTRIES if rows.is_cuda else _ENTRIES) // len(rows))
    blocks = [rows] if rows.shape[1] <= columns else torch.split(rows, columns, 1)
    total: Tensor | None = None
    for block in blocks:
        part = block.double() if double else block
        product = part @ part.T
        total = product.double() if total is None else total.add_(product)
    assert total is not None
    return total


def _grad(outputs: Sequence[Any], seeds: Sequence[Tensor], inputs: Sequence[Any]) -> tuple[Any, ...]:
    # The graph is kept: terms that the caller adds to the scalar may need it.
    try:
        return torch.autograd.grad(outputs, inputs, seeds, retain_graph=True, allow_unused=True)
    except RuntimeError as error:
        if "donated buffer" not in str(error):
            raise
        raise RuntimeError(
            "a compiled region between the losses and `shared` gives its buffers up after one backward, but a gradient "
            "method runs one a task: set torch._functorch.config.donated_buffer = False before the model first runs."
        ) from error


def _filled(gradients: Sequence[Tensor | None], leaves: Sequence[Tensor]) -> list[Tensor]:
    return [
        torch.zeros_like(leaf) if gradient is None else gradient
        for gradient, leaf in zip(gradients, leaves, strict=True)
    ]


def _half_autocast(device: torch.device) -> bool:
    return torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type) == torch.float16
