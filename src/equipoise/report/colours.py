"""One colour a method: on every page, in every printed figure, and in the examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

#: The colours on white; page.css has them as --p0 to --p9, and lighter ones for dark pages.
PALETTE = (
    "#2f6fdb", "#d9731a", "#23935a", "#d1495b", "#8a5cd1", "#16919f", "#9a6b3f", "#cf55a0", "#7f8c16", "#5c6b80",
)  # fmt: skip
OWN = {"UW": 0, "LDC": 1, "SI": 2, "FairGrad": 4, "STL": 6, "FAMO": 7, "LS": 9}


class Colour(NamedTuple):
    """A place in `PALETTE`, and how often it was given away before: lines are then dashed."""

    place: int
    turn: int


def colours(names: Sequence[str]) -> list[Colour]:
    """Methods that are nearly always there keep their own; the others get what is left, then all once more.

    >>> [colour.place for colour in colours(["LS", "MGDA", "LDC"])]
    [9, 3, 1]
    """
    own = {OWN[name] for name in names if name in OWN}
    others = [place for place in range(len(PALETTE)) if place not in OWN.values()]
    free = [*others, *(place for place in OWN.values() if place not in own)]
    given, count = [], 0
    for name in names:
        if name in OWN:
            given.append(Colour(OWN[name], 0))
            continue
        late = count - len(free)
        given.append(Colour(free[count], 0) if late < 0 else Colour(late % len(PALETTE), 1 + late // len(PALETTE)))
        count += 1
    return given
