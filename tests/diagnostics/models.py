"""A small network with everything that a look might disturb, and its losses."""

from __future__ import annotations

import torch
from torch import Tensor, nn

TASKS = ("near", "far", "odd")


class Net(nn.Module):
    """A trunk with BatchNorm and dropout; three heads, of which the second's losses are a hundred times as large."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.trunk = nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.2))
        self.heads = nn.ModuleList(nn.Linear(16, 2) for _ in TASKS)
        self.x, self.y = torch.randn(12, 5), torch.randn(3, 12, 2)
        self.runs = 0

    def losses(self) -> tuple[dict[str, Tensor], Tensor]:
        self.runs += 1
        features = self.trunk(self.x)
        sizes = (1.0, 100.0, 1.0)
        found = {
            task: size * (head(features) - target).square().mean()
            for task, head, target, size in zip(TASKS, self.heads, self.y, sizes, strict=True)
        }
        return found, features


def jacobian(losses: dict[str, Tensor], at: list[Tensor]) -> Tensor:
    """One row a task, by plain autograd."""
    rows = [torch.autograd.grad(loss, at, retain_graph=True, materialize_grads=True) for loss in losses.values()]
    return torch.stack([torch.cat([part.flatten().double() for part in row]) for row in rows])


def everything(net: Net) -> list[Tensor]:
    """Copies of all that must not change: parameters, gradients, buffers, random numbers."""
    kept = [*net.state_dict().values(), torch.get_rng_state()]
    kept += [torch.zeros(0) if p.grad is None else p.grad for p in net.parameters()]
    return [tensor.detach().clone() for tensor in kept]


def same(before: list[Tensor], after: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def train(net, balancer, steps, shared=True, lr=1e-2):
    optimizer = torch.optim.Adam([*net.parameters(), *balancer.parameters()], lr=lr)
    for _ in range(steps):
        losses, features = net.losses()
        optimizer.zero_grad()
        balancer(losses, shared=features if shared else None).backward()
        optimizer.step()


def kinds(monitor):
    """The kinds of what a monitor has found."""
    return [finding.kind for finding in monitor.report().findings]
