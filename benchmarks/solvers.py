"""Medians of the K x K solvers alone, from Gram matrix to weights, in microseconds.

    python benchmarks/solvers.py [--tasks 2 11 40] [--calls 96]      # writes docs/benchmarks/solvers.md
    python benchmarks/solvers.py --device cuda --out solvers.md

One thread on the CPU. Several problems of several kinds take turns, so that the medians belong to no single matrix:
independent gradients of uneven length (their norms spread over about two decades), gradients with a common
part, and gradients in conflict. On a GPU the time is that of the launches and the device's work together.
"""

import argparse
import statistics
import time

import torch
from torch import Tensor

import harness
from equipoise.gradient import solvers
from equipoise.gradient.pcgrad import project

Kinds = dict[str, list[Tensor]]


def problems(num_tasks: int, device: str, each: int = 8) -> Kinds:
    """Gram matrices of gradients with 512 entries, by kind."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    kinds: Kinds = {"independent": [], "common": [], "conflict": []}
    for _ in range(each):
        rows = normal(num_tasks, 512)
        found = {
            "independent": rows * normal(num_tasks, 1).exp(),
            "common": rows + 2 * normal(1, 512),
            "conflict": rows - 0.9 * rows.mean(0),
        }
        for kind, jacobian in found.items():
            kinds[kind].append((jacobian @ jacobian.T).to(device))
    return kinds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tasks", type=int, nargs="+", default=[2, 11, 40])
    parser.add_argument("--calls", type=int, default=96, help="timed calls of each solver and kind")
    parser.add_argument("--out", default="docs/benchmarks/solvers.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    rows: dict[str, list[str]] = {}
    for num_tasks in options.tasks:
        kinds = problems(num_tasks, options.device)
        everyone = torch.ones(num_tasks, dtype=torch.bool, device=options.device)
        each = torch.eye(num_tasks, dtype=torch.float64, device=options.device)
        order = torch.stack([torch.randperm(num_tasks) for _ in range(num_tasks)]).to(options.device)
        calls = {
            "min-norm": lambda gram, on=everyone: solvers.min_norm(gram, on),
            "CAGrad": lambda gram, on=everyone: solvers.cagrad(gram, on, 0.4),
            "Nash-MTL": lambda gram, on=everyone: solvers.fair(gram, on, 1.0),
            "FairGrad": lambda gram, on=everyone: solvers.fair(gram, on, 2.0),
            "IMTL-G": lambda gram, on=everyone: solvers.equal_projections(gram, on),
            "PCGrad": lambda gram, order=order: project(gram, order),
            "UPGrad": lambda gram, on=everyone, each=each: solvers.dual_cone(gram, on, each, 1e-4),
            "DualProj": lambda gram, on=everyone, each=each: solvers.dual_cone(
                gram, on, each.sum(1, keepdim=True), 1e-4
            ),
            "AlignedMTL": lambda gram, on=everyone: solvers.aligned(gram, on, "min"),
            "ConFIG": lambda gram, on=everyone: solvers.equal_cosines(gram, on),
        }
        for name, call in calls.items():
            medians = [median(call, grams, options.calls, options.device) for grams in kinds.values()]
            rows.setdefault(name, []).append(" / ".join(f"{1e6 * m:.0f}" for m in medians))
    text = "\n\n".join(
        [
            "# The solvers alone",
            harness.environment("equipoise"),
            f"Microseconds from the Gram matrix to the weights, in float64: medians of {options.calls} calls on eight "
            "problems each of independent gradients / gradients with a common part / gradients in conflict. Written by "
            "`benchmarks/solvers.py`.",
            harness.table(["", *(f"K = {k}" for k in options.tasks)], [[name, *cells] for name, cells in rows.items()]),
        ]
    )
    print(text)
    harness.write(options.out, text)


def median(call, grams: list[Tensor], count: int, device: str) -> float:
    """The median time of a call, each problem in its turn."""
    times = []
    for turn in range(-len(grams), count):  # the first round warms up
        start = time.perf_counter()
        call(grams[turn % len(grams)])
        if device != "cpu":
            torch.cuda.synchronize()
        if turn >= 0:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


if __name__ == "__main__":
    main()
