"""`shared=` given once, as a module: its outputs are caught as they leave it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


class Capture:
    """A forward hook that remembers the tensors a module returned since they were last taken.

    Copies and pickles are empty and attached to nothing: they belong to another model.
    """

    def __init__(self) -> None:
        self.outputs: list[Tensor] = []
        self.attached = False

    def attach(self, module: nn.Module) -> None:
        module.register_forward_hook(self)
        self.attached = True

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> None:  # noqa: ARG002 (hook signature)
        if self.attached and torch.is_grad_enabled():
            self.outputs.extend(tensor for tensor in tensors_in(output) if tensor.requires_grad)

    def take(self) -> list[Tensor]:
        """The outputs since the last call, which are then forgotten."""
        outputs, self.outputs = self.outputs, []
        return outputs

    def __deepcopy__(self, memo: dict[int, Any]) -> Capture:
        return Capture()

    def __reduce__(self) -> tuple[type[Capture], tuple[()]]:
        return Capture, ()


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """Every tensor in nested sequences, mappings and dataclass-like outputs."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, dict):
        for branch in tree.values():
            yield from tensors_in(branch)
    elif isinstance(tree, (list, tuple)):
        for branch in tree:
            yield from tensors_in(branch)
