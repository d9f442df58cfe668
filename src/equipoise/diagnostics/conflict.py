"""Which tasks' gradients point against each other, and how long they are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

OPPOSED = -0.1  # a cosine below it is no accident of a batch: directions drawn at random are near 0


@dataclass(frozen=True)
class Conflict:
    """Norms and cosines of the tasks' gradients.

    norms: [K].  cosines: [K, K]; NaN in the rows and columns of tasks without a gradient.
    """

    norms: Tensor
    cosines: Tensor

    @cached_property
    def pairs(self) -> Tensor:
        """The cosines of all pairs of tasks with a gradient."""
        upper = torch.ones_like(self.cosines, dtype=torch.bool).triu(1)
        found = self.cosines[upper]
        return found[~found.isnan()]

    @property
    def conflicting(self) -> float:
        """The share of pairs whose cosine is below 0; 0 where there is no pair."""
        return self._share(0.0)

    @property
    def opposed(self) -> float:
        """The share of pairs whose cosine is below -0.1."""
        return self._share(OPPOSED)

    @property
    def lowest(self) -> float:
        """The lowest cosine; NaN where there is no pair."""
        return float(self.pairs.min()) if len(self.pairs) else math.nan

    @property
    def spread(self) -> float:
        """The largest norm over the smallest, of the tasks with a gradient; NaN where none has one."""
        norms = self.norms[self.norms > 0]
        return float(norms.max() / norms.min()) if len(norms) else math.nan

    def worst(self, count: int) -> list[tuple[int, int, float]]:
        """The conflicting pairs (i, j) with the lowest cosines, the lowest first."""
        size = len(self.norms)
        upper = torch.ones_like(self.cosines, dtype=torch.bool).triu(1)
        values = torch.where(upper, self.cosines, torch.nan).nan_to_num(math.inf).flatten()
        lowest, places = values.topk(min(count, len(values)), largest=False)
        return [
            (place // size, place % size, value)
            for value, place in zip(lowest.tolist(), places.tolist(), strict=True)
            if value < 0
        ]

    def _share(self, below: float) -> float:
        return float((self.pairs < below).double().mean()) if len(self.pairs) else 0.0


def conflict(gram: Tensor) -> Conflict:
    """Norms and cosines from the Gram matrix of the tasks' gradients.

    >>> import torch
    >>> from equipoise.diagnostics.conflict import conflict
    >>> J = torch.tensor([[1.0, 0.0], [-3.0, 4.0], [0.0, 0.0]], dtype=torch.float64)
    >>> found = conflict(J @ J.T)
    >>> found.norms.tolist(), round(found.lowest, 6), found.conflicting
    ([1.0, 5.0, 0.0], -0.6, 1.0)
    """
    gram = gram.detach().to("cpu", torch.float64)
    norms = gram.diagonal().clamp(min=0.0).sqrt()
    scales = torch.where(norms > 0, norms, torch.nan)
    return Conflict(norms, (gram / scales / scales.unsqueeze(1)).clamp(-1.0, 1.0))
