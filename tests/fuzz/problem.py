"""What is fuzzed with: awkward numbers, gradients of any rank and scale, and what counts as a clear error."""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

import equipoise as eq
from contract.table import CASES, Row

SOURCE = Path(eq.__file__).parent
# A feature router reads features of six channels, which the problem of known gradients has not.
KNOWN = [(row, where) for row, where in CASES if not callable(row.options.get("router"))]

AWKWARD = [
    *(0.0, -0.0, 5e-324, 1e-45, 1e-40, 1.2e-38, 1e-30, 1e-12, 1e10, 1e19, 1e30, 3e38, 1e300),
    *(-1.0, -1e30, float("inf"), float("-inf"), float("nan")),
]
POWERS = [0, 0, 0, 0, -8, 8, -18, 18, -30, 30, -40]


@dataclass(frozen=True)
class Case:
    """Losses with these values and these gradients on the shared tensor; tasks that are not here are absent."""

    jacobian: Tensor
    values: Tensor
    here: list[bool]

    @property
    def finite(self) -> bool:
        here = torch.tensor(self.here)
        return bool(torch.isfinite(self.values[here]).all() and torch.isfinite(self.jacobian[here]).all())


def case_of(draws: Random) -> Case:
    """Plain problems mostly; else gradients of one odd scale or of several, awkward losses, absent tasks."""
    tasks, width, rank = draws.randint(1, 5), draws.randint(1, 4), draws.randint(1, 4)
    left, right = (torch.tensor(draws.choices(range(-3, 4), k=k * rank)).double() for k in (tasks, width))
    kind = draws.choice(["plain", "plain", "one scale", "scales"])
    powers = draws.choices([0] if kind == "plain" else POWERS, k=1 if kind == "one scale" else tasks)
    scale = torch.tensor([10.0**power for power in powers], dtype=torch.float64)[:, None]
    odd = draws.choice([0.0, 0.0, 0.3, 1.0])
    values = [draws.choice(AWKWARD) if draws.random() < odd else 10 ** draws.uniform(-1, 1) for _ in range(tasks)]
    here = [draws.random() < 0.7 for _ in range(tasks)] if draws.random() < 0.3 else [True] * tasks
    dtype = draws.choice([torch.float32, torch.float64])
    jacobian = left.view(tasks, rank) @ right.view(rank, width) * scale
    return Case(jacobian.to(dtype), torch.tensor(values, dtype=torch.float64).to(dtype), here)


cases = st.randoms(use_true_random=True).map(case_of)


class Leaves(nn.Module):
    """The shared tensor at 0 and a head for each task at 1."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        tasks, width = case.jacobian.shape
        self.case = case
        self.x = nn.Parameter(torch.zeros(width, dtype=case.values.dtype))
        self.heads = nn.ParameterList(nn.Parameter(torch.ones((), dtype=case.values.dtype)) for _ in range(tasks))

    def losses(self, where: str) -> tuple[list[Tensor | None], object]:
        at = self.x * 1.0 if where == "features" else self.x
        rows = zip(self.case.jacobian, self.case.values, self.heads, self.case.here, strict=True)
        found = [row @ at + value * head if here else None for row, value, head, here in rows]
        return found, {"losses": None, "features": at, "parameters": [self.x]}[where]


def make(row: Row, tasks: int) -> eq.Balancer:
    """The row's method for this many tasks; options that are a number a task are cut or repeated."""
    options = dict(row.options)
    for name, value in options.items():
        value = value(tasks if name == "router" else 3) if callable(value) else value
        options[name] = tuple(value[i % len(value)] for i in range(tasks)) if isinstance(value, tuple) else value
    return eq.make(row.name, tasks, **options)


def assert_clear(error: BaseException) -> None:
    """A sentence of this package: raised here, naming what was wrong and the rule."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    inside = Path(frame.filename).is_relative_to(SOURCE)
    text = str(error)
    assert isinstance(error, (ValueError, TypeError, RuntimeError)), repr(error)
    assert inside, f"raised in {frame.filename}: {text}"
    assert re.search(r"`\w+`|the loss of task|needs|the shared features|the gradients that", text), text
    assert re.search(r"must|needs|has the unknown", text), text


def all_finite(tensors: dict[str, Tensor]) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())
