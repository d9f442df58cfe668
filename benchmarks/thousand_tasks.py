"""Up to a thousand tasks on one trunk: what each method's step costs beside plain summing, and the memory it takes.

The network: a trunk 64-512-512-512-256 and K heads, batch 64, one thread on a CPU. Methods take turns with summing,
in up to 15 rounds, fewer where --seconds leave no time; a method that would need more than what is left of them is
left out for this K, and the table says so. On a CPU the clock is this process's own time, so that other work on the
machine counts little. Memory is what a step needs beyond a step of summing: on a GPU of its allocator, on a CPU of the
resident set of a forked process. Operators, counted on a CPU, are those that run beyond summing's, backward and second
look included. "alone" is the balancer without a network: forward, backward and second look on K numbers, less their
sum's.

    python benchmarks/thousand_tasks.py --tasks 1,10,100,300,1000 --seconds 500 --out docs/benchmarks
    PYTHONPATH=src:benchmarks python benchmarks/thousand_tasks.py --device cuda --tasks 1,10,100,300,1000 --out results
    python benchmarks/thousand_figures.py docs/benchmarks    # tables and figures, from both measurements
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import equipoise as eq
import harness
from mlp import OPTIONS, Net, loss_only, plain_sum

BATCH = 64
ROUNDS = 15
CHEAP = 0.05  # seconds of a step that is repeated whatever time is left
PARAMETERS = {"mgda": {}, "mgda, low_memory": {"low_memory": True}, "graddrop": {}}
COLUMNS = ["K", "method", "at", "ms", "ratio", "quartiles", "rounds", "operators", "alone_us", "MiB"]
Step = Callable[[], None]
Kind = tuple[str, str]


class Problem:
    """A network and a batch on a device; each step leaves gradients, and none touches the weights."""

    def __init__(self, num_tasks: int, device: str) -> None:
        torch.manual_seed(0)
        self.num_tasks, self.device = num_tasks, device
        self.clock = time.process_time if device == "cpu" else time.perf_counter
        self.net = Net(num_tasks).to(device)
        self.x = torch.randn(BATCH, 64).to(device)
        self.y = list(torch.randn(num_tasks, BATCH, 1).to(device))
        self.numbers = torch.rand(num_tasks, device=device).add_(0.5).requires_grad_()

    def losses(self) -> tuple[list[torch.Tensor], torch.Tensor]:
        features = self.net.trunk(self.x)
        pairs = zip(self.net.heads, self.y, strict=True)
        return [torch.nn.functional.mse_loss(head(features), target) for head, target in pairs], features

    def plain(self) -> None:
        self.net.zero_grad()
        plain_sum(self.losses()[0]).backward()

    def balancer(self, method: str, at: str) -> eq.Balancer:
        options = PARAMETERS[method] if at == "parameters" else OPTIONS.get(method, {})
        return eq.make(method.split(",")[0], self.num_tasks, **options).to(self.device)

    def step(self, method: str, at: str) -> Step:
        balancer = self.balancer(method, at)
        trunk = list(self.net.trunk.parameters())

        def step() -> None:
            self.net.zero_grad()
            losses, features = self.losses()
            balancer(losses, {"losses": None, "features": features, "parameters": trunk}[at]).backward()
            if balancer.needs_after_step:
                with torch.no_grad():
                    balancer.after_step(self.losses()[0])

        return step

    def alone(self, method: str, at: str) -> float:
        """Microseconds of a method that reads losses, without a network, beyond those of a sum."""
        balancer = self.balancer(method, at)

        def step() -> None:
            balancer(self.numbers).backward()
            if balancer.needs_after_step:
                balancer.after_step(self.numbers)

        plain = lambda: self.numbers.sum().backward()  # noqa: E731
        return harness.microseconds(step, 10, 3) - harness.microseconds(plain, 10, 3)


def kinds() -> list[Kind]:
    """Each method with what it is given besides the losses."""
    gradient = [name for name in eq.methods() if name != "ldc-double" and name not in loss_only()]
    return [
        *((name, "losses") for name in loss_only()),
        *((name, "features") for name in gradient),
        *((name, "parameters") for name in PARAMETERS),
    ]


def measure(
    num_tasks: int, device: str, asked: list[Kind], until: float, end: float, expected: dict[Kind, float]
) -> list[dict[str, Any]]:
    """A row of `COLUMNS` for each method that is `expected` to be done by `end`; rounds are for about `until`."""
    problem = Problem(num_tasks, device)
    problem.plain()
    plain = harness.operators(problem.plain).total()
    base_seconds, base_bytes = probe(lambda: problem.plain, problem, math.inf)
    rows = []
    for place, (method, at) in enumerate(asked):
        left = until - now(device)
        row = dict.fromkeys(COLUMNS) | {"K": num_tasks, "method": method, "at": at}
        rows.append(row)
        if expected.get((method, at), 0.0) > end - now(device):
            continue
        share = max(left, 0.0) / (len(asked) - place)
        taken, size = probe(lambda m=method, a=at: problem.step(m, a), problem, (end - now(device)) / 4)
        row["MiB"] = (size - base_bytes) / 2**20
        least = 3 if taken < CHEAP else 1
        rounds = min(ROUNDS, max(least, int(share / (2 * taken + 2 * base_seconds))))
        if rounds < 2 and taken > 3 * base_seconds:  # so slow that the one step just taken tells enough
            row |= {"ms": taken * 1e3, "ratio": taken / base_seconds, "rounds": 1}
        else:
            contender = {method: problem.step(method, at)}
            timing = harness.compare(problem.plain, contender, rounds, warmup=least // 2, clock=problem.clock)[0]
            row |= {"ms": timing.milliseconds, "ratio": timing.ratio, "rounds": len(timing.ratios)}
            row["quartiles"] = timing.spread if rounds > 3 else None
        if at == "losses":
            row["alone_us"] = problem.alone(method, at)
        if device == "cpu" and (at == "losses" or 8 * taken < share):
            row["operators"] = harness.operators(problem.step(method, at)).total() - plain
        print("\r" + " ".join(str(row[c]) for c in COLUMNS[:5]), end="\x1b[K", file=sys.stderr, flush=True)
    return rows


def probe(make: Callable[[], Step], problem: Problem, most: float) -> tuple[float, int]:
    """Seconds of the second step, and the bytes at its peak beyond what there was before the first.

    A first step of more than `most` seconds is all that is taken.
    """
    problem.net.zero_grad()
    gc.collect()
    if problem.device == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step = make()
        taken = seconds(step, problem)
        if taken <= most:
            torch.cuda.reset_peak_memory_stats()
            taken = seconds(step, problem)
        return taken, torch.cuda.max_memory_allocated() - before
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # a process of its own, where memory kept from others does not hide what is asked for
        try:
            warnings.simplefilter("ignore")
            Path("/proc/self/clear_refs").write_text("5")
            before, step = resident("VmRSS"), make()
            taken = seconds(step, problem)
            if taken <= most:
                taken = seconds(step, problem)
            found = f"{taken} {resident('VmHWM') - before}"
            os.write(writing, found.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        taken, size = pipe.read().split()
    os.waitpid(child, 0)
    return float(taken), int(size)


def now(device: str) -> float:
    """The clock that --seconds is counted on: on a CPU, where others may work too, this process and its children's."""
    return time.monotonic() if device == "cuda" else sum(os.times()[:4])


def seconds(step: Step, problem: Problem) -> float:
    harness.synchronise()
    start = problem.clock()
    step()
    harness.synchronise()
    return problem.clock() - start


def resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def expectations(rows: list[dict[str, Any]], num_tasks: int) -> dict[Kind, float]:
    """Seconds of the three steps that a method takes at least, as its last two numbers of tasks foretell them."""
    found: dict[Kind, float] = {}
    for method, at in {(row["method"], row["at"]) for row in rows}:
        mine = [row for row in rows if (row["method"], row["at"]) == (method, at)]
        known = [row for row in mine if row["ms"] is not None]
        if not known:
            continue
        if known[-1] is not mine[-1]:
            found[method, at] = math.inf  # left out once, left out for more tasks
            continue
        power = 1.0
        if len(known) > 1:
            power = math.log(known[-1]["ms"] / known[-2]["ms"]) / math.log(known[-1]["K"] / known[-2]["K"])
        growth = (num_tasks / known[-1]["K"]) ** max(power, 1.0)
        found[method, at] = 3 * known[-1]["ms"] / 1e3 * growth
    return found


def measure_all(tasks: list[int], device: str, limit: float) -> list[dict[str, Any]]:
    """All numbers of tasks, for methods that read losses and then for the rest, so that these cannot use up the time.

    More tasks get more of it, and slow methods come last. Of the former the largest number of tasks is first: it is
    what the measurement is for, and no method that reads losses is too slow for it.
    """
    begun, rows = now(device), []
    for reads_losses, part in ((True, 0.4), (False, 1.0)):
        end = begun + part * limit
        asked = [kind for kind in kinds() if (kind[1] == "losses") == reads_losses]
        mine: list[dict[str, Any]] = []
        order = tasks[::-1] if reads_losses else tasks
        for place, num_tasks in enumerate(order):
            left = end - now(device)
            share = left * num_tasks**0.75 / sum(k**0.75 for k in order[place:])
            expected = expectations(mine, num_tasks)
            asked.sort(key=lambda kind: expected.get(kind, 0.0))
            mine += measure(num_tasks, device, asked, now(device) + share, end, expected)
        rows += mine
    return sorted(rows, key=lambda row: row["K"])


def short_table(rows: list[dict[str, Any]]) -> str:
    """Time over summing's and MiB beyond it, a line a method, a column a number of tasks."""
    tasks = sorted({row["K"] for row in rows})
    found = {(row["method"], row["at"], row["K"]): row for row in rows}
    lines = []
    for method, at in sorted({(row["method"], row["at"]) for row in rows}, key=kinds().index):
        cells = []
        for k in tasks:
            row = found[method, at, k]
            cells.append("left out" if row["ms"] is None else f"{row['ratio']:.3g} / {row['MiB']:.0f}")
        lines.append([method, at, *cells])
    return harness.table(["times summing / MiB beyond it", "at", *(f"K = {k}" for k in tasks)], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--tasks", default="1,3,10,30,100,300,1000", help="numbers of tasks, with commas, growing")
    parser.add_argument("--seconds", type=float, default=75.0, help="about how long to take")
    parser.add_argument("--out", type=Path, help="the folder for the measurements as JSON")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".* has no solution for these gradients")
    started = now(args.device)
    rows = measure_all([int(k) for k in args.tasks.split(",")], args.device, args.seconds)
    print(file=sys.stderr)
    print(short_table(rows))
    print(harness.environment(), f"{now(args.device) - started:.0f} seconds.")
    if args.out:
        harness.write(
            args.out / f"thousand-tasks-{args.device}.json",
            json.dumps({"environment": harness.environment(), "batch": BATCH, "rows": rows}, indent=0),
        )


if __name__ == "__main__":
    main()
