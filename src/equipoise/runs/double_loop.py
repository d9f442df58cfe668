"""A training step of Algorithm 1, which asks for the losses as a function of the parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from equipoise.ldc.double_loop import DoubleLoopLDC


def double_loop_backward(losses_of: nn.Module, balancer: DoubleLoopLDC, batch: Any) -> Any:
    """Leave Algorithm 1's gradients on the model and the router; returns the losses at the model itself.

    losses_of: the model under its losses: called with a batch, it returns them and the shared representation.
    """
    seen: list[Any] = []

    def closure(params: dict[str, Tensor]) -> Any:
        losses, shared = torch.func.functional_call(losses_of, params, (batch,))
        if not seen:  # the first look is at the model, the others at the copy
            seen.append(losses)
        return losses, shared

    balancer.backward(closure, {**dict(losses_of.named_parameters()), **dict(losses_of.named_buffers())})
    return seen[0]
