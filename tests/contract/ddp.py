"""What each of two processes runs: a few steps of every row of the table under DDP."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from contract.table import CASES, K, Problem, Row

SAMPLES = 8
STEPS = 3
# In "absent", task 1 has no labels on rank 1; in "uneven", rank 1 has two samples of the eight and says so by `counts`.
CUTS = {"all": 4, "absent": 4, "uneven": 6}
RUNS = [
    (row, where, scenario) for row, where in CASES for scenario in CUTS if where != "features" or row.ddp_at_features
]


def train(row: Row, where: str, scenario: str, rank: int | None) -> dict[str, Any]:
    """Three SGD steps on this rank's part of each batch, or on the whole (rank None)."""
    torch.manual_seed(0 if rank is None else rank)  # ranks seeded differently; one process like rank 0
    balancer, problem = row.make(), Problem(samples=SAMPLES)
    net = problem.net if rank is None else DistributedDataParallel(problem.net)
    cut = CUTS[scenario]
    rows = {None: slice(None), 0: slice(cut), 1: slice(cut, None)}[rank]
    counts = [float(len(problem.x[0][rows]))] * K if scenario == "uneven" else None
    trace = []

    def losses(step: int) -> tuple[Tensor, Tensor]:
        features, prediction = net(problem.x[step][rows])
        errors = (prediction - problem.y[step][rows]).square().mean(-1)
        if scenario == "absent" and rank is None:
            errors = torch.cat([errors[:, :1], errors[:cut, 1:2].repeat(2, 1), errors[:, 2:]], 1)
        return errors.mean(0), features

    present = [True, scenario != "absent" or rank != 1, True]
    for step in range(STEPS):
        if step % 2 == 0:
            balancer.start_epoch()
        problem.clear(balancer)
        values, features = losses(step)
        balancer(values, problem.shared(where, features), present=present, counts=counts).backward()
        gradients = problem.left(balancer)
        with torch.no_grad():
            for p in [*problem.net.parameters(), *balancer.parameters()]:
                if p.grad is not None:
                    p -= 0.05 * p.grad
            if balancer.needs_after_step:
                balancer.after_step(losses(step)[0], present=present, counts=counts)
        trace.append(balancer.weights)
    found = {
        "net": {n: p.detach().clone() for n, p in problem.net.named_parameters()},
        "balancer": {n: t for n, t in balancer.state_dict().items() if n != "skipped"},
        "gradients": gradients,
        "weights": torch.stack(trace),
    }
    if rank != 1:  # the first rank alone evaluates its part: nobody answers if it asks
        balancer.eval()
        features, prediction = problem.net(problem.x[0][:cut])
        values = (prediction - problem.y[0][:cut]).square().mean((0, 2))
        found["evaluation"] = balancer(values, problem.shared(where, features)).detach()
        with torch.no_grad():
            found["validation"] = balancer(values.detach())
    return found
