"""The pictures of "LDC explained": each is drawn from what the library does when it is run, in about a minute.

python docs/figures/ldc.py            # all of them, into docs/figures, with their numbers
python docs/figures/ldc.py order tau  # some
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from ldc_runs import Pairs, discrepancy, molecule_losses, route, share_of_smaller
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from torch import Tensor

import equipoise as eq
from equipoise.ldc.objective import log_ratio, ratio, rescale

FOLDER = Path(__file__).parent
BLUE, ORANGE, GREEN, RED, GREY, INK = "#2f6fb5", "#d9661f", "#2a8f5b", "#b8325a", "#6b6b6b", "#333333"
WIDTH = 6.2  # inches


def descends() -> None:
    """What W descends: the spread of the weighted losses, and the weights it ends with."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 2.9))
    for tasks, style in ((3, "-"), (11, "--")):
        losses = torch.logspace(0, 2, tasks)
        for objective, color in (("both", ORANGE), ("upper", BLUE)):
            weights, _, _ = route(losses, 6000, router_objective=objective)
            weighted = weights * losses
            spread = weighted.amax(1) / weighted.amin(1)
            left.plot(spread, style, color=color, label=f'"{objective}", K = {tasks}')
            if tasks == 11:
                right.loglog(losses, weights[-1], "o-", color=color, markersize=4, label=f'"{objective}"')
            say(f"{objective}, K = {tasks}: spread {spread[-1]:.4g}, weights {weights[-1].min():.1e} to "
                f"{weights[-1].max():.2f}")  # fmt: skip
    right.loglog(losses, (1 / losses) / (1 / losses).sum(), ":", color=GREY, label="1 / loss")
    left.set(yscale="log", xlabel="step", ylabel="largest / smallest σ l", title="Spread of the weighted losses")
    right.set(xlabel="loss", ylabel="weight σ", title="Weights at the end, K = 11")
    left.set_ylim(0.5, 1e8)
    left.legend(loc="upper left", ncols=2, columnspacing=1.0)
    right.set_ylim(1e-9, 3)  # room for the legend below the curves
    right.legend(loc="lower left")
    save(figure, "descends")


def routers() -> None:
    """The weights of each router, with losses 1 : 10 : 100."""
    forms = {
        'softmax, "upper" (default)': {},
        'softmax, "both"': {"router_objective": "both"},
        'sigmoid, "both" (QM9)': {"router": "sigmoid", "router_objective": "both", "discrepancy": 0.05},
        'softmax-clamped, "both"': {"router": "softmax-clamped", "router_objective": "both"},
    }
    losses = torch.tensor([1.0, 10.0, 100.0])
    figure, axes = plt.subplots(2, 2, figsize=(WIDTH, 4.6), sharex=True, sharey=True)
    for axis, (name, options) in zip(axes.flat, forms.items(), strict=True):
        weights, _, _ = route(losses, 3000, **options)
        for task, color in enumerate((BLUE, GREEN, ORANGE)):
            axis.plot(weights[:, task], color=color, label=f"loss {losses[task]:g}")
        axis.set(yscale="log", ylim=(1e-4, 1.5), title=name)
        say(f"{name}: weights {', '.join(f'{w:.2g}' for w in weights[-1])}")
    for axis in axes[1]:
        axis.set_xlabel("step")
    for axis in axes[:, 0]:
        axis.set_ylabel("weight σ")
    axes[0, 1].legend(loc="lower left")
    save(figure, "routers")


def dead() -> None:
    """How many logits of sigmoid(relu(w)) still have a gradient."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 2.7))
    options = {"router": "sigmoid", "router_objective": "both", "discrepancy": 0.05}
    ends = []
    for seed in range(10):
        weights, _, logits = route(torch.logspace(0, 2, 11), 1200, lr=1e-3, seed=seed, **options)
        alive = (logits > 0).sum(1)
        ends.append(int((alive == 0).nonzero()[0]))
        left.plot(alive, color=BLUE, alpha=0.5, linewidth=1)
        if seed == 0:
            right.plot(weights, color=BLUE, alpha=0.6, linewidth=1)
    say(f"all 11 logits dead after {min(ends)} to {max(ends)} steps (10 seeds)")
    left.set(xlabel="step", ylabel="logits above 0", title="Logits with a gradient, 10 seeds", ylim=(-0.5, 11.5))
    right.set(xlabel="step", ylabel="weight σ", title="The 11 weights of one seed", ylim=(0.47, 0.75))
    save(figure, "dead-relu")


def order() -> None:
    """Which losses are compared, and what f is over the orders of four tasks."""
    figure = plt.figure(figsize=(WIDTH, 3.1))
    grid = figure.add_gridspec(2, 4, width_ratios=(1, 1, 0.3, 2.2))
    kinds = {"chain": "chain", "all": "all", "star": [[0, i] for i in range(1, 5)], "groups": [[0, 1], [2, 3], [3, 4]]}
    for place, (name, pairs) in zip(itertools.product(range(2), range(2)), kinds.items(), strict=True):
        axis = figure.add_subplot(grid[place])
        draw_pairs(axis, pairs, 5)
        axis.set_title(f'"{name}"' if isinstance(pairs, str) else name)
    losses = torch.tensor([0.30, 0.45, 0.66, 0.86])
    found = {
        name: [discrepancy(losses[list(way)], pairs) for way in itertools.permutations(range(4))]
        for name, pairs in (("chain", "chain"), ("all", "all"))
    }
    axis = figure.add_subplot(grid[:, 3])
    axis.plot(range(1, 25), sorted(found["chain"]), "o", color=ORANGE, markersize=4, label='"chain"')
    axis.plot(range(1, 25), found["all"], "o", color=BLUE, markersize=4, label='"all"')
    axis.set(xlabel="the 24 orders of the tasks, sorted", ylabel="f", ylim=(0, 1.5), title="The same four losses")
    axis.legend(loc="lower right")
    for name, values in found.items():
        say(f"{name}: f from {min(values):.2f} to {max(values):.2f}")
    save(figure, "order")


def draw_pairs(axis: Axes, pairs: Pairs, tasks: int) -> None:
    """The pairs as lines, their widths measured: f of a set of tasks at 1 and the rest at 0 counts what is cut."""

    def cut(*chosen: int) -> float:
        return discrepancy(torch.tensor([float(i in chosen) for i in range(tasks)]), pairs)

    angles = np.pi / 2 - 2 * np.pi * np.arange(tasks) / tasks
    points = np.stack([np.cos(angles), np.sin(angles)], 1)
    for i, j in itertools.combinations(range(tasks), 2):
        width = (cut(i) + cut(j) - cut(i, j)) / 2
        if width > 1e-6:
            axis.plot(*points[[i, j]].T, color=BLUE, linewidth=2.4 * width, zorder=1)
    axis.scatter(*points.T, s=26, color=ORANGE, zorder=2)
    axis.set(xlim=(-1.3, 1.3), ylim=(-1.3, 1.3), aspect="equal")
    axis.axis("off")


def lambdas() -> None:
    """The two lambdas: what share of the pull the smaller of two losses gets."""
    values = np.logspace(-2, 2, 81)
    figure, axis = plt.subplots(figsize=(WIDTH, 2.9))
    forms = {"discrepancy": (BLUE, "discrepancy=λ: g + λ f"), "penalty": (ORANGE, "penalty=λ: f + λ g")}
    for form, (color, text) in forms.items():
        axis.plot(values, [share_of_smaller(**{form: float(value)}) for value in values], color=color, label=text)
        for value in (0.01, 0.1, 1.0, 20.0):
            say(f"{form} {value:g}: share of the smaller loss {share_of_smaller(**{form: value}):.2f}")
    axis.axhspan(-2, 0, color=RED, alpha=0.12, linewidth=0)
    axis.text(2.2, -1.1, "below 0: the smaller\nloss is pushed UP", color=RED, va="top")
    axis.axvspan(0.01, 0.1, color=GREY, alpha=0.15, linewidth=0)
    axis.text(0.0316, -0.55, "the paper's values", color=INK, ha="center")
    axis.set(xscale="log", xlim=(0.01, 100), ylim=(-2, 1.2), xlabel="λ", ylabel="share of the smaller loss")
    axis.legend(loc="upper center", ncols=2)
    save(figure, "lambdas")


def cityscapes() -> None:
    """The published Cityscapes form ends at fixed weights."""
    losses = torch.tensor([1.0, 0.05])  # segmentation, depth
    preset = {"router": "softmax-clamped", "router_objective": "both", "tau": "ones", "discrepancy": 0.1}
    weights, pulls, _ = route(losses, 5000, lr=3e-4, **preset)
    figure, axis = plt.subplots(figsize=(WIDTH, 2.7))
    for task, (name, color) in enumerate((("segmentation", BLUE), ("depth", ORANGE))):
        axis.plot(weights[:, task], "--", color=color, label=f"weight, {name}")
        axis.plot(pulls[:, task], color=color, label=f"pull, {name}")
    axis.set(xlabel="step", ylim=(0, 1), ylabel="weight σ, pull d scalar / d loss")
    axis.legend(ncols=2, loc="upper left", bbox_to_anchor=(0.0, 1.28))
    say(f"cityscapes: weights {weights[-1].tolist()}, pulls {pulls[-1].tolist()}, "
        f"clamped after {int((weights[:, 1] >= 0.8 - 1e-6).nonzero()[0])} steps")  # fmt: skip
    save(figure, "cityscapes")


def normalise() -> None:
    """The losses of real molecules, as they are and in each normal form."""
    names, batch, epochs = ("mu", "alpha", "r2", "U0"), 100, 4
    losses = molecule_losses(names, batch, epochs)
    first, per_epoch = losses[0], len(losses) // epochs
    forms = {
        "None: the losses": losses,
        '"rescale": l / |l0|': rescale(losses, first),
        '"ratio": l min(l0) / l0': ratio(losses, first, torch.ones(4, dtype=torch.bool)),
        '"log": log(l / l0 of the epoch)': torch.cat([log_ratio(part, part[0]) for part in losses.split(per_epoch)]),
    }
    figure, axes = plt.subplots(2, 2, figsize=(WIDTH, 4.6), sharex=True)
    for axis, (name, curves) in zip(axes.flat, forms.items(), strict=True):
        for task, color in enumerate((BLUE, GREEN, ORANGE, RED)):
            axis.plot(np.arange(len(curves)) / per_epoch, curves[:, task], color=color, linewidth=1, label=names[task])
        axis.set(title=name, **({} if "log" in name else {"yscale": "log"}))
        spread = (curves.abs().amax(1) / curves.abs().amin(1)).median()
        say(f"{name}: median spread {spread:.3g}")
    for axis in axes[1]:
        axis.set_xlabel("epoch")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), ncols=4, loc="lower center", bbox_to_anchor=(0.5, 0.98))
    save(figure, "normalise")


def tau() -> None:
    """Where one number x ends that trades one loss for another, with each tau."""

    def losses(x: Tensor) -> Tensor:
        return torch.stack([0.2 + 2 * x.square(), 0.3 + 2 * (1 - x).square()])

    figure, axis = plt.subplots(figsize=(WIDTH * 0.75, 4.0))
    axis.plot(*losses(torch.linspace(-0.02, 1.02, 200)), color=GREY, label="what x can reach")
    strong: dict[str, Any] = {"router": None, "router_objective": "both", "discrepancy": 1.0}
    forms = (
        ("LS", "s", GREY, lambda: eq.LS(2)),
        ('tau="weights" (default)', "o", BLUE, lambda: eq.LDC(2, normalize=None)),
        ('tau="ones"', "^", GREEN, lambda: eq.LDC(2, normalize=None, tau="ones", **strong)),
        ("tau=[1, 2]", "v", ORANGE, lambda: eq.LDC(2, normalize=None, tau=[1.0, 2.0], **strong)),
        ("tau=[2, 1]", "D", RED, lambda: eq.LDC(2, normalize=None, tau=[2.0, 1.0], **strong)),
    )  # fmt: skip
    top = 2.15
    for name, marker, color, make in forms:
        for start in (0.1, 0.9):
            x, balancer = torch.tensor(start, requires_grad=True), make()
            optimizer = torch.optim.Adam([x, *balancer.parameters()], lr=1e-3)
            for _ in range(4000):
                optimizer.zero_grad()
                balancer(losses(x)).backward()
                optimizer.step()
            end = losses(x).detach()
            axis.plot(*end, marker, color=color, markersize=8, linestyle="", label=name if start < 0.5 else None)
            if marker in "^vD":  # the ratio that was asked for, from 0 past the point and short of the legend
                axis.plot(*torch.stack([torch.zeros(2), 1.3 * end], 1), ":", color=color, linewidth=1)
            say(
                f"{name} from {start}: losses {end[0]:.3f}, {end[1]:.3f}, "
                f"weights {', '.join(f'{w:.2f}' for w in balancer.weights)}"
            )
    axis.set(xlabel="first loss", ylabel="second loss", xlim=(0, top), ylim=(0, top), aspect="equal")
    axis.legend(loc="upper right")
    save(figure, "tau")


FIGURES: dict[str, Callable[[], None]] = {
    "descends": descends, "routers": routers, "dead-relu": dead, "order": order, "lambdas": lambdas,
    "cityscapes": cityscapes, "normalise": normalise, "tau": tau,
}  # fmt: skip


def say(text: str) -> None:
    print(text, flush=True)


def save(figure: plt.Figure, name: str) -> None:
    """Without a date and with fixed ids, so that the same numbers make the same file."""
    figure.tight_layout()
    figure.savefig(FOLDER / f"ldc-{name}.svg", transparent=True, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)


def main(names: Sequence[str]) -> None:
    torch.set_num_threads(1)
    matplotlib.use("Agg")
    plt.rcParams.update({
        "font.size": 9, "axes.titlesize": 9, "legend.fontsize": 8, "legend.frameon": False, "svg.hashsalt": "ldc",
        "axes.spines.top": False, "axes.spines.right": False,
    })  # fmt: skip
    for name in names or FIGURES:
        FIGURES[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
