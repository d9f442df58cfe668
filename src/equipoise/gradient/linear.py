"""Linear layers whose tasks' weight gradients need not be formed: inputs and output gradients say enough."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

_Addmm = torch._C._functions.AddmmBackward0  # type: ignore[attr-defined]
_Mm = torch._C._functions.MmBackward0  # type: ignore[attr-defined]
_Transpose = torch._C._functions.TBackward0  # type: ignore[attr-defined]

_FEWEST_TASKS = 4  # with fewer, the factorisation costs what it saves
_ENTRIES = 2**20  # of the output gradients transformed at once


class Linear(NamedTuple):
    """A weight used once, by a layer that sees fewer samples than it has inputs.

    With inputs A [B, in] and output gradient G_k [B, out], the weight's gradient is G_k^T A. Inner products of these
    are those of R G_k, where A^T = Q R: B x out numbers a task instead of in x out, and less to multiply. (Through
    A A^T they would be as cheap, but where samples cancel, the square loses twice the digits.)
    """

    weight: int  # its place among the shared tensors
    output: GradientEdge
    inputs: Tensor

    @property
    def width(self) -> int:
        """Entries of one task's output gradient."""
        rows, columns = self._shape()
        return rows * columns

    def _shape(self) -> tuple[int, int]:
        metadata: Any = self.output.node
        rows, columns = metadata._input_metadata[0].shape
        return rows, columns

    def gram(self, rows: Tensor) -> Tensor:
        """Inner products of the tasks' weight gradients, in float64, from their output gradients."""
        samples, columns = self._shape()
        factor = torch.linalg.qr(self.inputs.to(rows.dtype).T, mode="r").R
        gradients = rows.view(len(rows), samples, columns)
        total = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
        for part in gradients.split_with_sizes(_portions(columns, _ENTRIES // (len(rows) * samples)), dim=2):
            turned = torch.matmul(factor, part).view(len(rows), -1)
            total += turned @ turned.T
        return total

    def weight_gradient(self, row: Tensor) -> Tensor:
        """The weight's gradient for one output gradient."""
        return row.view(self._shape()).T @ self.inputs.to(row.dtype)


def find_linear(nodes: Iterable[Any], parameters: Sequence[tuple[int, Any]], num_tasks: int) -> list[Linear]:
    """The layers among the graph's nodes that save by it; `parameters` are (place, node) of shared leaves."""
    if num_tasks < _FEWEST_TASKS:
        return []
    place = {node: index for index, node in parameters}
    nodes = list(nodes)
    uses = Counter(child for node in nodes for child, _ in node.next_functions)
    found = []
    for node in nodes:
        kind = type(node)
        if kind is not _Addmm and kind is not _Mm:
            continue
        turned = node.next_functions[-1][0]
        if type(turned) is not _Transpose or uses[turned] > 1:
            continue
        leaf = turned.next_functions[0][0]
        if leaf not in place or uses[leaf] > 1 or (kind is _Addmm and (node._saved_alpha != 1)):
            continue
        inputs = node._saved_mat1 if kind is _Addmm else node._saved_self
        if inputs.shape[0] < inputs.shape[1]:
            found.append(Linear(place[leaf], GradientEdge(node, 0), inputs.detach()))
    return found


def _portions(total: int, size: int) -> list[int]:
    size = max(size, 1)
    return [min(size, total - start) for start in range(0, total, size)]
