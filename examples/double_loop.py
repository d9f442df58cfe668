"""How large is the router's gradient at the solved lower level? Algorithm 1 of LDC-MTL on real QM9 molecules.

The paper drops grad_W g(W, z_N) because it is "orders of magnitude smaller" than grad_W g(W, x). This trains a small
network on two properties of 512 molecules with N = 50 inner steps, as there, and prints the two norms for several
batch sizes and forms of LDC: what decides is whether z_N has learnt the mini-batch by heart. A minute:

    python examples/double_loop.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

import equipoise as eq
from equipoise.suites.qm9 import TASKS, load_sample

MOLECULES = 512
PROPERTIES = ("mu", "alpha")
FORMS: dict[str, dict[str, Any]] = {
    "softmax, losses as they are": {"normalize": None},
    "softmax, l / l0": {"normalize": "rescale"},
    "sigmoid, losses as they are": {"router": "sigmoid", "normalize": None},
    "the QM9 preset: sigmoid, log(l / l0)": {"router": "sigmoid", "normalize": "log", "discrepancy": 0.05},
}


def molecules() -> tuple[Tensor, Tensor]:
    """Atoms of each element and bonds of each order in a molecule; two of its properties; all standardised."""
    sample = load_sample()
    sample = sample.take(np.random.default_rng(0).permutation(len(sample))[:MOLECULES])
    composition = np.zeros((MOLECULES, 8))
    np.add.at(composition, (np.repeat(np.arange(MOLECULES), sample.atoms), sample.element), 1)
    np.add.at(composition, (np.repeat(np.arange(MOLECULES), sample.bonds), 4 + sample.order), 1)
    targets = sample.targets()[:, [TASKS.index(name) for name in PROPERTIES]]
    x, y = (torch.tensor((a - a.mean(0)) / a.std(0), dtype=torch.float32) for a in (composition, targets))
    return x, y


def norms(batch: int, steps: int = 200, inner_lr: float = 0.1, **options: Any) -> np.ndarray:
    """|grad_W g(W, x)| and |grad_W g(W, z_N)| at every step, [steps, 2]."""
    torch.manual_seed(0)
    x, y = molecules()
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    balancer = eq.DoubleLoopLDC(2, inner_steps=50, inner_lr=inner_lr, **options)
    optimizer = torch.optim.Adam([*model.parameters(), *balancer.parameters()], lr=1e-3)
    chosen = torch.arange(batch)

    def losses(params: dict[str, Tensor]) -> Tensor:
        return (functional_call(model, params, x[chosen]) - y[chosen]).square().mean(0)

    rows = []
    for step in range(steps):
        if step % (MOLECULES // batch) == 0:
            balancer.start_epoch()
            order = torch.randperm(MOLECULES).split(batch)
        chosen = order[step % (MOLECULES // batch)]
        optimizer.zero_grad()
        balancer.backward(losses, dict(model.named_parameters()))
        optimizer.step()
        rows.append([balancer.status["router_gradient"].item(), balancer.status["inner_router_gradient"].item()])
    return np.array(rows)


def main() -> None:
    print("| form | batch | median at x | median at z_N | median ratio | ratio above 100 |")
    print("|---|---|---|---|---|---|")
    for name, options in FORMS.items():
        for batch in (4, 8, 32, 128):
            at_x, at_z = norms(batch, **options).T
            moved = at_x > 0  # not where every loss is in balance, as at the first step after normalising
            ratio = at_x[moved] / at_z[moved]
            cells = [f"{np.median(v):.3g}" for v in (at_x, at_z, ratio)] + [f"{100 * (ratio > 100).mean():.0f} %"]
            print("| " + " | ".join([name, str(batch), *cells]) + " |")


if __name__ == "__main__":
    main()
