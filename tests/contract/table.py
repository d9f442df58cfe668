"""The table of the contract test: a new method joins with one row; and the small problem they are all put to."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import equipoise as eq

K = 3


@dataclass(frozen=True)
class Row:
    """A method with options; a function among them is called with the number of tasks.

    reads: what the method is given as `shared`, where it needs any.
    ddp_at_features: whether several ranks at a representation equal one process (the docstring says where not).
    order_shows: whether the problem below conflicts enough for the order of tasks to matter where it may.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    reads: tuple[str, ...] = ("features", "parameters")
    ddp_at_features: bool = True
    order_shows: bool = True

    def __str__(self) -> str:
        return "-".join([self.name, *(f"{k}={getattr(v, '__name__', v)}" for k, v in self.options.items())])

    def make(self, num_tasks: int = K, **more: Any) -> eq.Balancer:
        options = {k: v(num_tasks) if callable(v) else v for k, v in self.options.items()}
        if num_tasks != K and "weights" in options:
            options["weights"] = options["weights"][:num_tasks]
        return eq.make(self.name, None if "tasks" in more else num_tasks, **options, **more)


def feature_router(num_tasks: int) -> eq.FeatureRouter:
    return eq.FeatureRouter(in_features=6, num_tasks=num_tasks, hidden=4)


def uneven_leak(num_tasks: int) -> tuple[float, ...]:
    return (0.1, 0.5, 0.0)[:num_tasks]


ROWS = [
    Row("ldc"),
    Row("ldc", {"pairs": "all"}),
    Row("ldc", {"pairs": "shuffle", "router": "sigmoid", "router_objective": "both"}),
    Row("ldc", {"penalty": 20.0, "normalize": "log", "router_objective": "both", "floor": 0.1}),
    Row("ldc", {"router": None, "tau": "ones", "normalize": None, "smooth": 0.01, "router_objective": "both"}),
    Row("ldc", {"router": "softmax-clamped", "normalize": "ratio", "divide": "attached"}),
    Row("ldc", {"router": feature_router}, reads=("features",)),
    Row("ldc-double", {"inner_lr": 0.05, "inner_steps": 2}),
    Row("ls"),
    Row("ls", {"weights": (0.2, 1.0, 3.0)}),
    Row("si"),
    Row("rlw"),
    Row("dwa"),
    Row("dwa", {"epoch_steps": 1}),
    Row("uw"),
    Row("famo"),
    Row("famo", {"second_look": "next"}),
    Row("go4align"),
    Row("go4align", {"groups": 3}),
    Row("gls"),
    Row("stch"),
    Row("stch", {"warmup": 0}),
    Row("stl"),
    Row("graddrop", {"seed": 3}, ddp_at_features=False),
    Row("graddrop", {"seed": 3, "leak": uneven_leak, "heads": "weighted"}, ddp_at_features=False),
    Row("moco"),
    Row("moco", {"form": "libmtl", "rho": 0.1}),
    Row("dbmtl"),
    Row("gradnorm"),
    Row("mgda"),
    Row("mgda", {"normalize": "l2", "heads": "sum"}),
    Row("mgda", {"normalize": "loss"}),
    Row("pcgrad", order_shows=False),
    Row("cagrad"),
    Row("cagrad", {"c": 0.8, "rescale": 0}),
    Row("imtl-g"),
    Row("imtl-g", {"heads": "weighted"}),
    Row("nash-mtl"),
    Row("nash-mtl", {"every": 3, "max_norm": None}),
    Row("fairgrad"),
    Row("fairgrad", {"alpha": 0.5, "max_norm": 1.0, "heads": "weighted"}),
    Row("upgrad"),
    Row("aligned-mtl"),
    Row("aligned-mtl", {"scale": "rmse"}),
    Row("dualproj"),
    Row("config"),
]
LOSS_ONLY = [row for row in ROWS if not row.make().needs_shared]
# Every row with what it reads: nothing but losses, the representation, the trunk's parameters.
CASES = [(row, where) for row in ROWS for where in (row.reads if row.make().needs_shared else ["losses"])]
IDS = [f"{row}@{where}" for row, where in CASES]


class Net(nn.Module):
    """A trunk of two layers and a head for each task."""

    def __init__(self, num_tasks: int = K) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh())
        self.heads = nn.ModuleList(nn.Linear(6, 2) for _ in range(num_tasks))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.trunk(x)
        return features, torch.stack([head(features) for head in self.heads], 1)


class Problem:
    """A network, data and an optimizer step, the same for the same seed."""

    def __init__(self, num_tasks: int = K, dtype: torch.dtype = torch.float64, samples: int = 8) -> None:
        generator = torch.Generator().manual_seed(11)
        self.net = Net(num_tasks)
        with torch.no_grad():
            for p in self.net.parameters():
                p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) * 0.6)
        self.net.to(dtype)
        self.x = torch.randn(4, samples, 5, generator=generator, dtype=torch.float64).to(dtype)
        scale = 1.0 + torch.arange(num_tasks)[:, None]
        self.y = (torch.randn(4, samples, num_tasks, 2, generator=generator, dtype=torch.float64) * scale).to(dtype)

    def losses(self, step: int = 0, rows: slice = slice(None)) -> tuple[list[Tensor], Tensor]:
        batch = step % len(self.x)
        features, prediction = self.net(self.x[batch][rows])
        errors = (prediction - self.y[batch][rows]).square()
        return [errors[:, k].mean() for k in range(errors.shape[1])], features

    def shared(self, where: str, features: Tensor) -> Any:
        return {"losses": None, "features": features, "parameters": list(self.net.trunk.parameters())}[where]

    def scalar(self, balancer: eq.Balancer, where: str, step: int = 0, **options: Any) -> Tensor:
        losses, features = self.losses(step)
        return balancer(losses, self.shared(where, features), **options)

    def gradients(self, scalar: Tensor, balancer: eq.Balancer) -> dict[str, Tensor]:
        """What `scalar.backward()` leaves on the network and the balancer, zeros where nothing."""
        self.clear(balancer)
        scalar.backward()
        return self.left(balancer)

    def left(self, balancer: eq.Balancer) -> dict[str, Tensor]:
        named = [*self.net.named_parameters(), *balancer.named_parameters("balancer")]
        return {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in named}

    def clear(self, balancer: eq.Balancer) -> None:
        for p in [*self.net.parameters(), *balancer.parameters()]:
            p.grad = None

    def train(
        self, balancer: eq.Balancer, where: str, steps: Sequence[int], change: Callable[[list[Tensor]], Any] = list
    ) -> list[Tensor]:
        """SGD steps with a new epoch every second step; returns the weights of each."""
        trace = []
        for step in steps:
            if step % 2 == 0:
                balancer.start_epoch()
            losses, features = self.losses(step)
            self.clear(balancer)
            balancer(change(losses), self.shared(where, features)).backward()
            with torch.no_grad():
                for p in [*self.net.parameters(), *balancer.parameters()]:
                    if p.grad is not None:
                        p -= 0.02 * p.grad
                if balancer.needs_after_step:
                    balancer.after_step(change(self.losses(step)[0]))
            trace.append(balancer.weights)
        return trace

    def clone(self) -> Problem:
        return copy.deepcopy(self)


def close(found: Any, expected: Any, tolerance: float = 1e-10) -> None:
    """Equal to `tolerance` relative to the largest entry of each tensor."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in expected:
            close(found[name], expected[name], tolerance)
        return
    if not expected.is_floating_point():
        assert torch.equal(found, expected)
        return
    scale = max(expected.abs().max().item(), 1e-8) if expected.numel() else 1.0
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * scale)


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Equal to the bit."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def warm(row: Row, where: str, steps: int = 3) -> tuple[eq.Balancer, Problem]:
    """A balancer that has seen a few steps."""
    torch.manual_seed(5)
    balancer, problem = row.make(), Problem()
    problem.train(balancer, where, range(steps))
    return balancer, problem
