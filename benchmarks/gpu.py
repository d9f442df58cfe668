"""The contract on a GPU: the CPU's numbers, no host sync in a step, whole steps inside a CUDA graph, and their price.

Every row of the contract's table (tests/contract/table.py) trains on the GPU under
`torch.cuda.set_sync_debug_mode("error")` and must end where the CPU ends; then a whole step is captured in a CUDA
graph and replayed; then steps are timed against plain summing.

    PYTHONPATH=src:tests:benchmarks python benchmarks/gpu.py --rounds 25 --out docs/benchmarks/gpu.md
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable

import torch
from torch import nn

import equipoise as eq
import harness
from contract.table import CASES, Problem, Row
from mlp import OPTIONS, Net, loss_only, plain_sum

STEPS = 4


def on_gpu(row: Row) -> tuple[eq.Balancer, Problem]:
    torch.manual_seed(5)
    balancer, problem = row.make(), Problem()
    problem.net.cuda()
    problem.x, problem.y = problem.x.cuda(), problem.y.cuda()
    return balancer.cuda(), problem


def distance(problem: Problem, reference: Problem) -> float:
    """The largest difference between two networks."""
    pairs = zip(problem.net.parameters(), reference.net.parameters(), strict=True)
    return max((p.detach().cpu() - q.detach().cpu()).abs().max().item() for p, q in pairs)


def as_on_cpu(row: Row, where: str) -> str:
    torch.manual_seed(5)
    twin, reference = row.make(), Problem()
    reference.train(twin, where, range(STEPS))
    balancer, problem = on_gpu(row)
    problem.train(balancer, where, range(STEPS))
    found = distance(problem, reference)
    return f"{found:.0e}" if found < 1e-6 else f"DIFFERS {found:.1e}"


def sync_free(row: Row, where: str, absent: bool) -> str:
    balancer, problem = on_gpu(row)
    problem.train(balancer, where, range(2))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        losses, features = problem.losses(2)
        given = [losses[0], None, losses[2]] if absent else losses
        balancer(given, problem.shared(where, features)).backward()
        if balancer.needs_after_step:
            with torch.no_grad():
                balancer.after_step(losses)
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        return "SYNC"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return "none"


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

    warm, replays = 3, 5
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warm):
            step(problem, balancer)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            step(problem, balancer)
    except Exception as error:
        return f"NO ({type(error).__name__}: {str(error).splitlines()[0][:60]})"
    for _ in range(replays):
        graph.replay()
    torch.cuda.synchronize()
    for _ in range(warm + replays):
        step(reference, twin)
    found = distance(problem, reference)
    return f"{found:.0e}" if found < 1e-6 else f"DIFFERS {found:.1e}"


def checks() -> str:
    rows = []
    for row, where in CASES:
        results: list[str] = []
        for check in (
            as_on_cpu,
            lambda r, w: sync_free(r, w, False),
            lambda r, w: sync_free(r, w, True),
            in_graph,
        ):
            try:
                results.append(check(row, where))
            except Exception as error:
                results.append(f"FAILED {type(error).__name__}: {str(error).splitlines()[0][:80]}")
        rows.append([f"{row}@{where}", *results])
        print(" | ".join(rows[-1]), flush=True)
    return harness.table(
        [
            "method@shared",
            "off the CPU's numbers",
            "syncs a step",
            "syncs with a task absent",
            "off eager in a CUDA graph",
        ],
        rows,
    )


def stepper(net: Net, x: torch.Tensor, y: list[torch.Tensor], combine: Callable, own: list[nn.Parameter]) -> Callable:
    optimizer = torch.optim.Adam([*net.parameters(), *own], lr=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        features = net.trunk(x)
        losses = [nn.functional.mse_loss(head(features), target) for head, target in zip(net.heads, y, strict=True)]
        combine(losses, features).backward()
        optimizer.step()

    return step


def timings(rounds: int, tasks: list[int]) -> str:
    columns = {}
    methods = [m for m in loss_only() if m != "famo"]
    gradient = [m for m in eq.methods() if m not in (*loss_only(), "ldc-double")]
    for num_tasks in tasks:
        torch.manual_seed(0)
        net = Net(num_tasks).cuda()
        x, y = torch.randn(256, 64).cuda(), [t.cuda() for t in torch.randn(num_tasks, 256, 1)]
        contenders = {}
        for method in methods if num_tasks > 40 else methods + gradient:
            balancer = eq.make(method, num_tasks, **OPTIONS.get(method, {})).cuda()
            contenders[method] = stepper(net, x, y, balancer, list(balancer.parameters()))
        base = stepper(net, x, y, lambda losses, _: plain_sum(losses), [])
        columns[num_tasks] = {t.name: t for t in harness.compare(base, contenders, rounds)}
        print(f"K = {num_tasks}: " + ", ".join(f"{n} {t.ratio:.2f}" for n, t in columns[num_tasks].items()), flush=True)
    names = list(columns[tasks[0]])
    rows = [[n, *(str(columns[k][n]) if n in columns[k] else "" for k in tasks)] for n in names]
    return harness.table(["method", *(f"K = {k}" for k in tasks)], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--tasks", default="2,10,40,1000")
    parser.add_argument("--out")
    args = parser.parse_args()
    text = "\n\n".join(
        [
            "# On a GPU",
            harness.environment(),
            "Each row of the contract's table: the largest difference of the network after four steps from the CPU's "
            "(float64), whether a step waits for the device, and the difference of a captured step, replayed, "
            "from eager ones.",
            checks(),
            "Time of a full eager step over that of plain summing, median and quartiles "
            f"({args.rounds} interleaved rounds; MLP 64-512-512-512-256, batch 256, fused Adam; gradient methods "
            "at the features):",
            timings(args.rounds, [int(k) for k in args.tasks.split(",")]),
        ]
    )
    if args.out:
        harness.write(args.out, text)


if __name__ == "__main__":
    main()
