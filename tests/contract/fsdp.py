"""What each of two processes runs: a few steps of the rows of the table with every parameter sharded."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from contract.ddp import STEPS
from contract.table import CASES, K, Problem, Row

# Samples of the eight on the first rank: as many as on the second, or more, which `counts` tells.
CUTS = {"all": 4, "uneven": 6}
# The first row of each method: options do not change what is shared out.
FIRST = {row.name: row for row, _ in reversed(CASES)}
RUNS = [
    (row, where, scenario)
    for row, where in CASES
    for scenario in CUTS
    if FIRST[row.name] is row and where != "parameters" and row.ddp_at_features and row.name != "ldc-double"
]


def shard(net: nn.Module) -> nn.Module:
    """FSDP2 around every layer of the trunk, every head, and the whole."""
    for part in [*net.trunk, *net.heads]:
        if list(part.parameters()):
            fully_shard(part)
    return fully_shard(net)


def train(row: Row, where: str, scenario: str, rank: int | None) -> dict[str, Any]:
    """Three SGD steps on this rank's part of each batch, sharded, or on the whole (rank None)."""
    torch.manual_seed(0)
    balancer, problem = row.make(), Problem(samples=8)
    net = problem.net if rank is None else shard(problem.net)
    cut = CUTS[scenario]
    rows = {None: slice(None), 0: slice(cut), 1: slice(cut, None)}[rank]
    counts = [float(len(problem.x[0][rows]))] * K if scenario == "uneven" else None
    trace = []

    def losses(step: int) -> tuple[Tensor, Tensor]:
        features, prediction = net(problem.x[step][rows])
        return (prediction - problem.y[step][rows]).square().mean((0, 2)), features

    for step in range(STEPS):
        balancer.start_epoch()
        problem.clear(balancer)
        values, features = losses(step)
        balancer(values, problem.shared(where, features), counts=counts).backward()
        with torch.no_grad():
            for p in [*problem.net.parameters(), *balancer.parameters()]:
                if p.grad is not None:
                    p -= 0.05 * p.grad
            if balancer.needs_after_step:
                balancer.after_step(losses(step)[0], counts=counts)
        trace.append(balancer.weights)
    return {"net": {n: full(p) for n, p in problem.net.named_parameters()}, "weights": torch.stack(trace)}


def full(parameter: Tensor) -> Tensor:
    whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
    return whole.detach().clone()
