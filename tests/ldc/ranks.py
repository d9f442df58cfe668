"""What each of two gloo processes runs: three steps of a small model whose router reads features."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

import equipoise as eq

KINDS = ("detached", "attached", "own module", "double loop")


class OwnRouter(nn.Module):
    """A user's router whose weights are means over the batch."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, features):
        return self.linear(features).sigmoid().mean(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.heads = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        features = self.trunk(x).tanh()
        return self.heads(features), features


def run(kind, rank):
    """Three SGD steps on this rank's rows of eight, or on all of them (rank None)."""
    even = kind in ("own module", "double loop")  # these take equal shares; the others 6 and 2 rows, by `counts`
    rows = {None: slice(None), 0: slice(0, 4 if even else 6), 1: slice(4 if even else 6, 8)}[rank]
    torch.manual_seed(3)
    x, y = torch.randn(8, 3).double()[rows], torch.randn(8, 2).double()[rows]
    model = Model().double()
    torch.manual_seed(rank or 0)  # routers seeded differently: rank 0's is everybody's
    router = OwnRouter() if kind == "own module" else eq.FeatureRouter(4, 2)
    options = {"router": router, "router_objective": "both", "normalize": None, "detach_features": kind != "attached"}
    if kind == "double loop":
        balancer = eq.DoubleLoopLDC(2, inner_lr=0.1, inner_steps=4, **options).double()
    else:
        balancer = eq.LDC(2, **options).double()
    params, own = dict(model.named_parameters()), list(balancer.parameters())

    def closure(given):
        prediction, features = torch.func.functional_call(model, given, x)
        return (prediction - y).square().mean(0), features

    norms = []
    for _ in range(3):
        model.zero_grad()
        balancer.zero_grad()
        if kind == "double loop":
            balancer.backward(closure, params)
            norms.append(torch.stack(list(balancer.status.values())))
        else:
            losses, features = closure(params)
            balancer(losses, features, counts=[float(len(x))] * 2).backward()
            if rank is not None:  # what DDP does for the model, and a user for a router of their own
                for p in [*model.parameters(), *(own if kind == "own module" else [])]:
                    dist.all_reduce(p.grad)
                    p.grad /= 2
        with torch.no_grad():
            for p in [*model.parameters(), *own]:
                p -= 0.1 * p.grad
    return {
        "model": torch.cat([p.detach().flatten() for p in model.parameters()]),
        "router": torch.cat([p.detach().flatten() for p in own]),
        "router gradient": torch.cat([p.grad.flatten() for p in own]),
        "norms": torch.stack(norms) if norms else torch.zeros(0),
    }


def work(rank, port, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2, timeout=timedelta(seconds=60))
    torch.save({kind: run(kind, rank) for kind in KINDS}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()
