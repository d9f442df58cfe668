"""`shared=` given once, as a module: its outputs are caught as they leave it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


class Capture:
    """A forward hook that remembers the tensors a module returned since they were last taken.

    Copies and pickles are empty, and catch nothing until `resume`: a module that was copied alone (an average of the
    weights) has nobody who takes what it returns; one that was copied with its balancer goes on as before.
    """

    def __init__(self, was_attached: bool = False) -> None:
        self.outputs: list[Tensor] = []
        self.attached = False
        self._was_attached = was_attached

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

    def resume(self) -> None:
        """Catch as the original did: whom it works for was copied too."""
        self.attached = self._was_attached

    def __deepcopy__(self, memo: dict[int, Any]) -> Capture:
        return Capture(self.attached or self._was_attached)

    def __reduce__(self) -> tuple[type[Capture], tuple[bool]]:
        return Capture, (self.attached or self._was_attached,)


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
