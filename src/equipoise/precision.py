"""Autocast is for the model: what a balancer computes stays exact inside it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """Autocast off, where it is on: trainers call balancers inside it, and weights are no place for 8 bits.

    >>> import torch
    >>> from equipoise.precision import full_precision
    >>> with torch.autocast("cpu", torch.bfloat16), full_precision(torch.device("cpu")):
    ...     (torch.ones(1, 1) @ torch.ones(1, 1)).dtype
    torch.float32
    """
    if not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
