"""What each of two gloo processes runs for test_ddp_wrappers: one scenario after another."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import equipoise as eq
from gradient.helpers import Fixed, Net, inputs, net

STEPS = 3


class Whole(nn.Module):
    """Trunk and heads in one module, as wrappers want it."""

    def __init__(self, model: Net) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        features = self.model.trunk(x)
        return features, [head(features) for head in self.model.heads]


def losses_of(predictions: list[Tensor]) -> list[Tensor | None]:
    return [(prediction - k - 1).square().mean() for k, prediction in enumerate(predictions)]


def without_one(predictions: list[Tensor], rank: int | None) -> list[Tensor | None]:
    """The losses where the second half of the batch, which is rank 1's, has no labels for task 1."""
    losses = losses_of(predictions)
    losses[1] = None if rank == 1 else losses_of([p[:4] for p in predictions])[1]
    return losses


def rows_of(x: Tensor, rank: int | None) -> Tensor:
    return x if rank is None else x.chunk(2)[rank]


def train(scenario: str, rank: int | None) -> dict[str, Any]:
    """Three SGD steps; without a rank, on the whole batch and unwrapped."""
    torch.manual_seed(rank or 0)
    make, where, wrap = SCENARIOS[scenario]

    def look(step: int) -> tuple[Tensor, list[Tensor | None]]:
        features, predictions = whole(rows_of(x + step, rank))
        return features, without_one(predictions, rank) if "absent" in scenario else losses_of(predictions)

    model, x = net(), inputs(8)
    balancer = make(model)
    whole: nn.Module = Whole(model)
    if rank is not None:
        whole = wrap(whole)
    trace = []
    for step in range(STEPS):
        model.zero_grad()
        features, losses = look(step)
        shared = {"features": features, "parameters": list(model.trunk.parameters())}.get(where)
        balancer(losses, shared).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.02 * p.grad
            if balancer.needs_after_step:
                balancer.after_step(look(step)[1])
        trace.append(balancer.weights)
    return {"net": [full(p) for p in model.parameters()], "weights": trace}


def full(parameter: Tensor) -> Tensor:
    whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
    return whole.detach().clone()


def sharded(whole: nn.Module) -> nn.Module:
    """FSDP2 around every layer of the trunk and around the heads."""
    from torch.distributed.fsdp import fully_shard

    for layer in whole.model.trunk:
        if list(layer.parameters()):
            fully_shard(layer)
    return fully_shard(whole)


def trunk_sharded(whole: nn.Module) -> nn.Module:
    """FSDP2 around the trunk; plain data parallel heads."""
    from torch.distributed.fsdp import fully_shard

    fully_shard(whole.model.trunk)
    for p in whole.model.heads.parameters():
        p.register_post_accumulate_grad_hook(_average)
    return whole


def _average(parameter: Tensor) -> None:
    dist.all_reduce(parameter.grad)
    parameter.grad.div_(2)


def unused(whole: nn.Module) -> nn.Module:
    return DistributedDataParallel(whole, find_unused_parameters=True)


def fixed(model: Net, **options: Any) -> eq.Balancer:
    return Fixed(3, **options).double()


def moco(model: Net, **options: Any) -> eq.Balancer:
    return eq.MoCo(3, gamma=0.5, **options).double()


def fixed_graph(whole: nn.Module) -> nn.Module:
    return DistributedDataParallel(whole, static_graph=True)


def ldc(model: Net) -> eq.Balancer:
    return eq.LDC(3).double()


def famo(model: Net) -> eq.Balancer:
    return eq.FAMO(3).double()


def mgda(model: Net, **options: Any) -> eq.Balancer:
    return eq.MGDA(3, **options).double()


SCENARIOS: dict[str, Any] = {
    "static_graph, ldc": (ldc, "losses", fixed_graph),
    "static_graph, famo": (famo, "losses", fixed_graph),
    "find_unused, absent, ldc": (ldc, "losses", unused),
    "find_unused, absent, famo": (famo, "losses", unused),
    "find_unused, absent, mgda": (lambda m: mgda(m, shared=m.trunk), "module", unused),
    "find_unused, absent, mgda, parameters": (mgda, "parameters", unused),
    "low_memory": (lambda m: fixed(m, low_memory=True, heads="weighted"), "parameters", DistributedDataParallel),
    "find_unused": (lambda m: moco(m, shared=m.trunk), "module", unused),
    "fsdp trunk": (moco, "features", trunk_sharded),
    "fsdp trunk, weighted": (lambda m: fixed(m, heads="weighted"), "features", trunk_sharded),
    "fsdp": (moco, "features", sharded),
}


def static_graph(rank: int) -> str:
    model = net()
    whole = DistributedDataParallel(Whole(model), static_graph=True)
    messages = []
    for where, options in (("features", {}), ("parameters", {}), ("module", {"shared": model.trunk})):
        balancer = Fixed(3, **options)
        features, prediction = whole(rows_of(inputs(8), rank))
        shared = {"features": features, "parameters": list(model.trunk.parameters()), "module": None}[where]
        try:
            balancer(losses_of(prediction), shared).backward()
            messages.append("no error")
        except ValueError as error:
            messages.append(str(error))
    return "|".join(messages)


def sharded_parameters(rank: int) -> str:
    model = net()
    _, prediction = sharded(Whole(model))(rows_of(inputs(8), rank))
    try:
        Fixed(3)(losses_of(prediction), model.trunk.parameters())
    except TypeError as error:
        return str(error)
    return "no error"


def work(rank: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2, timeout=timedelta(seconds=60))
    results: dict[str, Any] = {}
    for scenario in SCENARIOS:
        try:
            results[scenario] = train(scenario, rank)
        except Exception as error:
            import traceback

            results[scenario] = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
    results["static_graph"] = static_graph(rank)
    results["sharded parameters"] = sharded_parameters(rank)
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()
