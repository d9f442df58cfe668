"""A full training step with gradient methods against plain summing, beside torchjd, LibMTL and loops by hand.

The network of `step.py`: a trunk 64-512-512-512-256, K heads, batch 256, Adam, one thread. Everything runs in one
process and takes turns (base, contender, contender, base). Peak memory is measured in a process of its own for each.
LibMTL is timed if it can be imported (`pip install --no-deps LibMTL`, which leaves torch alone).

    python benchmarks/gradients.py --rounds 25 --tasks 2,10,40
    python benchmarks/gradients.py --quick        # a look, written nowhere
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import equipoise as eq
import harness
from gradient_peers import HAS_LIBMTL, peers
from mlp import Net

WHERE = {"features": "At the features", "parameters": "With the trunk's parameters"}
LIMITS = {"features": {2: 1.08, 10: 1.20, 40: 1.55}, "parameters": {2: 1.75, 10: 6.4, 40: 22.0}}
Step = Callable[[], None]


class Problem:
    """A network, a batch, and an optimizer that steps it."""

    def __init__(self, num_tasks: int) -> None:
        torch.manual_seed(0)
        net = Net(num_tasks)
        self.num_tasks, self.net, self.trunk, self.heads = num_tasks, net, net.trunk, net.heads
        self.x, self.y = torch.randn(256, 64), list(torch.randn(num_tasks, 256, 1))

    def features(self) -> Tensor:
        return self.trunk(self.x)

    def losses(self, features: Tensor) -> list[Tensor]:
        return self.losses_of_copies([features] * self.num_tasks)

    def losses_of_copies(self, features: list[Tensor]) -> list[Tensor]:
        return [
            nn.functional.mse_loss(head(copy), target)
            for head, copy, target in zip(self.heads, features, self.y, strict=True)
        ]

    def step(self, leave: Callable[[], None], own: list[nn.Parameter] | None = None) -> Step:
        """A full training step, `leave` leaving the gradients."""
        optimizer = torch.optim.Adam([*self.net.parameters(), *(own or [])], lr=1e-4)

        def step() -> None:
            optimizer.zero_grad()
            leave()
            optimizer.step()

        return step

    def plain(self) -> Step:
        return self.step(lambda: torch.stack(self.losses(self.features())).sum().backward())

    def ours(self, method: str, where: str, **options: Any) -> Step:
        balancer = eq.make(method, self.num_tasks, **options)
        shared = list(self.trunk.parameters())

        def leave() -> None:
            features = self.features()
            balancer(self.losses(features), features if where == "features" else shared).backward()

        return self.step(leave, list(balancer.parameters()))


def contenders(where: str, methods: list[str]) -> dict[str, Callable[[Problem], Step]]:
    found: dict[str, Callable[[Problem], Step]] = {
        f"equipoise {method}": lambda problem, method=method: problem.ours(method, where) for method in methods
    }
    if where == "parameters":
        found["equipoise mgda, low_memory"] = lambda problem: problem.ours("mgda", where, low_memory=True)
    for name, peer in peers(where).items():
        found[name] = lambda problem, peer=peer: problem.step(peer(problem))
    return found


def peak(num_tasks: int, where: str, name: str, methods: list[str]) -> float:
    """The most memory, in MB, that three steps take beyond three plain ones, in a process of its own."""
    options = ["--peak", f"{num_tasks}/{where}/{name}", "--methods", ",".join(methods)]
    result = subprocess.run(
        [sys.executable, __file__, *options], check=True, capture_output=True, text=True
    ).stdout.split()
    return float(result[-1])


def print_peak(asked: str, methods: list[str]) -> None:
    num_tasks, where, name = asked.split("/")
    problem = Problem(int(num_tasks))

    def most(step: Step) -> int:
        """The largest resident set of three steps; the system's own record would count the parent's before it too."""
        Path("/proc/self/clear_refs").write_text("5")
        for _ in range(3):
            step()
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

    plain = most(problem.plain())
    print((most(contenders(where, methods)[name](problem)) - plain) / 1024)


def report(timings: dict[tuple[int, str], list[harness.Timing]], peaks: dict[str, float], rounds: int) -> str:
    tasks = sorted({k for k, _ in timings})
    parts = [
        "# A training step with gradient methods, against plain summing",
        harness.environment("equipoise", "torchjd", *(["LibMTL"] if HAS_LIBMTL else [])),
        f"Time of a full step over that of plain summing: the median of {rounds} rounds, and the quartiles. Written by "
        "`benchmarks/gradients.py`; MLP 64-512-512-512-256, K heads, batch 256, Adam. The peers all run MGDA: torchjd "
        "and LibMTL with their own solvers, the loops by hand with ten Frank-Wolfe steps."
        + ("" if HAS_LIBMTL else " LibMTL was not installed."),
    ]
    for where, title in WHERE.items():
        limits = ", ".join(f"{LIMITS[where][k]} at K = {k}" for k in tasks if k in LIMITS[where])
        rows = [
            [timing.name, *(str(timings[k, where][i]) for k in tasks)]
            for i, timing in enumerate(timings[tasks[0], where])
        ]
        parts += [f"## {title}", f"At most: {limits}."]
        parts.append(harness.table(["", *(f"K = {k}" for k in tasks)], rows))
    if peaks:
        parts += [
            "## Peak memory beyond summing, K = 40",
            "The resident set of a process of its own, at its largest. One Jacobian of the trunk is "
            f"{40 * sum(p.numel() for p in Problem(1).trunk.parameters()) * 4 / 2**20:.0f} MB.",
            harness.table(["", "MB"], [[name, f"{size:.0f}"] for name, size in peaks.items()]),
        ]
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--methods", default="mgda,fairgrad,graddrop,moco", help="ours, with commas")
    parser.add_argument("--tasks", default="2,10,40", help="numbers of tasks, with commas")
    parser.add_argument("--quick", action="store_true", help="three rounds at K = 2 and 10, printed only")
    parser.add_argument("--out", default="docs/benchmarks/gradients.md")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    methods = args.methods.split(",")
    if args.peak:
        print_peak(args.peak, methods)
        return
    rounds = 3 if args.quick else args.rounds
    timings = {}
    for num_tasks in [2, 10] if args.quick else [int(k) for k in args.tasks.split(",")]:
        for where in WHERE:
            # A network each: torchjd's autogram hooks every forward of its own.
            steps = {name: make(Problem(num_tasks)) for name, make in contenders(where, methods).items()}
            timings[num_tasks, where] = harness.compare(
                Problem(num_tasks).plain(),
                steps,
                rounds,
                warmup=2,
                on_round=lambda done, k=num_tasks, w=where: print(
                    f"\r{w}, K = {k}: round {done} of {rounds} ", end="", file=sys.stderr
                ),
            )
            print(file=sys.stderr)
    peaks = {}
    if not args.quick:
        for where in WHERE:
            for name in contenders(where, methods):
                peaks[f"{name}, {where}"] = peak(40, where, name, methods)
    text = report(timings, peaks, rounds)
    print(text)
    if not args.quick:
        harness.write(args.out, text)


if __name__ == "__main__":
    main()
