"""What the trainer examples share: two properties of real molecules, predicted from what the molecules are made of.

The 5,000 molecules of QM9 that ship with the package. The polarisability is nearly a sum over the atoms and learnt in
a few steps; how far charges are apart hardly follows from a list of atoms, so its loss stays nearly ten times as
large: two tasks of unlike difficulty, in the smallest real form.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from equipoise.suites.qm9 import TASKS as QM9_TASKS
from equipoise.suites.qm9 import load_sample

TASKS = ("mu", "alpha")
ELEMENTS, LONGEST = 5, 29  # H C N O F; the most atoms a molecule of QM9 has
BATCH = 50


def arguments(doc: str | None, *, folder: bool = True) -> argparse.Namespace:
    """--smoke, --method, --epochs, --folder."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="two epochs on a few molecules, to see that it runs")
    parser.add_argument("--method", default="ldc", help="a name of equipoise.methods()")
    parser.add_argument("--epochs", type=int, help="how many in all; 20, or 2 with --smoke")
    if folder:
        parser.add_argument("--folder", type=Path, help="where checkpoints go, and where an earlier run is continued")
    options = parser.parse_args()
    options.epochs = options.epochs or (2 if options.smoke else 20)
    torch.manual_seed(0)
    return options


class Molecules(Dataset[dict[str, Tensor]]):
    """Dictionaries: `x`, atoms of each element and bonds of each order; `atoms`, the elements in the molecule's
    order, from 1, and 0 after its end; and each task's property, standardised with the training part alone."""

    def __init__(self, *, test: bool, smoke: bool) -> None:
        sample = load_sample()
        sample = sample.take(np.random.default_rng(0).permutation(len(sample)))
        count = np.zeros((len(sample), 8))
        molecule = np.repeat(np.arange(len(sample)), sample.atoms)
        np.add.at(count, (molecule, sample.element), 1)
        np.add.at(count, (np.repeat(np.arange(len(sample)), sample.bonds), 4 + sample.order), 1)
        atoms = np.zeros((len(sample), LONGEST), dtype=np.int64)
        atoms[molecule, np.arange(len(molecule)) - np.repeat(sample.atom_offset[:-1], sample.atoms)] = (
            1 + sample.element
        )
        targets = sample.targets()[:, [QM9_TASKS.index(task) for task in TASKS]]
        part = slice(4000, 4050 if smoke else 5000) if test else slice(200 if smoke else 4000)
        x, y = ((a[part] - a[:4000].mean(0)) / a[:4000].std(0) for a in (count, targets))
        columns = {"x": torch.from_numpy(x).float(), "atoms": torch.from_numpy(atoms[part])}
        self.columns = columns | {task: torch.from_numpy(y[:, k]).float() for k, task in enumerate(TASKS)}

    def __len__(self) -> int:
        return len(self.columns["x"])

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: column[index] for name, column in self.columns.items()}


def loader(options: argparse.Namespace, *, test: bool = False) -> DataLoader[dict[str, Tensor]]:
    """The same order every epoch (the molecules were shuffled), so that a run that was continued can be compared."""
    return DataLoader(Molecules(test=test, smoke=options.smoke), batch_size=BATCH)


class Model(nn.Module):
    """A trunk, and a head a task; called with a batch, it returns the losses by name."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.heads = nn.ModuleDict({task: nn.Linear(128, 1) for task in TASKS})

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return self.losses(self.trunk(batch["x"]), batch)

    def losses(self, features: Tensor, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Mean squared errors, in float32 whatever the features are."""
        predictions = {task: head(features).squeeze(-1).float() for task, head in self.heads.items()}
        return {task: (predictions[task] - batch[task]).square().mean() for task in TASKS}


@torch.no_grad()
def report(losses_of: Callable[[dict[str, Tensor]], dict[str, Tensor]], options: argparse.Namespace, weights: Tensor):
    """One line: the losses of the molecules kept for the test, to every digit, and the weights last applied."""
    rows = []
    for batch in loader(options, test=True):
        found = losses_of({name: column.to(weights.device) for name, column in batch.items()})
        rows.append(torch.stack([found[task] for task in TASKS]))
    pairs = zip(TASKS, torch.stack(rows).mean(0).tolist(), weights.tolist(), strict=True)
    print("; ".join(f"{task}: test loss {loss:.9g}, weight {weight:.9g}" for task, loss, weight in pairs))
