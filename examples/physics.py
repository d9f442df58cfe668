"""A physics-informed network with three losses: the equation inside, the boundary, a few measurements.

Helmholtz's equation, laplacian(u) + u = q on the square [-1, 1]^2 with u = sin(pi x) sin(2 pi y), which is also the
reference the error is measured against. The residual's loss starts thousands of times above the other two: summed,
the network solves an equation without its boundary values. No data are needed. Six seconds a run:

    python examples/physics.py
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import equipoise as eq
from show import arguments, compare, dots, save, table

METHODS = {
    "LS": eq.LS,
    "LS, tuned": lambda tasks: eq.LS(tasks, weights=(1, 1000, 1000)),  # of 1 to 10,000 on seed 100
    "SI": eq.SI,
    "UW": eq.UW,
    "FAMO": lambda tasks: eq.FAMO(tasks, second_look="next"),
    "FairGrad": eq.FairGrad,
    "LDC": eq.LDC,
    "LDC, raw losses": lambda tasks: eq.LDC(tasks, normalize=None),
}
STEPS, INSIDE, EDGE, SENSORS = 1500, 256, 128, 20


def solution(points: Tensor) -> Tensor:
    return torch.sin(math.pi * points[:, 0]) * torch.sin(2 * math.pi * points[:, 1])


def residual(model: nn.Module, points: Tensor) -> Tensor:
    """laplacian(u) + u - q; q makes `solution` solve it: (1 - 5 pi^2) times the solution."""
    points = points.requires_grad_()
    u = model(points)[:, 0]
    (slope,) = torch.autograd.grad(u.sum(), points, create_graph=True)
    curvature = [torch.autograd.grad(slope[:, d].sum(), points, create_graph=True)[0][:, d] for d in range(2)]
    return sum(curvature) + u - (1 - 5 * math.pi**2) * solution(points)


def edge(points: int) -> Tensor:
    """Random points on the four sides."""
    along, side = 2 * torch.rand(points) - 1, torch.randint(2, (points,)) * 2.0 - 1
    swap = torch.rand(points) < 0.5
    return torch.stack([torch.where(swap, along, side), torch.where(swap, side, along)], 1)


def train(method: str, steps: int = STEPS) -> dict[str, float]:
    layers = [nn.Linear(2, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Linear(48, 1))
    balancer = METHODS[method](3)
    optimizer = torch.optim.Adam([*model.parameters(), *balancer.parameters()], lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    sensors = 2 * torch.rand(SENSORS, 2) - 1
    measured = solution(sensors) + 0.01 * torch.randn(SENSORS)  # a hundredth of noise, as sensors have
    for _ in range(steps):
        losses = [
            residual(model, 2 * torch.rand(INSIDE, 2) - 1).square().mean(),
            model(edge(EDGE)).square().mean(),
            (model(sensors)[:, 0] - measured).square().mean(),
        ]
        optimizer.zero_grad()
        balancer(losses, shared=list(model.parameters())).backward()
        optimizer.step()
        schedule.step()
    axis = torch.linspace(-1, 1, 101)
    grid = torch.cartesian_prod(axis, axis)
    with torch.no_grad():
        wrong, right = model(grid)[:, 0] - solution(grid), solution(grid)
    return {
        "relative error of u": (wrong.norm() / right.norm()).item(),
        "residual (rms)": losses[0].sqrt().item(),
        "boundary (rms)": losses[1].sqrt().item(),
    }


def main() -> None:
    options = arguments(__doc__)
    steps, seeds = (3, 1) if options.smoke else (STEPS, options.seeds)
    results = compare(lambda method, seed: train(method, steps), list(METHODS), seeds)  # noqa: ARG005
    print(table(results))
    if options.figure:
        save(dots(results), options.figure)


if __name__ == "__main__":
    main()
