"""The contract on a GPU, in about a minute: the CPU's numbers, no host sync, CUDA graphs, and what a step costs.

Every row of the contract's table (tests/contract/table.py) trains on the GPU and must end where the CPU ends; a step
runs under `torch.cuda.set_sync_debug_mode("error")`, with all tasks, with one absent and with a NaN; a whole step is
captured in a CUDA graph and replayed. Then steps are timed beside plain summing, eager and as CUDA graphs, with the
memory they take. Exits with 1 when a check fails.

    PYTHONPATH=src:tests:benchmarks python benchmarks/gpu.py --out results
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

import equipoise as eq
import harness
from contract.table import CASES, Problem, Row
from gpu_step import COLUMNS, costs_at

TRAINED, REPLAYS = 4, 5
CLOSE = 1e-6  # in float64, after a few steps


def seeded(row: Row) -> eq.Balancer:
    """The same balancer each time; only the CPU's generator is touched, which no capture can have left locked."""
    torch.default_generator.manual_seed(5)
    return row.make()


def on_gpu(row: Row) -> tuple[eq.Balancer, Problem]:
    balancer, problem = seeded(row), Problem()
    problem.net.cuda()
    problem.x, problem.y = problem.x.cuda(), problem.y.cuda()
    return balancer.cuda(), problem


def distance(problem: Problem, reference: Problem) -> float:
    """The largest difference between two networks."""
    pairs = zip(problem.net.parameters(), reference.net.parameters(), strict=True)
    return max((p.detach().cpu() - q.detach().cpu()).abs().max().item() for p, q in pairs)


def off_the_cpu(row: Row, where: str) -> str:
    twin, reference = seeded(row), Problem()
    reference.train(twin, where, range(TRAINED))
    balancer, problem = on_gpu(row)
    problem.train(balancer, where, range(TRAINED))
    return measured(distance(problem, reference))


def measured(difference: float) -> str:
    return f"{difference:.0e}" if difference < CLOSE else f"DIFFERS by {difference:.1e}"


@contextmanager
def forbidden_sync() -> Iterator[None]:
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own: the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def sync(scenario: str) -> Callable[[Row, str], str]:
    """A check that a step asks nothing of the device; of a NaN also that it leaves no mark but the latch."""

    def check(row: Row, where: str) -> str:
        balancer, problem = on_gpu(row)
        problem.train(balancer, where, range(2))
        before = copy.deepcopy(balancer.state_dict())
        nan = torch.tensor(torch.nan, dtype=torch.float64, device="cuda")
        losses, features = problem.losses(2)
        change: Callable[[Any], Any] = {
            "all": lambda ls: ls,
            "absent": lambda ls: [ls[0], None, ls[2]],
            "nan": lambda ls: [ls[0], ls[1] + nan, ls[2]],  # times NaN, the network's own backward would make NaNs
        }[scenario]
        problem.clear(balancer)
        try:
            with forbidden_sync():
                balancer(change(losses), problem.shared(where, features)).backward()
                if balancer.needs_after_step:
                    with torch.no_grad():
                        balancer.after_step(change(losses))
        except RuntimeError as error:
            if "synchroniz" not in str(error):
                raise
            return "SYNC"
        if scenario == "nan":
            if any(g.abs().max().item() != 0 for g in problem.left(balancer).values()):
                return "GRADIENT LEFT"
            after = balancer.state_dict()
            if not all(torch.equal(value, after[name]) for name, value in before.items()):
                return "STATE MOVED"
            try:
                balancer.check()
            except ValueError as error:
                return "none" if "task '1'" in str(error) else f"LATCHED {error}"
            return "NOT LATCHED"
        return "none"

    return check


def in_graph(row: Row, where: str) -> str:
    """Capture forward, balancer, backward and SGD; replay; compare with as many eager steps."""
    balancer, problem = on_gpu(row)
    twin, reference = copy.deepcopy(balancer), problem.clone()

    def step(problem: Problem, balancer: eq.Balancer) -> None:
        losses, features = problem.losses(0)
        problem.clear(balancer)
        balancer(losses, problem.shared(where, features)).backward()
        with torch.no_grad():
            for p in [*problem.net.parameters(), *balancer.parameters()]:
                if p.grad is not None:
                    p -= 0.02 * p.grad
            if balancer.needs_after_step:
                balancer.after_step(problem.losses(0)[0])

    graph = harness.captured(lambda: step(problem, balancer))
    for _ in range(REPLAYS):
        graph.replay()
    torch.cuda.synchronize()
    for _ in range(harness.WARM_CAPTURE + REPLAYS):
        step(reference, twin)
    return measured(distance(problem, reference))


CHECKS: dict[str, Callable[[Row, str], str]] = {
    "off the CPU's numbers": off_the_cpu,
    "sync": sync("all"),
    "sync, a task absent": sync("absent"),
    "sync, a NaN": sync("nan"),
    "off eager in a CUDA graph": in_graph,
}


def checked(row: Row, where: str) -> list[str]:
    """What each check found; capital letters where it is not what it should be."""
    results = []
    for check in CHECKS.values():
        try:
            results.append(check(row, where))
        except Exception as error:
            results.append(f"FAILED {type(error).__name__}: {str(error)[:80]!r}")
    return results


def bad(result: str) -> bool:
    return result[:2].isupper()


def summary(found: dict[str, list[str]], where: dict[str, str]) -> str:
    """One line a kind of method, and each case that is not as it should be."""
    rows: list[list[object]] = []
    for kind in dict.fromkeys(where.values()):
        cases = [results for case, results in found.items() if where[case] == kind]
        good = [sum(not bad(results[i]) for results in cases) for i in range(len(CHECKS))]
        rows.append([f"{kind} ({len(cases)} rows)", *(f"{n} good" if n == len(cases) else f"{n} GOOD" for n in good)])
    lines = [f"{case}: {', '.join(r for r in results if bad(r))}" for case, results in found.items()]
    return "\n\n".join([harness.table(["given", *CHECKS], rows), *(line for line in lines if not line.endswith(": "))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", default="2,10,40,1000", help="numbers of tasks to time, with commas")
    parser.add_argument("--out", help="a folder for gpu.md and gpu.json")
    args = parser.parse_args()
    start = time.perf_counter()
    found = {f"{row}@{where}": checked(row, where) for row, where in CASES}
    short = summary(found, {f"{row}@{where}": where for row, where in CASES})
    print(short, flush=True)
    between = time.perf_counter()
    costs = []
    for num_tasks in map(int, args.tasks.split(",")):
        costs += costs_at(num_tasks)
        print(f"K = {num_tasks} timed", file=sys.stderr, flush=True)
    header = ["K", "method", *COLUMNS]
    table = harness.table(header, [[cost[column] for column in header] for cost in costs])
    end = time.perf_counter()
    print(table)
    print(f"{harness.environment()} {between - start:.0f} s of checks, {end - between:.0f} s of timings.")
    if args.out:
        text = [
            "# On a GPU",
            harness.environment(),
            "Written by `benchmarks/gpu.py`. Each row of the contract's table: the largest difference of the network "
            f"after {TRAINED} steps from the CPU's (float64), whether a step waits for the device, and the difference "
            "of a captured step, replayed, from eager ones.",
            harness.table(["method@given", *CHECKS], [[case, *results] for case, results in found.items()]),
            "A full step beside plain summing: the ratio of times, median and quartiles of interleaved rounds; the "
            "same with the whole step a CUDA graph; memory at the peak of a step beyond what summing takes. "
            "MLP 64-512-512-512-256, K heads, batch 256, fused Adam; gradient methods at the features.",
            table,
        ]
        harness.write(f"{args.out}/gpu.md", "\n\n".join(text))
        stored = {"environment": harness.environment(), "checks": found, "costs": costs}
        harness.write(f"{args.out}/gpu.json", json.dumps(stored, indent=1))
    if any(bad(result) for results in found.values() for result in results):
        sys.exit(1)


if __name__ == "__main__":
    main()
