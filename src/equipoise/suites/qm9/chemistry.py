"""Bonds of a molecule: which atoms are bonded (from the geometry) and how (from its SMILES).

QM9 lists the heavy atoms of a molecule in the order of its SMILES (all but 4 of 130,831), so the bond orders
need no chemistry package: parse the Kekule SMILES, read the atoms off in order, and only where that fails look
for the atom numbering under which every SMILES bond is a bond of the geometry.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

ELEMENTS = {"H": 1, "C": 6, "N": 7, "O": 8, "F": 9}
ATOMIC_NUMBERS = np.array(sorted(ELEMENTS.values()), dtype=np.uint8)

# Covalent radii and tolerance in 1e-4 Angstrom: two atoms are bonded when closer than r_i + r_j + 0.45. This is
# the rule that gives PyTorch Geometric's edge count on the whole set (4,883,516 directed edges).
_RADII = np.zeros(10, dtype=np.int64)
_RADII[[1, 6, 7, 8, 9]] = (2300, 6800, 6800, 6800, 6400)
_TOLERANCE = 4500

_TOKEN = re.compile(r"\[([A-Z])[^\]]*\]|([CNOF])|([=#()])|(\d)")
Bonds = dict[tuple[int, int], int]


def bonded_pairs(grid: npt.NDArray[np.int64], numbers: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Pairs i < j of bonded atoms in the molecules ``grid [M, n, 3]`` (1e-4 Angstrom), as rows (molecule, i, j).

    >>> import numpy as np
    >>> hydrogen_fluoride = np.array([[[0, 0, 0], [9200, 0, 0]]])
    >>> bonded_pairs(hydrogen_fluoride, np.array([[9, 1]], dtype=np.uint8)).tolist()
    [[0, 0, 1]]
    """
    first, second = np.triu_indices(grid.shape[1], k=1)
    squared = ((grid[:, first] - grid[:, second]) ** 2).sum(-1)
    reach = _RADII[numbers[:, first]] + _RADII[numbers[:, second]] + _TOLERANCE
    molecule, pair = np.nonzero(squared < reach**2)
    return np.stack([molecule, first[pair], second[pair]], axis=1)


def parse_smiles(smiles: str) -> tuple[list[int], Bonds]:
    """Atomic numbers of the heavy atoms and the bond orders of a Kekule SMILES of H, C, N, O, F.

    >>> parse_smiles("C1C=N1")
    ([6, 6, 7], {(0, 1): 1, (1, 2): 2, (0, 2): 1})
    """
    numbers: list[int] = []
    bonds: Bonds = {}
    branches: list[int] = []
    rings: dict[str, tuple[int, int]] = {}
    last, order, position = -1, 1, 0
    for match in _TOKEN.finditer(smiles):
        if match.start() != position:
            break
        position = match.end()
        bracket, atom, mark, ring = match.groups()
        if bracket or atom:
            numbers.append(ELEMENTS[bracket or atom])
            if last >= 0:
                bonds[last, len(numbers) - 1] = order
            last, order = len(numbers) - 1, 1
        elif ring and ring in rings:
            opened, opened_order = rings.pop(ring)
            bonds[opened, last] = max(order, opened_order)
            order = 1
        elif ring:
            rings[ring] = (last, order)
            order = 1
        elif mark == "(":
            branches.append(last)
        elif mark == ")":
            last = branches.pop()
        else:
            order = 2 if mark == "=" else 3
    if position != len(smiles) or rings or branches:
        raise ValueError(f"`smiles` should be a Kekule SMILES of H, C, N, O and F. Found {smiles!r}.")
    return numbers, bonds


def bond_orders(smiles: str, heavy: list[int], pairs: list[tuple[int, int]]) -> list[int] | None:
    """Order of each bond in ``pairs`` (i < j, numbering the heavy atoms ``heavy``), or None where no numbering fits.

    Bonds of the geometry that the SMILES does not have (long C-C contacts of strained cages) are single.

    >>> bond_orders("C=O", [6, 8], [(0, 1)])
    [2]
    """
    numbers, bonds = parse_smiles(smiles)
    _separate_charges(numbers, bonds)
    known = set(pairs)
    if numbers == heavy and known.issuperset(bonds):
        return [bonds.get(pair, 1) for pair in pairs]
    place = _match(numbers, bonds, heavy, known)
    if place is None:
        return None
    moved = {tuple(sorted((place[i], place[j]))): order for (i, j), order in bonds.items()}
    return [moved.get(pair, 1) for pair in pairs]


def _separate_charges(numbers: list[int], bonds: Bonds) -> None:
    """Nitro groups are written O=N(=O); as [O-][N+]=O, their common form, the second oxygen is singly bonded."""
    seen: set[int] = set()
    for (i, j), order in bonds.items():
        nitrogen = i if numbers[i] == 7 else j
        if order == 2 and {numbers[i], numbers[j]} == {7, 8}:
            if nitrogen in seen:
                bonds[i, j] = 1
            seen.add(nitrogen)


def _match(numbers: list[int], bonds: Bonds, heavy: list[int], known: set[tuple[int, int]]) -> list[int] | None:
    """The first numbering (SMILES atom -> atom of the geometry) that keeps elements and bonds: backtracking."""
    if sorted(numbers) != sorted(heavy):
        return None
    earlier: list[list[int]] = [[] for _ in numbers]
    for i, j in bonds:
        earlier[max(i, j)].append(min(i, j))
    place: list[int] = []

    def extend() -> bool:
        atom = len(place)
        if atom == len(numbers):
            return True
        for spot, element in enumerate(heavy):
            if element != numbers[atom] or spot in place:
                continue
            if all((min(spot, place[k]), max(spot, place[k])) in known for k in earlier[atom]):
                place.append(spot)
                if extend():
                    return True
                place.pop()
        return False

    return place if extend() else None


def orders_from_lengths(
    heavy: list[int], hydrogens: list[int], pairs: list[tuple[int, int]], lengths: list[float]
) -> list[int]:
    """Bond orders by filling valences, shortest bond first: for molecules whose SMILES is not their geometry.

    >>> orders_from_lengths([6, 6, 6], [2, 1, 3], [(0, 1), (1, 2)], [1.33, 1.50])
    [2, 1]
    """
    valence = {6: 4, 7: 3, 8: 2, 9: 1}
    free = [valence[z] - h for z, h in zip(heavy, hydrogens, strict=True)]
    orders = [1] * len(pairs)
    for i, j in pairs:
        free[i] -= 1
        free[j] -= 1
    for bond in sorted(range(len(pairs)), key=lengths.__getitem__):
        i, j = pairs[bond]
        extra = max(0, min(free[i], free[j], 2))
        orders[bond] += extra
        free[i] -= extra
        free[j] -= extra
    return orders
