"""Vision, three losses on different scales: two overlapping handwritten digits, named and taken apart.

scikit-learn's 1,797 real digits of 8 x 8 pixels, two of them laid over each other with a shift, as in the
MultiMNIST of Sener and Koltun. Tasks: which digit is on the left, which on the right, and the left one's picture
alone, its squared error in the file's own units, 0 to 16 a pixel. That third loss starts ten times above the other
two. Four seconds a run:

    python examples/vision.py
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import equipoise as eq
from show import arguments, compare, dots, save, table

TASKS = ("left", "right", "picture")
METHODS = {
    "LS": eq.LS,
    "LS, tuned": lambda tasks: eq.LS(tasks=tasks, weights=(1, 1, 0.03)),  # of 1, 0.3, ... 0.01 on seed 100
    "SI": eq.SI,
    "UW": eq.UW,
    "FAMO": eq.FAMO,
    "FairGrad": eq.FairGrad,
    "LDC": eq.LDC,
}
BATCH, STEPS, SIZE = 64, 800, 12


class Network(nn.Module):
    """A few convolutions that all tasks share, and a head for each."""

    def __init__(self) -> None:
        super().__init__()
        layers = [
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
        ]
        self.trunk = nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 9, 64), nn.ReLU())
        self.heads = nn.ModuleDict(
            {"left": nn.Linear(64, 10), "right": nn.Linear(64, 10), "picture": nn.Linear(64, 64)}
        )

    def forward(self, images: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        features = self.trunk(images)
        return {task: head(features) for task, head in self.heads.items()}, features

    def losses(self, batch: tuple[Tensor, ...]) -> tuple[dict[str, Tensor], Tensor]:
        images, left, right, picture = batch
        outputs, features = self(images)
        found = {
            "left": nn.functional.cross_entropy(outputs["left"], left),
            "right": nn.functional.cross_entropy(outputs["right"], right),
            "picture": nn.functional.mse_loss(outputs["picture"], picture),
        }
        return found, features


class Pairs:
    """Pairs of digits; those of the test part are never seen in training, alone or paired."""

    def __init__(self, seed: int) -> None:
        pixels, names = load_digits(return_X_y=True)
        self.pixels = torch.tensor(pixels, dtype=torch.float32).view(-1, 8, 8)
        self.names = torch.tensor(names)
        order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed))
        self.train, self.test = order[360:], order[:360]

    def draw(self, part: Tensor, count: int, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        """Images, the digits on the left and on the right, and the left picture, flat."""
        left, right = part[torch.randint(len(part), (2, count), generator=generator)]
        images = torch.zeros(count, 1, SIZE, SIZE)
        images[:, 0, :8, :8] = self.pixels[left]
        images[:, 0, 4:, 4:] = torch.maximum(images[:, 0, 4:, 4:], self.pixels[right])
        return images / 16, self.names[left], self.names[right], self.pixels[left].flatten(1)


def train(method: str, seed: int, steps: int = STEPS) -> dict[str, float]:
    data, model, balancer = Pairs(seed), Network(), METHODS[method](tasks=TASKS)
    optimizer = torch.optim.Adam([*model.parameters(), *balancer.parameters()], lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        batch = data.draw(data.train, BATCH)
        losses, features = model.losses(batch)
        optimizer.zero_grad()
        balancer(losses, shared=features).backward()
        optimizer.step()
        schedule.step()
        if balancer.needs_after_step:  # FAMO looks twice at a batch
            with torch.no_grad():
                balancer.after_step(model.losses(batch)[0])
    images, left, right, picture = data.draw(data.test, 4000, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        outputs, _ = model(images)
    return {
        "left, % right": 100 * (outputs["left"].argmax(1) == left).float().mean().item(),
        "right, % right": 100 * (outputs["right"].argmax(1) == right).float().mean().item(),
        "picture, rms error": nn.functional.mse_loss(outputs["picture"], picture).sqrt().item(),
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
