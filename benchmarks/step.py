"""A full training step with each loss-only method against plain summing, beside what people use instead.

The network: a trunk 64-512-512-512-256, K heads, batch 256, Adam, one thread. Everything runs in one process and
takes turns (base, contender, contender, base), so a ratio is between steps milliseconds apart. The peers: the
few lines people write themselves (in the style of the nash-mtl code), and torchjd's scalarizers where there is an
equivalent. FAMO includes its second forward.

    python benchmarks/step.py --rounds 25 --methods ldc,famo --tasks 2,10,40,1000
    python benchmarks/step.py --quick        # a look, written nowhere
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torchjd.scalarization as jd
from torch import Tensor, nn

import equipoise as eq
import harness
from mlp import OPTIONS, Net, loss_only, plain_sum
from peers import BY_HAND

LIMITS = {"famo": 1.30}  # of the time of plain summing; the others 1.03
LIMIT = 1.03
MANY = 1000  # tasks: more than those that methods treat apart as few
TORCHJD: dict[str, Callable[[int], nn.Module]] = {
    "ls": lambda _: jd.Sum(),
    "rlw": lambda _: jd.Random(),
    "dwa": lambda _: jd.DWA(),
    "uw": jd.UW,
    "famo": jd.FAMO,
    "gls": lambda _: jd.GeometricMean(),
    "stch": lambda _: jd.STCH(mu=1.0),
}


class Problem:
    """One network and batch; each contender steps it with an optimizer of its own."""

    def __init__(self, num_tasks: int) -> None:
        torch.manual_seed(0)
        self.net = Net(num_tasks)
        self.x = torch.randn(256, 64)
        self.y = list(torch.randn(num_tasks, 256, 1))

    def losses(self) -> list[Tensor]:
        return self.net.losses(self.x, self.y)

    def step(
        self,
        combine: Callable[[list[Tensor]], Tensor],
        own: Sequence[nn.Parameter] = (),
        second_look: Callable[[list[Tensor]], object] | None = None,
    ) -> Callable[[], None]:
        """A full training step with `combine` turning the losses into a scalar."""
        # Next to no learning rate: all step one network, whose losses must stay what they are (products of 40 small
        # losses, as peers form them, end in NaN).
        optimizer = torch.optim.Adam([*self.net.parameters(), *own], lr=1e-9)

        def step() -> None:
            optimizer.zero_grad()
            combine(self.losses()).backward()
            optimizer.step()
            if second_look is not None:
                with torch.no_grad():
                    second_look(self.losses())

        return step


def ours(problem: Problem, method: str, num_tasks: int) -> Callable[[], None]:
    balancer = eq.make(method, num_tasks, **OPTIONS.get(method, {}))
    return problem.step(
        balancer, list(balancer.parameters()), balancer.after_step if balancer.needs_after_step else None
    )


def by_hand(problem: Problem, method: str, num_tasks: int) -> Callable[[], None]:
    peer = BY_HAND[method](num_tasks)
    return problem.step(peer.combine, peer.own, getattr(peer, "second_look", None))


def torchjd(problem: Problem, method: str, num_tasks: int) -> Callable[[], None]:
    scalarizer = TORCHJD[method](num_tasks)
    own = list(scalarizer.parameters()) if method == "uw" else []
    look = (lambda losses: scalarizer.update(torch.stack(losses))) if method == "famo" else None
    return problem.step(lambda losses: scalarizer(torch.stack(losses)), own, look)


def contenders(problem: Problem, methods: Sequence[str], num_tasks: int) -> dict[str, Callable[[], None]]:
    """By "method / whose"; and summing itself, which shows what this machine can tell apart."""
    steps = {"sum / itself": problem.step(plain_sum)}
    if "famo" in methods:  # what a second look costs whoever takes it
        steps["sum / and a second forward"] = problem.step(plain_sum, second_look=torch.stack)
    for method in methods:
        steps[f"{method} / equipoise"] = ours(problem, method, num_tasks)
        if method in BY_HAND:
            steps[f"{method} / by hand"] = by_hand(problem, method, num_tasks)
        if method in TORCHJD:
            steps[f"{method} / torchjd"] = torchjd(problem, method, num_tasks)
    return steps


def extra_operators(method: str, num_tasks: int) -> int:
    """Operators of the balancer's forward and backward (and second look) beyond those of summing."""
    losses = [torch.tensor(1.0 + k, requires_grad=True) for k in range(num_tasks)]
    balancer = eq.make(method, num_tasks, **OPTIONS.get(method, {}))

    def call() -> None:
        balancer(losses).backward()
        if balancer.needs_after_step:
            with torch.no_grad():
                balancer.after_step(losses)

    call()  # the first call may build what later ones keep
    plain_sum(losses).backward()
    plain = harness.operators(lambda: plain_sum(losses).backward()).total()
    return harness.operators(call).total() - plain


def alone(method: str, num_tasks: int) -> float:
    """Microseconds of the balancer's forward and backward on K leaves, beyond summing's."""
    losses = [torch.tensor(1.0 + k, requires_grad=True) for k in range(num_tasks)]
    balancer = eq.make(method, num_tasks, **OPTIONS.get(method, {}))
    with_it = harness.microseconds(lambda: balancer(losses).backward())
    return with_it - harness.microseconds(lambda: plain_sum(losses).backward())


def report(timings: dict[int, list[harness.Timing]], methods: Sequence[str], rounds: int) -> str:
    tasks = list(timings)
    rows = []
    for i, timing in enumerate(timings[tasks[0]]):
        method = timing.name.split(" / ")[0]
        limit = "" if not timing.name.endswith("equipoise") else f"{LIMITS.get(method, LIMIT):.2f}"
        rows.append([timing.name, limit, *(str(timings[k][i]) for k in tasks)])
    counts: list[list[Any]] = [[name, *(extra_operators(name, k) for k in tasks)] for name in methods]
    for row in counts:
        row.append("no" if extra_operators(row[0], MANY) == extra_operators(row[0], 10 * MANY) else "YES")
    cost = [[name, *(f"{alone(name, k):.0f}" for k in tasks)] for name in methods]
    return "\n\n".join(
        [
            "# A training step, against plain summing",
            harness.environment("equipoise", "torchjd"),
            f"Time of a full step over that of `torch.stack(losses).sum()`: the median of {rounds} rounds, and the "
            "quartiles. Written by `benchmarks/step.py`; MLP 64-512-512-512-256, K heads, batch 256, Adam. "
            "Summing takes " + ", ".join(f"{timings[k][0].milliseconds:.1f} ms at K = {k}" for k in tasks) + ".",
            harness.table(["method / whose", "at most", *(f"K = {k}" for k in tasks)], rows),
            "Operators the balancer runs beyond summing, forward, backward and second look (RLW and FAMO work few "
            f"tasks out in plain Python; whether the number grows is asked at K = {MANY} and {10 * MANY}):",
            harness.table(["method", *(f"K = {k}" for k in tasks), "grows with K"], counts),
            "Microseconds of the balancer's forward and backward alone, beyond summing:",
            harness.table(["method", *(f"K = {k}" for k in tasks)], cost),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--methods", default=",".join(loss_only()), help="names, with commas")
    parser.add_argument("--tasks", default="2,10,40,1000", help="numbers of tasks, with commas")
    parser.add_argument("--quick", action="store_true", help="three rounds at K = 2 and 10, printed only")
    parser.add_argument("--out", default="docs/benchmarks/step.md")
    args = parser.parse_args()
    methods = args.methods.split(",")
    rounds = 3 if args.quick else args.rounds
    torch.set_num_threads(1)
    timings = {}
    for num_tasks in [2, 10] if args.quick else [int(k) for k in args.tasks.split(",")]:
        problem = Problem(num_tasks)
        timings[num_tasks] = harness.compare(
            problem.step(plain_sum),
            contenders(problem, methods, num_tasks),
            rounds,
            on_round=lambda done, k=num_tasks: print(f"\rK = {k}: round {done} of {rounds} ", end="", file=sys.stderr),
        )
        print(file=sys.stderr)
    text = report(timings, methods, rounds)
    print(text)
    if not args.quick:
        harness.write(args.out, text)


if __name__ == "__main__":
    main()
