"""A training step of Algorithm 1, which asks for the losses as a function of the parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from equipoise.ldc.double_loop import DoubleLoopLDC
from equipoise.suites.suite import Suite


class _Losses(nn.Module):
    """A suite's losses as a module's forward, for `functional_call`."""

    def __init__(self, suite: Suite, model: nn.Module) -> None:
        super().__init__()
        self.suite = suite
        self.model = model

    def forward(self, batch: Any) -> Any:
        return self.suite.losses(self.model, batch)


def double_loop_backward(suite: Suite, model: nn.Module, balancer: DoubleLoopLDC, batch: Any) -> Any:
    """Leave Algorithm 1's gradients on the model and the router; returns the losses at the model itself."""
    module = _Losses(suite, model)
    seen: list[Any] = []

    def closure(params: dict[str, Tensor]) -> Any:
        losses, shared = torch.func.functional_call(module, params, (batch,))
        if not seen:  # the first look is at the model, the others at the copy
            seen.append(losses)
        return losses, shared

    balancer.backward(closure, {**dict(module.named_parameters()), **dict(module.named_buffers())})
    return seen[0]
