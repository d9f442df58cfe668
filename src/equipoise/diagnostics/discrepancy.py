"""How far apart the losses are."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Discrepancy(NamedTuple):
    """Mean, deviation over tasks, smallest, largest, and largest over smallest (NaN where the smallest is not above 0).

    The columns of the paper's table of losses, and their ratio.
    """

    mean: float
    std: float
    min: float
    max: float
    ratio: float


def discrepancy(losses: Sequence[float]) -> Discrepancy:
    """The statistics of one number a task.

    >>> from equipoise.diagnostics.discrepancy import discrepancy
    >>> discrepancy([1.0, 3.0])
    Discrepancy(mean=2.0, std=1.0, min=1.0, max=3.0, ratio=3.0)
    """
    if not losses:
        raise ValueError("`losses` must hold at least one number; found none.")
    low, high = min(losses), max(losses)
    ratio = high / low if low > 0 else math.nan
    return Discrepancy(statistics.fmean(losses), statistics.pstdev(losses), low, high, ratio)
