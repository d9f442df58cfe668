"""The small comparison in "Choosing a method": every method on the tutorial's problem, twice, five seeds. Minutes:

    python docs/figures/methods.py

Four properties of 5,000 molecules from their composition, once with the losses in the published units (47 million
times apart at the start) and once standardised. One rate, 3e-3, for all: nothing is tuned. delta-m is against LS on
standardised losses, same seed, on 1,000 molecules that are neither trained on nor looked at before the end.
"""

from __future__ import annotations

import statistics

import numpy as np
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.suites.qm9 import TASKS, load_sample

CHOSEN, UNITS = ("mu", "homo", "r2", "U0"), (1.0, 1000.0, 1.0, 1000.0)
SEEDS, EPOCHS, BATCH, RATE = range(5), 8, 100, 3e-3
LEFT_OUT = ("stl", "ldc-double")  # one task; fifty inner steps a step


class Problem:
    """The molecules, split and standardised by the training part."""

    def __init__(self) -> None:
        sample = load_sample()
        rows = np.arange(len(sample))
        counts = np.zeros((len(sample), 8))
        np.add.at(counts, (np.repeat(rows, sample.atoms), sample.element), 1)
        np.add.at(counts, (np.repeat(rows, sample.bonds), 4 + sample.order), 1)
        order = torch.from_numpy(np.random.RandomState(0).permutation(len(sample)))
        self.train, self.test = order[:4000], order[4000:]
        x = torch.tensor(counts, dtype=torch.float32)
        self.x = (x - x[self.train].mean(0)) / x[self.train].std(0)
        targets = sample.targets()[:, [TASKS.index(task) for task in CHOSEN]] * UNITS
        y = torch.tensor(targets, dtype=torch.float32)
        self.std = y[self.train].std(0)
        self.y = (y - y[self.train].mean(0)) / self.std

    def errors(self, balancer: eq.Balancer, seed: int, unit: Tensor) -> list[float]:
        """Mean absolute errors of the test part after training with losses in a unit."""
        torch.manual_seed(seed)
        trunk = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        heads = nn.Linear(64, len(CHOSEN))
        optimizer = torch.optim.Adam([*trunk.parameters(), *heads.parameters(), *balancer.parameters()], lr=RATE)

        def losses(rows: Tensor) -> tuple[Tensor, Tensor]:
            features = trunk(self.x[rows])
            return features, ((heads(features) - self.y[rows]) * unit).square().mean(0)

        for _ in range(EPOCHS):
            balancer.start_epoch()
            for rows in self.train[torch.randperm(len(self.train))].split(BATCH):
                features, values = losses(rows)
                optimizer.zero_grad()
                balancer(values, shared=features).backward()
                optimizer.step()
                if balancer.needs_after_step:
                    with torch.no_grad():
                        balancer.after_step(losses(rows)[1])
        with torch.no_grad():
            return (heads(trunk(self.x[self.test])) - self.y[self.test]).abs().mean(0).tolist()


def main() -> None:
    torch.set_num_threads(1)
    problem = Problem()
    ones = torch.ones(len(CHOSEN))
    base = [problem.errors(eq.LS(len(CHOSEN)), seed, ones) for seed in SEEDS]
    print("| method | in published units | standardised |\n|---|---:|---:|")
    for name in (name for name in eq.methods() if name not in LEFT_OUT):
        cells = []
        for unit in (problem.std, ones):
            found = [
                eq.delta_m(problem.errors(eq.make(name, len(CHOSEN)), seed, unit), base[seed],
                           higher_is_better=False)
                for seed in SEEDS
            ]  # fmt: skip
            cells.append(f"{statistics.mean(found):+.1f} ± {statistics.stdev(found):.1f}")
        print(f"| `{name}` | {cells[0]} | {cells[1]} |", flush=True)


if __name__ == "__main__":
    main()
