"""The loss-only methods as people write them into their own loop: a few lines each, in the style of nash-mtl."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn


class Peer:
    """`combine` makes a scalar of the losses; `own` are parameters for the optimizer."""

    own: tuple[nn.Parameter, ...] = ()

    def __init__(self, num_tasks: int) -> None:
        self.num_tasks = num_tasks

    def combine(self, losses: list[Tensor]) -> Tensor:
        raise NotImplementedError


class LS(Peer):
    def combine(self, losses: list[Tensor]) -> Tensor:
        return (torch.stack(losses) * torch.ones(self.num_tasks)).sum()


class SI(Peer):
    def combine(self, losses: list[Tensor]) -> Tensor:
        return torch.log(torch.stack(losses)).sum()


class GLS(Peer):
    def combine(self, losses: list[Tensor]) -> Tensor:
        return torch.stack(losses).prod() ** (1 / self.num_tasks)


class RLW(Peer):
    def combine(self, losses: list[Tensor]) -> Tensor:
        weights = torch.softmax(torch.randn(self.num_tasks), dim=-1)
        return (torch.stack(losses) * weights).sum()


class UW(Peer):
    def __init__(self, num_tasks: int) -> None:
        super().__init__(num_tasks)
        self.log_variance = nn.Parameter(torch.zeros(num_tasks))
        self.own = (self.log_variance,)

    def combine(self, losses: list[Tensor]) -> Tensor:
        return (0.5 * (torch.exp(-self.log_variance) * torch.stack(losses) + self.log_variance)).sum()


class DWA(Peer):
    """Windows of 25 steps, looked at on the host at every step."""

    def __init__(self, num_tasks: int) -> None:
        super().__init__(num_tasks)
        self.history = np.ones((50, num_tasks), dtype=np.float32)
        self.weights = np.ones(num_tasks, dtype=np.float32)
        self.step = 0

    def combine(self, losses: list[Tensor]) -> Tensor:
        values = torch.stack(losses)
        self.history = np.concatenate([self.history[1:], values.detach().numpy()[None]])
        if self.step > 25:
            ratio = self.history[25:].mean(0) / self.history[:25].mean(0)
            share = np.exp(ratio / 2.0)
            self.weights = self.num_tasks * share / share.sum()
        self.step += 1
        return (torch.from_numpy(self.weights) * values).mean()


class FAMO(Peer):
    def __init__(self, num_tasks: int) -> None:
        super().__init__(num_tasks)
        self.logits = torch.zeros(num_tasks, requires_grad=True)
        self.optimizer = torch.optim.Adam([self.logits], lr=0.025, weight_decay=0.01)

    def combine(self, losses: list[Tensor]) -> Tensor:
        self.before = torch.stack(losses)
        z = torch.softmax(self.logits, -1)
        excess = self.before + 1e-8
        c = (z / excess).sum().detach()
        return (excess.log() * z / c).sum()

    def second_look(self, losses: list[Tensor]) -> None:
        delta = (self.before + 1e-8).log() - (torch.stack(losses) + 1e-8).log()
        with torch.enable_grad():
            gradient = torch.autograd.grad(torch.softmax(self.logits, -1), self.logits, delta.detach())[0]
        self.optimizer.zero_grad()
        self.logits.grad = gradient
        self.optimizer.step()


class LDC(Peer):
    """Softmax weights, losses over their first values, adjacent gaps: the paper's single loop."""

    def __init__(self, num_tasks: int) -> None:
        super().__init__(num_tasks)
        self.logits = nn.Parameter(torch.zeros(num_tasks))
        self.own = (self.logits,)
        self.first: Tensor | None = None

    def combine(self, losses: list[Tensor]) -> Tensor:
        values = torch.stack(losses)
        if self.first is None:
            self.first = values.detach().clone()
        values = values / self.first
        weights = torch.softmax(self.logits, -1)
        weighted = weights * values
        gaps = (weighted[1:] - weighted[:-1]).abs().sum()
        return (weights.detach() * values).sum() + 0.1 * gaps


BY_HAND: dict[str, type[Peer]] = {
    "ls": LS, "si": SI, "gls": GLS, "rlw": RLW, "uw": UW, "dwa": DWA, "famo": FAMO, "ldc": LDC,
}  # fmt: skip
