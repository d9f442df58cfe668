"""What is each run's own in a fleet's step: its balancer, asked beside the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from equipoise.balancer import Balancer
from equipoise.registry import make
from equipoise.runs.config import RunConfig

_STREAMS = 8
#: A run's losses from its heads' row and its features, by the number of the run.
LossesOf: TypeAlias = Callable[[int, Tensor, Tensor], Tensor]


class Answer(NamedTuple):
    """What a balancer says of a run's step: the gradients of its losses or, if it works at the features, of these."""

    losses: Tensor
    own: list[Tensor]
    shared: Tensor | None = None
    heads: Tensor | None = None


class Sides:
    """The balancers of R runs, and all their own parameters side by side in `own`."""

    def __init__(self, configs: Sequence[RunConfig], tasks: Sequence[str], device: torch.device) -> None:
        self.device = device
        self.balancers: list[Balancer] = []
        for config in configs:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(config.seed)
                self.balancers.append(make(config.method, tasks=tasks, **config.options).to(device))
        own = [list(balancer.parameters()) for balancer in self.balancers]
        self.own_counts = [sum(p.numel() for p in parameters) for parameters in own]
        flat = [p.detach().reshape(-1) for parameters in own for p in parameters]
        self.own = torch.cat(flat) if flat else torch.zeros(0, device=device)
        at = 0
        for parameter in (p for parameters in own for p in parameters):
            parameter.data = self.own[at : at + parameter.numel()].view(parameter.shape)
            at += parameter.numel()
        self._streams = [stream(device) for _ in range(_STREAMS)] if device.type == "cuda" else []

    def answers(self, losses: Tensor, shared: Tensor, heads: Tensor, losses_of: LossesOf) -> list[Answer]:
        """Every balancer's answer; on a GPU side by side, since each is a chain of tiny kernels.

        losses ``[R, T]``, shared ``[R, B, 64]`` and heads ``[R, ...]``, all detached.
        """
        for side in self._streams:
            side.wait_stream(torch.cuda.current_stream(self.device))
        answers = []
        for run, balancer in enumerate(self.balancers):
            with torch.cuda.stream(self._streams[run % _STREAMS]) if self._streams else nullcontext():
                if balancer.needs_shared:
                    answers.append(_ask_with_features(balancer, run, shared[run], heads[run], losses_of))
                else:
                    answers.append(_ask(balancer, losses[run]))
        for side in self._streams:
            torch.cuda.current_stream(self.device).wait_stream(side)
        return answers


def stream(device: torch.device | str) -> torch.cuda.Stream:
    """A new stream of the device."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _ask(balancer: Balancer, losses: Tensor) -> Answer:
    leaf = losses.requires_grad_()
    d_losses, *own = _gradients(balancer(leaf), [leaf, *balancer.parameters()])
    return Answer(d_losses, own)


def _ask_with_features(balancer: Balancer, run: int, shared: Tensor, heads: Tensor, losses_of: LossesOf) -> Answer:
    """By the run's own graph from features to losses, which a gradient method walks."""
    leaf, heads = shared.requires_grad_(), heads.requires_grad_()
    losses = losses_of(run, heads, leaf)
    d_shared, d_heads, *own = _gradients(balancer(losses, shared=leaf), [leaf, heads, *balancer.parameters()])
    return Answer(torch.zeros_like(losses), own, d_shared, d_heads)


def _gradients(scalar: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """The scalar's gradients, zeros where it does not depend on an input."""
    return list(torch.autograd.grad(scalar, inputs, allow_unused=True, materialize_grads=True))
