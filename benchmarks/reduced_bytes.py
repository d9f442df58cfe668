"""What a step adds up over 64 GPUs, in bytes: counted, not computed, in a process group of 64 ranks of which one runs.

Each method takes a step on the network of `thousand_tasks.py`; what it hands to `all_reduce` is counted, besides the
gradients of the model, which data parallel training adds up for every method, plain summing among them.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import equipoise as eq
from mlp import OPTIONS, Net

RANKS = 64
METHODS = [
    ("ldc", "losses"), ("famo", "losses"), ("mgda", "features"), ("mgda", "parameters"), ("graddrop", "features"),
]  # fmt: skip


@contextlib.contextmanager
def ranks() -> Iterator[list[int]]:
    """A group of 64 that moves nothing, and the bytes of each sum it was asked for."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    asked: list[int] = []
    plain = dist.all_reduce

    def counting(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
        asked.append(tensor.numel() * tensor.element_size())
        return plain(tensor, *args, **options)

    dist.all_reduce = counting
    try:
        yield asked
    finally:
        dist.all_reduce = plain
        dist.destroy_process_group()


def bytes_of(method: str, at: str, num_tasks: int) -> int:
    """Bytes that the second step of a method adds up over the ranks."""
    torch.manual_seed(0)
    net = Net(num_tasks)
    balancer = eq.make(method, num_tasks, **OPTIONS.get(method, {}))
    x, y = torch.randn(2, 64), list(torch.randn(num_tasks, 2, 1))
    with ranks() as asked, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            asked.clear()
            features = net.trunk(x)
            losses = [torch.nn.functional.mse_loss(head(features), t) for head, t in zip(net.heads, y, strict=True)]
            shared = {"losses": None, "features": features, "parameters": list(net.trunk.parameters())}[at]
            balancer(losses, shared).backward()
            if balancer.needs_after_step:
                balancer.after_step([loss.detach() for loss in losses])
        return sum(asked)


def trunk_size() -> int:
    return sum(p.numel() for p in Net(1).trunk.parameters())


def model_bytes(num_tasks: int) -> int:
    """What data parallel training adds up anyway: float32 gradients of every parameter."""
    return 4 * sum(p.numel() for p in Net(num_tasks).parameters())


def expected(at: str, num_tasks: int, trunk: int, looks: int = 1) -> int:
    """The same as a formula: losses and counts, float64 Gram matrix at features, float32 gradients of parameters."""
    return 8 * num_tasks * looks + {"losses": 0, "features": 8 * num_tasks**2, "parameters": 4 * num_tasks * trunk}[at]


def counted(tasks: list[int]) -> list[dict[str, Any]]:
    """A row for each method and number of tasks; the formula is checked against every one of them."""
    rows = []
    for num_tasks in tasks:
        for method, at in METHODS:
            found = bytes_of(method, at, num_tasks)
            looks = 2 if method == "famo" else 1
            known = expected(at, num_tasks, trunk_size(), looks)
            if found != known:
                raise ValueError(f"{method} at {at} must add up {known} bytes for K = {num_tasks}; found {found}.")
            rows.append({"K": num_tasks, "method": method, "at": at, "bytes": found, "model": model_bytes(num_tasks)})
    return rows


if __name__ == "__main__":
    for row in counted([10, 100]):
        print(row)
