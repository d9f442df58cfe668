"""Up to a thousand tasks on one trunk: what each method's step costs beside plain summing, and the memory it takes.

The network: a trunk 64-512-512-512-256 and K heads, batch 64, one thread on a CPU. Loss-only methods take turns with
summing; a method whose step takes longer than --patience seconds is not asked about more tasks. Memory is what a step
needs beyond a step of summing: on a GPU of its allocator, on a CPU of the resident set of a forked process. Operators
are those that run beyond summing's, backward and second look included.

    python benchmarks/thousand_tasks.py --out docs/benchmarks
    PYTHONPATH=src:benchmarks python benchmarks/thousand_tasks.py --device cuda --tasks 1,10,100,1000 --out results
    python benchmarks/thousand_tasks.py --draw docs/benchmarks    # the figures, from both measurements
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import equipoise as eq
import harness
from mlp import OPTIONS, Net, loss_only, plain_sum

BATCH = 64
ROUNDS, FEW = 7, 2  # turns of loss-only methods, and of those that are many times slower than summing
PARAMETERS = {"mgda": {}, "mgda, low_memory": {"low_memory": True}, "graddrop": {}}
COLUMNS = ["K", "method", "at", "ms", "ratio", "quartiles", "operators", "MiB"]
Step = Callable[[], None]


class Problem:
    """A network and a batch on a device; each step leaves gradients, and none touches the weights."""

    def __init__(self, num_tasks: int, device: str) -> None:
        torch.manual_seed(0)
        self.num_tasks, self.device = num_tasks, device
        self.net = Net(num_tasks).to(device)
        self.x = torch.randn(BATCH, 64).to(device)
        self.y = list(torch.randn(num_tasks, BATCH, 1).to(device))

    def losses(self) -> tuple[list[torch.Tensor], torch.Tensor]:
        features = self.net.trunk(self.x)
        pairs = zip(self.net.heads, self.y, strict=True)
        return [torch.nn.functional.mse_loss(head(features), target) for head, target in pairs], features

    def plain(self) -> None:
        self.net.zero_grad()
        plain_sum(self.losses()[0]).backward()

    def step(self, method: str, at: str) -> Step:
        options = PARAMETERS[method] if at == "parameters" else OPTIONS.get(method, {})
        balancer = eq.make(method.split(",")[0], self.num_tasks, **options).to(self.device)
        trunk = list(self.net.trunk.parameters())

        def step() -> None:
            self.net.zero_grad()
            losses, features = self.losses()
            balancer(losses, {"losses": None, "features": features, "parameters": trunk}[at]).backward()
            if balancer.needs_after_step:
                with torch.no_grad():
                    balancer.after_step(self.losses()[0])

        return step


def kinds() -> list[tuple[str, str]]:
    """Each method with what it is given besides the losses."""
    gradient = [name for name in eq.methods() if name != "ldc-double" and name not in loss_only()]
    return [
        *((name, "losses") for name in loss_only()),
        *((name, "features") for name in gradient),
        *((name, "parameters") for name in PARAMETERS),
    ]


def measure(num_tasks: int, device: str, asked: list[tuple[str, str]], patience: float) -> list[dict[str, Any]]:
    """A row of `COLUMNS` for each method; the slow ones last, so that they disturb nothing."""
    problem = Problem(num_tasks, device)
    problem.plain()
    plain = harness.operators(problem.plain).total()
    base = memory(lambda: problem.plain, problem)
    rows = []
    for method, at in asked:
        step = problem.step(method, at)
        first = seconds(step)  # the first call also builds what later ones keep
        few = first > patience
        rounds = 1 if few else (ROUNDS if at == "losses" else FEW)
        timing = harness.compare(problem.plain, {method: step}, rounds, warmup=0 if few else 1)[0]
        row = {
            "K": num_tasks, "method": method, "at": at, "ms": timing.milliseconds, "ratio": timing.ratio,
            "quartiles": timing.spread if rounds == ROUNDS else None,
            "operators": harness.operators(step).total() - plain if not few else None,
            "MiB": (memory(lambda m=method, a=at: problem.step(m, a), problem) - base) / 2**20 if not few else None,
        }  # fmt: skip
        rows.append(row)
        print("\r" + " ".join(str(row[c]) for c in COLUMNS[:5]), end="\x1b[K", file=sys.stderr, flush=True)
    return rows


def seconds(step: Step) -> float:
    harness.synchronise()
    start = time.perf_counter()
    step()
    harness.synchronise()
    return time.perf_counter() - start


def memory(make: Callable[[], Step], problem: Problem) -> int:
    """Bytes at the peak of the third step beyond what there was before the first."""
    problem.net.zero_grad()
    gc.collect()
    if problem.device == "cuda":
        before = torch.cuda.memory_allocated()
        step = make()
        step()
        torch.cuda.reset_peak_memory_stats()
        step()
        return torch.cuda.max_memory_allocated() - before
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # a process of its own, where memory kept from others does not hide what is asked for
        Path("/proc/self/clear_refs").write_text("5")
        before, step = resident("VmRSS"), make()
        for _ in range(2):
            step()
        os.write(writing, str(resident("VmHWM") - before).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        found = int(pipe.read())
    os.waitpid(child, 0)
    return found


def resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def short_table(rows: list[dict[str, Any]]) -> str:
    """Time over summing's and MiB beyond it, a line a method, a column a number of tasks."""
    tasks = sorted({row["K"] for row in rows})
    found = {(row["method"], row["at"], row["K"]): row for row in rows}
    lines = []
    for method, at in dict.fromkeys((row["method"], row["at"]) for row in rows):
        cells = []
        for k in tasks:
            row = found.get((method, at, k))
            extra = "" if row is None or row["MiB"] is None else f" / {row['MiB']:.0f}"
            cells.append("" if row is None else f"{row['ratio']:.3g}{extra}")
        lines.append([method, at, *cells])
    return harness.table(["times summing / MiB beyond it", "at", *(f"K = {k}" for k in tasks)], lines)


def draw(folder: Path) -> None:
    """One figure a device, time and memory over K; what reads losses alone is drawn apart from what reads gradients."""
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "equipoise", "font.size": 9, "axes.spines.top": False})
    for device in ("cpu", "cuda"):
        file = folder / f"thousand-tasks-{device}.json"
        if not file.exists():
            continue
        rows = json.loads(file.read_text())["rows"]
        figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
        for method, at in dict.fromkeys((row["method"], row["at"]) for row in rows):
            mine = [row for row in rows if (row["method"], row["at"]) == (method, at)]
            look = {"losses": "#9aa5b1", "features": "#4c78a8", "parameters": "#b279a2"}[at]
            style = {"color": "#d62728" if method == "ldc" else look, "lw": 2.2 if method == "ldc" else 1.0}
            style |= {"zorder": 5 if method == "ldc" else 2, "marker": "o", "ms": 2.5}
            axes[0].plot([row["K"] for row in mine], [row["ratio"] for row in mine], **style)
            kept = [row for row in mine if row["MiB"] is not None]
            axes[1].plot([row["K"] for row in kept], [max(row["MiB"], 0.1) for row in kept], **style)
            end = mine[-1]
            if at != "losses" and end["ratio"] > 1.5:
                axes[0].annotate(
                    method, (end["K"], end["ratio"]), fontsize=6, xytext=(3, -2), textcoords="offset points"
                )
        for colour, text in (
            ("#d62728", "LDC"), ("#9aa5b1", "other loss-only methods"),
            ("#4c78a8", "gradient methods at the features"), ("#b279a2", "at the trunk's parameters"),
        ):  # fmt: skip
            axes[0].plot([], [], color=colour, label=text)
        axes[0].legend(fontsize=8, frameon=False)
        axes[0].set(xscale="log", yscale="log", xlabel="tasks", ylabel="time of a step over summing's")
        axes[1].set(xscale="log", yscale="log", xlabel="tasks", ylabel="MiB beyond summing (0.1: none)")
        figure.savefig(folder / f"thousand-tasks-{device}.svg", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--tasks", default="1,3,10,30,100,300,1000", help="numbers of tasks, with commas")
    parser.add_argument("--patience", type=float, default=8.0, help="seconds a step may take to be asked again")
    parser.add_argument("--out", type=Path, help="the folder for the measurements as JSON")
    parser.add_argument("--draw", type=Path, help="draw the figures from the measurements in this folder, and stop")
    args = parser.parse_args()
    if args.draw:
        draw(args.draw)
        return
    torch.set_num_threads(1)
    asked, rows = kinds(), []
    for num_tasks in map(int, args.tasks.split(",")):
        found = measure(num_tasks, args.device, asked, args.patience)
        rows += found
        slow = {(row["method"], row["at"]) for row in found if row["ms"] > 1e3 * args.patience}
        asked = [pair for pair in asked if pair not in slow]
    print(file=sys.stderr)
    print(short_table(rows))
    print(harness.environment())
    if args.out:
        harness.write(
            args.out / f"thousand-tasks-{args.device}.json",
            json.dumps({"environment": harness.environment(), "batch": BATCH, "rows": rows}, indent=0),
        )


if __name__ == "__main__":
    main()
