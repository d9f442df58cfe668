"""What the pictures of "LDC explained" show: the library run on losses that stand still, and on real molecules."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.suites.qm9 import TASKS, load_sample

Pairs = str | Sequence[Sequence[int]]


def route(losses: Tensor, steps: int, lr: float = 1e-2, seed: int = 0, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Adam on the router alone while the losses stand still: each step's weights, d scalar / d loss, and logits."""
    torch.manual_seed(seed)
    balancer = eq.LDC(len(losses), normalize=None, **options)
    optimizer = torch.optim.Adam(balancer.parameters(), lr=lr)
    still = losses.clone().requires_grad_()
    weights, pulls, logits = [], [], []
    for _ in range(steps):
        optimizer.zero_grad()
        still.grad = None
        balancer(still).backward()
        weights.append(balancer.weights)
        pulls.append(still.grad)
        logits.append(balancer.router.logits.detach().clone())
        optimizer.step()
    return torch.stack(weights), torch.stack(pulls), torch.stack(logits)


def discrepancy(losses: Tensor, pairs: Pairs) -> float:
    """f of losses as they are: what a unit of `discrepancy` adds to the scalar."""
    scalars = []
    for factor in (0.0, 1.0):
        balancer = eq.LDC(len(losses), router=None, router_objective="both", tau="ones", normalize=None, pairs=pairs,
                          discrepancy=factor)  # fmt: skip
        scalars.append(balancer(losses.clone().requires_grad_()).item())
    return scalars[1] - scalars[0]


def share_of_smaller(**form: float) -> float:
    """What part of the pull on two losses the smaller one gets, with equal weights."""
    losses = torch.tensor([1.0, 2.0], requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # penalty below 1 is warned of: this picture is why
        balancer = eq.LDC(2, router=None, router_objective="both", tau="ones", normalize=None, **form)
    balancer(losses).backward()
    return (losses.grad[0] / losses.grad.sum()).item()


def molecule_losses(names: Sequence[str], batch: int, epochs: int) -> Tensor:
    """Squared errors in the targets' own units while a small network learns from 2,000 molecules of QM9."""
    torch.manual_seed(0)
    sample = load_sample().take(np.arange(2000))
    counts = np.zeros((len(sample), 8))
    np.add.at(counts, (np.repeat(np.arange(len(sample)), sample.atoms), sample.element), 1)
    np.add.at(counts, (np.repeat(np.arange(len(sample)), sample.bonds), 4 + sample.order), 1)
    targets = sample.targets()[:, [TASKS.index(name) for name in names]]
    x = torch.tensor((counts - counts.mean(0)) / counts.std(0), dtype=torch.float32)
    y, unit = torch.tensor(targets - targets.mean(0)).float(), torch.tensor(targets.std(0)).float()
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, len(names)))
    balancer = eq.LDC(len(names))
    optimizer = torch.optim.Adam([*model.parameters(), *balancer.parameters()], lr=3e-3)
    seen = []
    for _ in range(epochs):
        balancer.start_epoch()
        for rows in torch.randperm(len(x)).split(batch):
            losses = (model(x[rows]) * unit - y[rows]).square().mean(0)
            optimizer.zero_grad()
            balancer(losses).backward()
            optimizer.step()
            seen.append(losses.detach())
    return torch.stack(seen)
