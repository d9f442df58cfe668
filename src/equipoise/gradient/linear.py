"""Linear layers, whose weight gradients follow from their inputs and output gradients.

Formed straight into the tasks' rows they need no copy; and where inputs outnumber samples they need not be formed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from equipoise.gradient.ranges import out_of_range

_Addmm = torch._C._functions.AddmmBackward0  # type: ignore[attr-defined]
_Mm = torch._C._functions.MmBackward0  # type: ignore[attr-defined]
_Transpose = torch._C._functions.TBackward0  # type: ignore[attr-defined]

_FEWEST_TASKS = 4  # with fewer, the factorisation costs what it saves
_ENTRIES = 2**20  # of the output gradients transformed at once


class Linear(NamedTuple):
    """A layer with a weight used nowhere else: inputs A [B, in], output gradients G_k [B, out], gradients G_k^T A.

    Where B < in, the inner products of these are those of R G_k, with A^T = Q R: B x out numbers a task instead of
    in x out, and less to multiply. (Through A A^T they would be as cheap, but where samples cancel, the square loses
    twice the digits.)
    """

    weight: int  # its place among the shared tensors
    output: GradientEdge
    inputs: Tensor

    def narrow(self, num_tasks: int) -> bool:
        """Whether the output gradients are less work than the weight's; on a GPU the factorisation is too slow."""
        samples, features = self.inputs.shape
        return samples < features and num_tasks >= _FEWEST_TASKS and not self.inputs.is_cuda

    @property
    def width(self) -> int:
        """Entries of one task's output gradient."""
        rows, columns = self.shape
        return rows * columns

    @property
    def shape(self) -> tuple[int, int]:
        metadata: Any = self.output.node
        rows, columns = metadata._input_metadata[0].shape
        return rows, columns

    def gram(self, rows: Tensor) -> Tensor:
        """Inner products of the tasks' weight gradients, in float64, from their output gradients."""
        total = self._gram(rows, self.inputs)
        return self._gram(rows.double(), self.inputs.double()) if out_of_range(total.diagonal(), rows) else total

    def _gram(self, rows: Tensor, inputs: Tensor) -> Tensor:
        samples, columns = self.shape
        factor = torch.linalg.qr(inputs.T, mode="r").R
        outputs = rows.view(len(rows), samples, columns)
        total = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
        height = max(1, _ENTRIES // (len(rows) * columns))
        for start in range(0, samples, height):  # in stripes: R is triangular, and the memory stays small
            stripe = factor[start : start + height, start:]
            turned = torch.matmul(stripe, outputs[:, start:]).view(len(rows), -1)
            total += turned @ turned.T
        return total

    def weight_gradient(self, output: Tensor, out: Tensor | None = None) -> Tensor:
        """The weight's gradient for one output gradient, in `out` if given."""
        return torch.mm(output.view(self.shape).T, self.inputs, out=out)


def find_linear(nodes: Iterable[Any], parameters: dict[Any, int], dtype: torch.dtype) -> list[Linear]:
    """The linear layers among the graph's nodes; `parameters` are the places of shared leaves, by their nodes."""
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
        if leaf not in parameters or uses[leaf] > 1 or (kind is _Addmm and node._saved_alpha != 1):
            continue
        inputs = (node._saved_mat1 if kind is _Addmm else node._saved_self).detach()
        if inputs.dtype == dtype:
            found.append(Linear(parameters[leaf], GradientEdge(node, 0), inputs))
    return found
