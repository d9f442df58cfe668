"""What `eq.Monitor` at its default adds to a training step, and what a look costs by itself.

The same step (trunk 64-512-512-512-256, K heads, batch 64, Adam, one thread) with a watched balancer and with one
that nobody watches. Both stretches are as long as the monitor's stride, so each holds one look, and they take turns
(plain, watched, watched, plain). A busy machine cannot tell a hundredth of a step by that, so what the monitor adds
is also timed inside it: its hook in steps between looks, its looks, and all of that over the whole training.

    python benchmarks/monitor.py --rounds 5
    python benchmarks/monitor.py --quick     # one round of the first setting, printed only
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import equipoise as eq
import harness
from mlp import Net

EVERY = 100  # the default
BATCH, LENGTH = 64, 500
SETTINGS = [
    ("ldc", 3, "features"),
    ("ldc", 40, "features"),
    ("ldc", 3, "parameters"),
    ("uw", 40, "losses"),
    ("mgda", 40, "features"),
]


@dataclass
class Watched:
    """A network with a balancer, and a training step of it; `monitor` is None where nobody watches."""

    step: Callable[[], None]
    monitor: eq.Monitor | None
    balancer: eq.Balancer


def problem(method: str, num_tasks: int, where: str, *, watched: bool) -> Watched:
    torch.manual_seed(0)
    net, balancer = Net(num_tasks), eq.make(method, num_tasks)
    x, y = torch.randn(BATCH, 64), list(torch.randn(num_tasks, BATCH, 1))
    optimizer = torch.optim.Adam([*net.parameters(), *balancer.parameters()], lr=1e-4)
    monitor = eq.Monitor(balancer) if watched else None
    trunk = list(net.trunk.parameters())

    def step() -> None:
        features = net.trunk(x)
        losses: list[Tensor] = [
            torch.nn.functional.mse_loss(head(features), target) for head, target in zip(net.heads, y, strict=True)
        ]
        optimizer.zero_grad()
        balancer(losses, shared={"features": features, "parameters": trunk, "losses": None}[where]).backward()
        optimizer.step()

    return Watched(step, monitor, balancer)


def stretch(watched: Watched) -> Callable[[], None]:
    """As many steps as hold one look."""

    def call() -> None:
        for _ in range(EVERY):
            watched.step()

    return call


def added(method: str, num_tasks: int, where: str, steps: int = LENGTH) -> tuple[float, float, float]:
    """Of a watched training: seconds inside the monitor's hook between looks (each), at looks (each), over all time."""
    watched = problem(method, num_tasks, where, watched=True)
    monitor = watched.monitor
    assert monitor is not None
    see, between, looks = monitor._see, [], []

    def timed(*args: object) -> None:
        began = time.perf_counter()
        see(*args)
        (looks if monitor.steps % EVERY == 0 else between).append(time.perf_counter() - began)

    monitor._handle.remove()
    watched.balancer.register_forward_hook(timed, with_kwargs=True)
    for _ in range(5):
        watched.step()  # torch warms up
    between.clear()
    began = time.perf_counter()
    while monitor.steps < steps:
        watched.step()
    whole = time.perf_counter() - began
    return sum(between) / len(between), sum(looks) / len(looks), (sum(between) + sum(looks)) / whole


def row_of(method: str, num_tasks: int, where: str, rounds: int) -> list[object]:
    plain, watched = (problem(method, num_tasks, where, watched=flag) for flag in (False, True))
    (timing,) = harness.compare(stretch(plain), {"watched": stretch(watched)}, rounds, warmup=1)
    between, look, part = added(method, num_tasks, where)
    milliseconds = timing.milliseconds / EVERY
    return [
        f"{method}, {where}", num_tasks, f"{milliseconds:.1f}", str(timing) if rounds > 1 else f"{timing.ratio:.3f}",
        f"{1e6 * between:.0f}", f"{1e3 * look:.1f}", f"{100 * part:.2f} %",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round of the first setting, printed only")
    parser.add_argument("--out", default="docs/benchmarks/monitor.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    settings, rounds = (SETTINGS[:1], 1) if args.quick else (SETTINGS, args.rounds)
    rows = []
    for setting in settings:
        rows.append(row_of(*setting, rounds))
        print(rows[-1], file=sys.stderr)
    header = ["method, `shared`", "K", "step, ms", "watched / plain", "between looks, µs", "a look, ms", "of the time"]
    text = "\n\n".join(
        [
            "# What the monitor costs",
            harness.environment("equipoise"),
            f"`eq.Monitor(balancer)` at its default, a look every {EVERY} steps: the time of {EVERY} watched steps "
            f"over that of {EVERY} that nobody watches, the median of {rounds} rounds in turns, and the quartiles. The "
            "last columns are timed inside the monitor: a step without a look, a look, and all of it over the time of "
            f"a training of {LENGTH} steps. Written by `benchmarks/monitor.py`; MLP 64-512-512-512-256, K heads, batch "
            f"{BATCH}, Adam.",
            harness.table(header, rows),
        ]
    )
    print(text)
    if not args.quick:
        harness.write(args.out, text)


if __name__ == "__main__":
    main()
