"""Many tasks on one table: hundreds of small problems, most labels missing.

--data (or TABULAR_DATA) is an .npz with `x` [rows, features], or `fp`, bits packed in bytes; and with `y`, [rows,
tasks] with NaN or -1 for no label, or [rows] beside `task`, the only task that a row has a label for. Where every
label is 0 or 1 the tasks are classifications and the score is ROC AUC; otherwise regressions, in units of each
task's deviation, and the score is explained variance. A task without a label in a batch is absent: the balancer is
told by `present=`. Two seconds a run with 139 tasks, seven with 617:

    python examples/tabular.py --data school.npz
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import equipoise as eq
from show import arguments, compare, dots, save, table

METHODS = {
    "LS": eq.LS,
    "UW": eq.UW,
    "FAMO": eq.FAMO,
    "LDC": eq.LDC,
    "LDC, raw losses": lambda tasks: eq.LDC(tasks, normalize=None),
}
BATCH, STEPS, HIDDEN = 256, 1000, 64
CHECK = 200  # steps between looks at the validation rows


def made_up(rows: int = 400, tasks: int = 7) -> tuple[Tensor, Tensor]:
    """A table to see that the script runs, and for nothing else."""
    x = torch.randn(rows, 5)
    y = x @ torch.randn(5, tasks) + torch.randn(rows, tasks)
    return x, torch.where(torch.rand(rows, tasks) < 0.5, y, torch.nan)


def read(path: Path) -> tuple[Tensor, Tensor]:
    with np.load(path, allow_pickle=False) as file:
        x = np.unpackbits(file["fp"], axis=1) if "fp" in file else file["x"]
        y = file["y"].astype(np.float32)
        if "task" in file:
            tasks, column = np.unique(file["task"], return_inverse=True)
            wide = np.full((len(y), len(tasks)), np.nan, np.float32)
            wide[np.arange(len(y)), column] = y
            y = wide
        elif file["y"].dtype == np.int8:
            y[y < 0] = np.nan
    return torch.from_numpy(x).float(), torch.from_numpy(y)


class Table:
    """Rows split 60 : 20 : 20 by seed; x and the regressions' y standardised with the training rows alone."""

    def __init__(self, x: Tensor, y: Tensor, seed: int) -> None:
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
        self.train, self.validation, self.test = order.split([len(x) - 2 * (len(x) // 5), len(x) // 5, len(x) // 5])
        self.binary = bool(((y == 0) | (y == 1) | y.isnan()).all())
        known = x[self.train]
        deviation = known.std(0)
        self.x = (x - known.mean(0)) / torch.where(deviation > 0, deviation, 1.0)
        if not self.binary:
            labels = y[self.train]
            mean = labels.nanmean(0)
            deviation = (labels - mean).square().nanmean(0).sqrt()
            y = (y - mean) / torch.where(deviation > 0, deviation, 1.0)
        self.y = y

    def losses(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Each task's mean over the rows that have its label, and how many do."""
        known = ~y.isnan()
        y = y.nan_to_num()
        if self.binary:
            errors = nn.functional.binary_cross_entropy_with_logits(outputs, y, reduction="none")
        else:
            errors = (outputs - y).square()
        counts = known.sum(0)
        return (errors * known).sum(0) / counts.clamp(min=1), counts

    def scores(self, outputs: Tensor, y: Tensor) -> Tensor:
        """One number a task, of those that can be scored on these rows."""
        found = []
        for column, labels in zip(outputs.T, y.T, strict=True):
            known = ~labels.isnan()
            guess, truth = column[known], labels[known]
            if self.binary:
                positive = truth > 0.5
                if 5 <= positive.sum() <= len(truth) - 5:
                    found.append(auc(guess[positive], guess[~positive]))
            elif len(truth) >= 10:
                found.append(1 - (guess - truth).square().mean() / truth.var(correction=0))
        return torch.stack(found)


def auc(positive: Tensor, negative: Tensor) -> Tensor:
    """How often a positive row is ranked above a negative one."""
    ordered = negative.sort().values
    below = torch.searchsorted(ordered, positive) + torch.searchsorted(ordered, positive, right=True)
    return below.double().mean() / (2 * len(negative))


def train(method: str, seed: int, data: tuple[Tensor, Tensor], steps: int = STEPS) -> dict[str, float]:
    rows = Table(*data, seed)
    tasks = rows.y.shape[1]
    model = nn.Sequential(nn.Linear(rows.x.shape[1], HIDDEN), nn.ReLU(), nn.Dropout(0.3), nn.Linear(HIDDEN, tasks))
    balancer = METHODS[method](tasks)
    groups = [{"params": model.parameters(), "weight_decay": 1e-5}, *balancer.param_groups()]
    optimizer = torch.optim.Adam(groups, lr=1e-3)
    best, chosen = -torch.inf, torch.zeros(1)
    for step in range(steps):
        batch = rows.train[torch.randint(len(rows.train), (BATCH,))]
        losses, counts = rows.losses(model(rows.x[batch]), rows.y[batch])
        optimizer.zero_grad()
        balancer(losses, present=counts > 0, counts=counts).backward()
        optimizer.step()
        if balancer.needs_after_step:  # FAMO looks twice at a batch
            with torch.no_grad():
                again, _ = rows.losses(model(rows.x[batch]), rows.y[batch])
            balancer.after_step(again, present=counts > 0, counts=counts)
        if (step + 1) % CHECK == 0 or step + 1 == steps:
            model.eval()
            with torch.no_grad():
                outputs = model(rows.x)
            model.train()
            validation, test = (rows.scores(outputs[part], rows.y[part]) for part in (rows.validation, rows.test))
            if validation.mean() > best:  # the test rows count where the validation rows say to stop
                best, chosen = validation.mean(), test
    name = "ROC AUC" if rows.binary else "explained variance"
    return {f"mean {name}": chosen.mean().item(), "a tenth of the tasks below": chosen.quantile(0.1).item()}


def main() -> None:
    options = arguments(__doc__, "an .npz with x [rows, features] and y [rows, tasks], NaN: no label", "TABULAR_DATA")
    if options.data is None and not options.smoke:
        sys.exit("tabular.py needs --data FILE.npz, or --smoke for a made-up table.")
    torch.manual_seed(0)
    data = made_up() if options.data is None else read(options.data)
    steps, seeds = (3, 1) if options.smoke else (STEPS, options.seeds)
    results = compare(lambda method, seed: train(method, seed, data, steps), list(METHODS), seeds)
    print(f"{data[1].shape[1]} tasks, {len(data[0])} rows" + (", made up" if options.data is None else ""))
    print(table(results))
    if options.figure:
        save(dots(results), options.figure)


if __name__ == "__main__":
    main()
