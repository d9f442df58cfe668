"""What a training step costs on a GPU beside plain summing: time eager, time as a CUDA graph, memory."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import equipoise as eq
import harness
from mlp import OPTIONS, Net, loss_only, plain_sum

GRADIENT = ["mgda", "pcgrad", "cagrad", "imtl-g", "nash-mtl", "fairgrad", "aligned-mtl"]
ROUNDS = {2: 15, 10: 15, 40: 7}  # more tasks, longer steps
FEW = 3
COLUMNS = ["ms", "eager", "CUDA graph", "MiB beyond summing"]


def costs_at(num_tasks: int) -> list[dict[str, Any]]:
    """A row of `COLUMNS` for summing and each method."""
    torch.manual_seed(0)
    net = Net(num_tasks).cuda()
    x, y = torch.randn(256, 64).cuda(), [t.cuda() for t in torch.randn(num_tasks, 256, 1)]
    cheap = [method for method in loss_only() if method != "famo"]
    methods = [*cheap, *GRADIENT] if num_tasks <= 40 else ["ldc", "ls", "uw", "mgda", "fairgrad"]
    rounds = ROUNDS.get(num_tasks, FEW)

    def step(method: str) -> Callable[[], None]:
        if method == "sum":
            return stepper(net, x, y, lambda losses, _: plain_sum(losses), [])
        balancer = eq.make(method, num_tasks, **OPTIONS.get(method, {})).cuda()
        return stepper(net, x, y, balancer, list(balancer.parameters()))

    memory = {name: peak(lambda name=name: step(name), net) for name in ["sum", *methods]}
    contenders = {name: step(name) for name in ["sum", *methods]}
    eager = harness.compare(step("sum"), contenders, rounds)
    replays = {name: harness.captured(contenders[name]).replay for name in contenders if name not in GRADIENT}
    graphs = {t.name: t for t in harness.compare(harness.captured(step("sum")).replay, replays, rounds, repeat=5)}
    return [
        {
            "K": num_tasks,
            "method": timing.name,
            "ms": f"{timing.milliseconds:.2f}",
            "eager": str(timing),
            "CUDA graph": str(graphs[timing.name]) if timing.name in graphs else "",
            "MiB beyond summing": f"{(memory[timing.name] - memory['sum']) / 2**20:.1f}",
        }
        for timing in eager
    ]


def stepper(
    net: Net,
    x: Tensor,
    y: list[Tensor],
    combine: Callable[[list[Tensor], Tensor], Tensor],
    own: list[nn.Parameter],
) -> Callable[[], None]:
    optimizer = torch.optim.Adam([*net.parameters(), *own], lr=1e-4, fused=True, capturable=True)

    def step() -> None:
        optimizer.zero_grad()
        features = net.trunk(x)
        losses = [nn.functional.mse_loss(head(features), target) for head, target in zip(net.heads, y, strict=True)]
        combine(losses, features).backward()
        optimizer.step()

    return step


def peak(make: Callable[[], Callable[[], None]], net: Net) -> int:
    """Bytes at the peak of a step, with what the optimizer and the balancer hold, beyond the network and its batch."""
    net.zero_grad()
    gc.collect()
    before = torch.cuda.memory_allocated()
    step = make()
    for _ in range(2):
        step()
    torch.cuda.reset_peak_memory_stats()
    step()
    return torch.cuda.max_memory_allocated() - before
