"""What `eq.Monitor` at its default adds to a training step, and what a look costs by itself.

The same step (trunk 64-512-512-512-256, K heads, batch 64, Adam, one thread) with a watched balancer and with one
that nobody watches take turns (plain, watched, watched, plain), a few steps at a time: that shows the steps between
looks, of which a busy machine cannot tell a hundredth. So what the monitor adds is also timed inside it, by medians:
its hook in steps between looks, its looks, and what both come to, a look in a hundred steps.

    python benchmarks/monitor.py --rounds 25
    python benchmarks/monitor.py --quick     # a few rounds of the first setting, printed only
"""

from __future__ import annotations

import argparse
import statistics
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
BATCH, LENGTH = 64, 400
TOGETHER = 4  # steps between turns
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


def added(method: str, num_tasks: int, where: str) -> tuple[float, float, float, float]:
    """Seconds of a step, of the monitor's hook between looks, and at a look; and how many looks took gradients."""
    watched = problem(method, num_tasks, where, watched=True)
    monitor = watched.monitor
    assert monitor is not None
    see, steps, between, looks = monitor._see, [], [], []

    def timed(*args: object) -> None:
        began = time.perf_counter()
        see(*args)
        (looks if monitor.steps % EVERY == 0 else between).append(time.perf_counter() - began)

    monitor._handle.remove()
    watched.balancer.register_forward_hook(timed, with_kwargs=True)
    while monitor.steps < LENGTH:
        began = time.perf_counter()
        watched.step()
        if monitor.steps % EVERY:
            steps.append(time.perf_counter() - began)
    taken = sum(row["lowest_cosine"] is not None for row in monitor.history)
    return statistics.median(steps), statistics.median(between), statistics.fmean(looks), taken


def row_of(method: str, num_tasks: int, where: str, rounds: int) -> list[object]:
    plain, watched = (problem(method, num_tasks, where, watched=flag) for flag in (False, True))
    (timing,) = harness.compare(plain.step, {"watched": watched.step}, rounds, repeat=TOGETHER)
    step, between, look, taken = added(method, num_tasks, where)
    part = ((EVERY - 1) * between + look) / (EVERY * step)
    return [
        f"{method}, {where}", num_tasks, f"{1e3 * step:.2f}", str(timing), f"{1e6 * between:.1f}",
        f"{1e3 * look:.2f}", taken, f"{100 * part:.2f} %",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--quick", action="store_true", help="a few rounds of the first setting, printed only")
    parser.add_argument("--out", default="docs/benchmarks/monitor.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    settings, rounds = (SETTINGS[:1], 3) if args.quick else (SETTINGS, args.rounds)
    rows = []
    for setting in settings:
        rows.append(row_of(*setting, rounds))
        print(rows[-1], file=sys.stderr)
    header = [
        "method, `shared`", "K", "step, ms", "watched / plain", "between looks, µs", "a look, ms", "with gradients",
        "of the time",
    ]  # fmt: skip
    text = "\n\n".join(
        [
            "# What the monitor costs",
            harness.environment("equipoise"),
            f"`eq.Monitor(balancer)` at its default, a look every {EVERY} steps. *Watched / plain*: the time of a step "
            f"over that of one that nobody watches, {TOGETHER} at a time in turns, the median of {rounds} rounds and "
            "the quartiles. The other columns are taken inside the monitor in a training of "
            f"{LENGTH} steps: the median step, its hook in a step without a look (median), a look (mean), how many of "
            f"the {LENGTH // EVERY} looks took gradients, and what it comes to over the time of {EVERY} steps. "
            f"Written by `benchmarks/monitor.py`; MLP 64-512-512-512-256, K heads, batch {BATCH}, Adam.",
            harness.table(header, rows),
        ]
    )
    print(text)
    if not args.quick:
        harness.write(args.out, text)


if __name__ == "__main__":
    main()
