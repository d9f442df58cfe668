"""Which losses LDC compares."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.ldc import objective
from equipoise.losses import SMALLEST, nearest
from equipoise.random import make_seed, permutation

KINDS = ("chain", "shuffle", "all")


class Pairs(nn.Module):
    """f as a function of u: over a chain, a new chain each step, all pairs or the given ones."""

    def __init__(self, num_tasks: int, pairs: str | Sequence[Sequence[int]], smooth: float) -> None:
        super().__init__()
        if not (math.isfinite(smooth) and (smooth == 0.0 or smooth >= SMALLEST)):
            raise ValueError(f"`smooth` must be 0 or a finite number of at least {SMALLEST:g}; found {smooth!r}.")
        self.smooth = float(smooth)
        self.listed: Tensor | None
        self.seed: Tensor
        listed = None
        if isinstance(pairs, str):
            if pairs not in KINDS:
                raise ValueError(f"`pairs` must be one of {KINDS} or a list of pairs; {nearest(pairs, KINDS)}")
            self.kind = pairs
            #: Whether the order of the tasks does not matter.
            self.symmetric = num_tasks <= 2 or pairs == "all"
        else:
            listed = _listed(num_tasks, pairs)
            self.kind = "list"
            often = Counter(frozenset(pair) for pair in listed.tolist())
            self.symmetric = len(often) in (0, num_tasks * (num_tasks - 1) // 2) and len(set(often.values())) <= 1
        self.register_buffer("listed", listed, persistent=False)
        if self.kind == "shuffle":
            self.register_buffer("seed", make_seed(None))

    def forward(self, u: Tensor, present: Tensor | None, step: Tensor) -> Tensor:
        if self.kind == "chain":
            return objective.chain_gap(u, present, self.smooth)
        if self.kind == "all":
            return objective.every_gap(u, present, self.smooth)
        if self.listed is not None:
            return objective.listed_gap(u, self.listed, present, self.smooth)
        return objective.ordered_gap(u, permutation(self.seed, step, (u.shape[0],)), present, self.smooth)

    def extra_repr(self) -> str:
        return self.kind


def _listed(num_tasks: int, pairs: Sequence[Any]) -> Tensor:
    tasks = range(num_tasks)
    if not isinstance(pairs, Iterable):
        raise ValueError(f"`pairs` must be one of {KINDS} or a list of pairs; found {pairs!r}.")
    for pair in pairs:
        if (
            not isinstance(pair, Sequence)
            or isinstance(pair, str)
            or len(pair) != 2
            or any(i not in tasks for i in pair)
            or pair[0] == pair[1]
        ):
            raise ValueError(
                f"`pairs` must hold pairs of two different tasks from 0 to {num_tasks - 1}; found {pair!r}."
            )
    return torch.tensor([[int(i), int(j)] for i, j in pairs], dtype=torch.int64).reshape(-1, 2)
