"""Problems whose task gradients are known."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.gradient.base import Combination, Game, GradientBalancer

ORACLES = Path(__file__).parents[1] / "oracles"


def oracle(name: str) -> dict[str, Any]:
    with np.load(ORACLES / f"{name}.npz") as file:
        return {key: torch.from_numpy(file[key]) if file[key].dtype.kind == "f" else file[key] for key in file.files}


def step(balancer: eq.Balancer, jacobian: Tensor, values: Tensor, where: str = "parameters") -> tuple[Tensor, Tensor]:
    """One step of losses with these values and these gradients at x = 0: what x and the K heads' parameters get."""
    x = nn.Parameter(torch.zeros(jacobian.shape[1], dtype=jacobian.dtype))
    heads = nn.Parameter(torch.ones(len(jacobian), dtype=jacobian.dtype))
    features = x * 1.0
    at = x if where == "parameters" else features
    losses = [row @ at + value * head for row, value, head in zip(jacobian, values, heads, strict=True)]
    balancer(losses, [x] if where == "parameters" else features).backward()
    return x.grad, heads.grad / values


class Fixed(GradientBalancer):
    """A method with coefficients 1, 2, ..., K for the shared tensors and ten times as much for the heads."""

    def __init__(self, num_tasks: int, coefficients: Tensor | None = None, max_norm: float | None = None, **options):
        super().__init__(num_tasks, **options)
        plain = torch.arange(1.0, num_tasks + 1.0, dtype=torch.float64)
        self.coefficients = plain if coefficients is None else coefficients
        self.max_norm = max_norm
        self.games: list[Game] = []

    def combine(self, game: Game) -> Combination:
        self.games.append(game)
        coefficients = self.coefficients.to(game.gram)
        return Combination(coefficients, coefficients * 10.0, self.max_norm)


class Net(nn.Module):
    """A trunk of linear layers and a linear head a task."""

    def __init__(self, num_tasks: int = 3, widths: tuple[int, ...] = (4, 9, 7, 5)) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.Tanh()]
        self.trunk = nn.Sequential(*layers)
        self.heads = nn.ModuleList(nn.Linear(widths[-1], 1) for _ in range(num_tasks))

    def losses(self, features: Tensor) -> list[Tensor]:
        return [(head(features) - k - 1).square().mean() for k, head in enumerate(self.heads)]


def net(num_tasks: int = 3, dtype: torch.dtype = torch.float64, widths: tuple[int, ...] = (4, 9, 7, 5)) -> Net:
    torch.manual_seed(0)
    return Net(num_tasks, widths).to(dtype)


def inputs(samples: int = 6, width: int = 4, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(samples, width, generator=generator, dtype=torch.float64).to(dtype)


def gradients(module: nn.Module) -> list[Tensor | None]:
    """Each parameter's gradient, which is then forgotten."""
    found = [p.grad for p in module.parameters()]
    module.zero_grad()
    return found


def weighted(model: Net, x: Tensor, shared: list[float], heads: list[float]) -> list[Tensor]:
    """The gradients by hand: `shared` weights the tasks on the trunk, `heads` on their heads."""
    losses = model.losses(model.trunk(x))
    trunk = torch.autograd.grad(
        sum(c * loss for c, loss in zip(shared, losses, strict=True)), list(model.trunk.parameters()), retain_graph=True
    )
    rest = torch.autograd.grad(
        sum(h * loss for h, loss in zip(heads, losses, strict=True)), list(model.heads.parameters())
    )
    return [*trunk, *rest]


def close(found: Any, expected: Any, tolerance: float = 1e-12) -> None:
    for one, other in zip(found, expected, strict=True):
        scale = max(other.abs().max().item(), 1e-12)
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance * scale)
