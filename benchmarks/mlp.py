"""The network the step benchmarks share: a trunk 64-512-512-512-256 and K heads, on a batch of 256."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

import equipoise as eq

# What a method needs to be timed over a few steps.
OPTIONS: dict[str, dict[str, Any]] = {"dwa": {"epoch_steps": 20}, "stch": {"epoch_steps": 20, "warmup": 0}}


class Net(nn.Module):
    def __init__(self, num_tasks: int) -> None:
        super().__init__()
        widths = (64, 512, 512, 512, 256)
        layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
        self.trunk = nn.Sequential(*layers)
        self.heads = nn.ModuleList(nn.Linear(256, 1) for _ in range(num_tasks))

    def losses(self, x: Tensor, y: Tensor) -> list[Tensor]:
        features = self.trunk(x)
        return [nn.functional.mse_loss(head(features), target) for head, target in zip(self.heads, y, strict=True)]


def plain_sum(losses: list[Tensor]) -> Tensor:
    return torch.stack(losses).sum()


def loss_only() -> list[str]:
    """The registry's methods that read nothing but the losses and return a scalar to call backward on."""
    return [name for name in eq.methods() if name != "ldc-double" and not eq.make(name, 2).needs_shared]
