"""A transformer with two losses: the next character of a text, and where the text is from.

The text is real and at hand: the docstrings of a dozen packages of Python's standard library, read from the
interpreter that runs this. Whole docstrings are kept for the test. Five seconds a run:

    python examples/transformer.py
"""

from __future__ import annotations

import ast
import functools
import sysconfig
from pathlib import Path

import torch
from torch import Tensor, nn

import equipoise as eq
from show import arguments, compare, dots, save, table

PACKAGES = ("asyncio", "collections", "concurrent", "ctypes", "email", "http", "importlib", "json", "logging",
            "multiprocessing", "unittest", "xml")  # fmt: skip
TASKS = ("next character", "package")
METHODS = {
    "LS": eq.LS,
    "SI": eq.SI,
    "UW": eq.UW,
    "FAMO": eq.FAMO,
    "FairGrad": eq.FairGrad,
    "LDC": eq.LDC,
}
BATCH, STEPS, LENGTH, WIDTH = 32, 300, 32, 48
SYMBOLS = 128  # ASCII


@functools.cache
def docstrings() -> list[tuple[str, int]]:
    """(text, package) of every docstring long enough to cut a sample from; of equal ones the first."""
    found: dict[str, int] = {}
    for label, package in enumerate(PACKAGES):
        for file in sorted(Path(sysconfig.get_path("stdlib"), package).rglob("*.py")):
            if "test" in file.parts:
                continue
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                    text = (ast.get_docstring(node) or "").encode("ascii", "ignore").decode()
                    if len(text) > LENGTH:
                        found.setdefault(text, label)
    return list(found.items())


class Samples:
    """Stretches of LENGTH + 1 characters; a fifth of the docstrings is for the test."""

    def __init__(self, seed: int) -> None:
        texts = docstrings()
        order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(seed)).tolist()
        cut = len(texts) // 5
        self.test, self.train = ([texts[i] for i in part] for part in (order[:cut], order[cut:]))

    @staticmethod
    def draw(
        part: list[tuple[str, int]], count: int, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Characters [count, LENGTH + 1] and packages [count]."""
        places = torch.rand(count, 2, generator=generator).tolist()
        chosen = [(*part[int(which * len(part))], at) for which, at in places]
        cuts = [text[int(at * (len(text) - LENGTH)) :][: LENGTH + 1] for text, _, at in chosen]
        return torch.tensor([list(cut.encode()) for cut in cuts]), torch.tensor([label for _, label, _ in chosen])


class Transformer(nn.Module):
    """Two causal layers; a head at every position, and one on their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.symbols, self.places = nn.Embedding(SYMBOLS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.trunk = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.next, self.package = nn.Linear(WIDTH, SYMBOLS), nn.Linear(WIDTH, len(PACKAGES))
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, text: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        embedded = self.symbols(text) + self.places.weight
        features = self.trunk(embedded, mask=self.mask, is_causal=True)
        return self.next(features), self.package(features.mean(1)), features


def losses(model: Transformer, text: Tensor, label: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    following, package, features = model(text[:, :-1])
    cross_entropy = nn.functional.cross_entropy
    found = {
        "next character": cross_entropy(following.flatten(0, 1), text[:, 1:].flatten()),
        "package": cross_entropy(package, label),
    }
    return found, package, features


def train(method: str, seed: int, steps: int = STEPS) -> dict[str, float]:
    data, model, balancer = Samples(seed), Transformer(), METHODS[method](tasks=TASKS)
    optimizer = torch.optim.Adam([*model.parameters(), *balancer.parameters()], lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        batch = data.draw(data.train, BATCH)
        found, _, features = losses(model, *batch)
        optimizer.zero_grad()
        balancer(found, shared=features).backward()
        optimizer.step()
        schedule.step()
        if balancer.needs_after_step:  # FAMO looks twice at a batch
            with torch.no_grad():
                balancer.after_step(losses(model, *batch)[0])
    text, label = data.draw(data.test, 2000, torch.Generator().manual_seed(seed))
    model.eval()
    with torch.no_grad():
        found, package, _ = losses(model, text, label)
    return {
        "next character, nats": found["next character"].item(),
        "package, nats": found["package"].item(),
        "package, % right": 100 * (package.argmax(1) == label).float().mean().item(),
    }


def main() -> None:
    options = arguments(__doc__)
    steps, seeds = (3, 1) if options.smoke else (STEPS, options.seeds)
    results = compare(lambda method, seed: train(method, seed, steps), list(METHODS), seeds)
    print(table(results))
    if options.figure:
        save(dots(results), options.figure)


if __name__ == "__main__":
    main()
