"""A recommender with two losses in a funnel: is the film watched, and is it then liked?

--data (or MOVIELENS_DATA) is MovieLens 100K's `u.data`: user, film, rating, time, separated by tabs. The funnel is
that of click and conversion: a rated film stands for the click, four stars or more for the conversion, which needs a
click before it. Both losses run over all pairs shown (rated films and three times as many drawn from the unrated
ones), the second on the product of the two probabilities, as in the entire-space model of Ma et al. (2018). MovieLens
has no clicks: a rating is what comes nearest in public data of this size. Five seconds a run:

    python examples/recommender.py --data u.data
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import equipoise as eq
from show import arguments, compare, dots, save, table
from tabular import auc

TASKS = ("click", "conversion")
METHODS = {
    "LS": eq.LS,
    "SI": eq.SI,
    "UW": eq.UW,
    "FAMO": eq.FAMO,
    "FairGrad": eq.FairGrad,
    "LDC": eq.LDC,
}
BATCH, STEPS, UNRATED, WIDTH = 512, 1500, 3, 32
EVALUATED = 4  # unrated films beside each rated one in the test


def made_up() -> np.ndarray:
    """A table to see that the script runs, and for nothing else."""
    generator = np.random.default_rng(0)
    columns = [generator.integers(1, top, 3000) for top in (40, 60, 6, 900)]
    return np.stack(columns, 1)


class Films:
    """The last fifth of every user's ratings, in time, is for the test."""

    def __init__(self, ratings: np.ndarray) -> None:
        rows = torch.from_numpy(ratings[np.lexsort((ratings[:, 3], ratings[:, 0]))])
        users, films = rows[:, 0], rows[:, 1]
        counts = torch.bincount(users)
        place = torch.arange(len(rows)) - (counts.cumsum(0) - counts)[users]
        late = place >= counts[users] * 4 // 5
        self.train, self.test = rows[~late], rows[late]
        self.users, self.films = int(users.max()) + 1, int(films.max()) + 1
        self.known = films.unique()

    def rated(self, rows: Tensor) -> Tensor:
        """Which user rated which film in these rows."""
        seen = torch.zeros(self.users, self.films, dtype=torch.bool)
        seen[rows[:, 0], rows[:, 1]] = True
        return seen

    def shown(
        self, rows: Tensor, unrated: int, seen: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Tensor, ...]:
        """Users and films shown, and whether each was clicked and converted; unrated films as the draw falls."""
        users = rows[:, 0].repeat(1 + unrated)
        drawn = self.known[torch.randint(len(self.known), (len(rows) * unrated,), generator=generator)]
        films = torch.cat([rows[:, 1], drawn])
        click = torch.arange(len(users)) < len(rows)
        conversion = click & (rows[:, 2] >= 4).repeat(1 + unrated)
        kept = click | ~seen[users, films]
        return users[kept], films[kept], click[kept], conversion[kept]


class Funnel(nn.Module):
    """Embeddings and one layer that both tasks share, and a head for each."""

    def __init__(self, users: int, films: int) -> None:
        super().__init__()
        self.user, self.film = nn.Embedding(users, WIDTH), nn.Embedding(films, WIDTH)
        for table_ in (self.user, self.film):
            nn.init.normal_(table_.weight, std=0.05)
        self.trunk = nn.Sequential(nn.Linear(3 * WIDTH, 64), nn.ReLU())
        self.heads = nn.Linear(64, 2)

    def forward(self, users: Tensor, films: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """log P(click), log P(click and conversion), and the shared features."""
        user, film = self.user(users), self.film(films)
        features = self.trunk(torch.cat([user, film, user * film], 1))
        click, after = nn.functional.logsigmoid(self.heads(features)).unbind(1)
        return click, click + after, features

    def losses(self, batch: tuple[Tensor, ...]) -> tuple[dict[str, Tensor], Tensor]:
        users, films, click, conversion = batch
        log_click, log_both, features = self(users, films)
        return {"click": entropy(log_click, click), "conversion": entropy(log_both, conversion)}, features


def entropy(log_p: Tensor, label: Tensor) -> Tensor:
    """Binary cross entropy from log p."""
    return -torch.where(label, log_p, torch.log(-torch.expm1(log_p.clamp(max=-1e-6)))).mean()


def train(method: str, seed: int, data: Films, steps: int = STEPS) -> dict[str, float]:
    model, balancer = Funnel(data.users, data.films), METHODS[method](tasks=TASKS)
    groups = [{"params": model.parameters(), "weight_decay": 3e-6}, *balancer.param_groups()]
    optimizer = torch.optim.Adam(groups, lr=2e-3)
    seen = data.rated(data.train)
    for _ in range(steps):
        rows = data.train[torch.randint(len(data.train), (BATCH,))]
        batch = data.shown(rows, UNRATED, seen)
        losses, features = model.losses(batch)
        optimizer.zero_grad()
        balancer(losses, shared=features).backward()
        optimizer.step()
        if balancer.needs_after_step:  # FAMO looks twice at a batch
            with torch.no_grad():
                balancer.after_step(model.losses(batch)[0])
    everything, generator = seen | data.rated(data.test), torch.Generator().manual_seed(seed)
    users, films, click, conversion = data.shown(data.test, EVALUATED, everything, generator)
    with torch.no_grad():
        log_click, log_both, _ = model(users, films)
    after = (log_both - log_click)[click]
    return {
        "click, ROC AUC": auc(log_click[click], log_click[~click]).item(),
        "conversion, ROC AUC": auc(log_both[conversion], log_both[~conversion]).item(),
        "liked once watched, ROC AUC": auc(after[conversion[click]], after[~conversion[click]]).item(),
    }


def read(path: Path) -> np.ndarray:
    return np.loadtxt(path, dtype=np.int64, delimiter="\t")


def main() -> None:
    options = arguments(__doc__, "MovieLens 100K's u.data: user, film, rating, time, with tabs", "MOVIELENS_DATA")
    if options.data is None and not options.smoke:
        sys.exit("recommender.py needs --data u.data, or --smoke for a made-up table.")
    data = Films(made_up() if options.data is None else read(options.data))
    steps, seeds = (3, 1) if options.smoke else (STEPS, options.seeds)
    results = compare(lambda method, seed: train(method, seed, data, steps), list(METHODS), seeds)
    print(f"{len(data.train)} + {len(data.test)} ratings" + (", made up" if options.data is None else ""))
    print(table(results))
    if options.figure:
        save(dots(results), options.figure)


if __name__ == "__main__":
    main()
