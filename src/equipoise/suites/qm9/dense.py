"""Batches without edge lists: molecules as padded blocks, sorted by size so that little is padding.

A batch holds the molecules it was given, smallest first, cut into groups; every molecule of a group is padded to
the group's capacity. The rows of all groups stand one after the other in one tensor ``[runs, rows, ...]``, and the
complete graph of a molecule is its ``n x n`` block. The leading axis holds one batch for each of the weight sets
that are trained at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .molecules import Molecules

NODE_FEATURES = 11


class Layout(NamedTuple):
    """The groups of a batch as (molecules, capacity) pairs, smallest capacity first."""

    groups: tuple[tuple[int, int], ...]

    @property
    def rows(self) -> int:
        """Rows of atoms, padding included."""
        return sum(count * capacity for count, capacity in self.groups)

    @property
    def molecules(self) -> int:
        return sum(count for count, _ in self.groups)

    def slices(self) -> Iterator[tuple[slice, slice, int, int]]:
        """For each group: its molecules, its rows, how many molecules, their capacity."""
        molecule = row = 0
        for count, capacity in self.groups:
            yield slice(molecule, molecule + count), slice(row, row + count * capacity), count, capacity
            molecule += count
            row += count * capacity


def plan_layout(sizes: npt.NDArray[np.int64], most: int = 4, overhead: float = 0.0) -> Layout:
    """The cheapest layout into which every batch fits; a row of ``sizes`` has one batch's sizes, increasing.

    most: groups at most; overhead: what one more group costs, in rows.

    >>> plan_layout(np.array([[3, 4, 9, 9], [3, 5, 8, 9]]), most=2)
    Layout(groups=((2, 5), (2, 9)))
    """
    capacity = np.maximum(sizes.max(axis=0), 2)
    # Projecting a row costs 64 products for each of 64 x 132 weights; meeting a row's n neighbours, n of them.
    cost = capacity * (1 + capacity / 64)
    batch = len(capacity)
    best = np.full((most + 1, batch + 1), np.inf)
    cut = np.zeros((most + 1, batch + 1), dtype=np.int64)
    best[0, 0] = 0
    for used in range(1, most + 1):
        for end in range(1, batch + 1):
            total = best[used - 1, :end] + (end - np.arange(end)) * cost[end - 1] + overhead
            cut[used, end] = int(total.argmin())
            best[used, end] = total.min()
    used, end = int(best[:, batch].argmin()), batch
    groups: list[tuple[int, int]] = []
    while end:
        start = int(cut[used, end])
        groups.append((end - start, int(capacity[end - 1])))
        used, end = used - 1, start
    return Layout(tuple(reversed(groups)))


class Batch(NamedTuple):
    """One batch for each of R runs, laid out densely; empty molecules fill a batch that is not full.

    nodes ``[R, rows, 11]``; pairs ``[R, P]``, for each molecule of each group its n x n distances, 0 where there is
    no edge, whose last two bits (far below what the positions tell) are the order of the bond; inverse
    ``[R, rows]``: 1 / neighbours of each atom, 0 in padding; atoms ``[R, B]``; targets ``[R, B, T]``; share
    ``[R, B]``: what each molecule counts in a mean over the batch, 0 if empty; rich: the features are the rich ones,
    and the last three bits of a pair are the class of the bond.
    """

    layout: Layout
    nodes: Tensor
    pairs: Tensor
    inverse: Tensor
    atoms: Tensor
    targets: Tensor
    share: Tensor
    rich: bool = False

    def part(self, first: int, every: int) -> Batch:
        """Of the molecules, counted from the smallest, `first` and every `every`-th after it, as a batch of its own."""
        groups, atoms = [], torch.arange(self.layout.molecules)[first::every].to(self.atoms.device)
        nodes, pairs, inverse, pair, runs = [], [], [], 0, len(self.nodes)
        for molecules, rows, count, capacity in self.layout.slices():
            mine = slice((first - molecules.start) % every, None, every)
            if left := len(range(count)[mine]):
                groups.append((left, capacity))
                nodes.append(self.nodes[:, rows].reshape(runs, count, capacity, -1)[:, mine].flatten(1, 2))
                inverse.append(self.inverse[:, rows].reshape(runs, count, capacity)[:, mine].flatten(1))
                stretch = self.pairs[:, pair : pair + count * capacity**2]
                pairs.append(stretch.reshape(runs, count, capacity**2)[:, mine].flatten(1))
            pair += count * capacity**2
        share = (self.atoms[:, atoms] > 0).float()
        return Batch(
            layout=Layout(tuple(groups)),
            nodes=torch.cat(nodes, 1),
            pairs=torch.cat(pairs, 1),
            inverse=torch.cat(inverse, 1),
            atoms=self.atoms[:, atoms],
            targets=self.targets[:, atoms],
            share=share / share.sum(1, keepdim=True).clamp(min=1),
            rich=self.rich,
        )


class Resident:
    """Molecules as padded tensors on a device, from which batches are gathered there.

    targets: what the network learns, ``[S, molecules, T]`` in S standardisations. Row ``len(molecules)`` of
    everything is an empty molecule.
    """

    def __init__(self, molecules: Molecules, targets: npt.NDArray[np.float64], device: torch.device | str) -> None:
        count, widest = len(molecules), int(molecules.atoms.max())
        owner = np.repeat(np.arange(count), molecules.atoms)
        place = np.arange(len(owner)) - molecules.atom_offset[owner]
        node = np.zeros((count + 1, widest, NODE_FEATURES), dtype=np.uint8)
        node[owner, place] = molecules.features()
        position = np.zeros((count + 1, widest, 3), dtype=np.float32)
        position[owner, place] = molecules.position
        bond = np.zeros((count + 1, widest, widest), dtype=np.uint8)
        molecule = np.repeat(np.arange(count), molecules.bonds)
        i, j = molecules.bond[:, 0], molecules.bond[:, 1]
        bond[molecule, i, j] = bond[molecule, j, i] = molecules.bond_classes()
        self.rich = molecules.perception is not None
        empty = np.zeros_like(targets[:, :1])
        self.empty = count
        self.sizes = np.append(molecules.atoms, 0)
        self.node = torch.from_numpy(node).to(device)
        self.position = torch.from_numpy(position).to(device)
        self.bond = torch.from_numpy(bond).to(device)
        self.atoms = torch.from_numpy(self.sizes).to(device)
        self.targets = torch.from_numpy(np.concatenate([targets, empty], axis=1).astype(np.float32)).to(device)

    def gather(self, index: Tensor, layout: Layout, which: Tensor | None = None) -> Batch:
        """The batch of the molecules ``index [R, B]``, each row sorted by size to fit ``layout``.

        which: for each run its standardisation, ``[R]``; the first where None.
        """
        atoms = self.atoms[index]
        nodes, pairs, inverse = [], [], []
        for molecules, _, _, capacity in layout.slices():
            chosen, sizes = index[:, molecules], atoms[:, molecules, None]
            inside = torch.arange(capacity, device=index.device) < sizes
            nodes.append(self.node[:, :capacity][chosen].flatten(1, 2).float())
            pairs.append(self._pairs(chosen, inside, capacity).flatten(1))
            inverse.append((inside / (sizes - 1).clamp(min=1)).flatten(1))
        share = (atoms > 0).float()
        return Batch(
            layout=layout,
            nodes=torch.cat(nodes, 1),
            pairs=torch.cat(pairs, 1),
            inverse=torch.cat(inverse, 1),
            atoms=atoms,
            targets=self.targets[0, index] if which is None else self.targets[which[:, None], index],
            share=share / share.sum(1, keepdim=True),
            rich=self.rich,
        )

    def _pairs(self, chosen: Tensor, inside: Tensor, capacity: int) -> Tensor:
        """``[R, count, n, n]`` for the molecules ``chosen [R, count]``."""
        position = self.position[:, :capacity][chosen]
        distance = (position[:, :, :, None] - position[:, :, None]).square().sum(-1).sqrt()
        bond = self.bond[:, :capacity, :capacity][chosen]
        packed = ((distance.view(torch.int32) & _distance_bits(self.rich)) | bond).view(torch.float32)
        return torch.where(inside[..., :, None] & inside[..., None, :], packed, 0.0)


def _distance_bits(rich: bool) -> int:
    """The bits of a pair that are its distance: all but the last two, or three if there are aromatic bonds."""
    return -8 if rich else -4


def unpack_pairs(pairs: Tensor, rich: bool = False) -> tuple[Tensor, Tensor]:
    """Distances, and the orders of the bonds (0 to 3); if rich their classes, 4 for an aromatic bond.

    >>> distance, order = unpack_pairs(torch.tensor([1.0, 0.0]))
    >>> distance.tolist(), order.tolist()
    ([1.0, 0.0], [0, 0])
    """
    bits, distance = pairs.view(torch.int32), _distance_bits(rich)
    return (bits & distance).view(torch.float32), bits & ~distance


def by_size(
    order: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], batch: int, empty: int
) -> npt.NDArray[np.int64]:
    """Cut an order of molecules into batches ``[steps, batch]``, the last filled up with ``empty``, each by size.

    >>> by_size(np.array([2, 0, 1]), np.array([5, 3, 9, 0]), 2, empty=3).tolist()
    [[0, 2], [3, 1]]
    """
    steps = -(-len(order) // batch)
    filled = np.full(steps * batch, empty, dtype=np.int64)
    filled[: len(order)] = order
    rows = filled.reshape(steps, batch)
    return np.take_along_axis(rows, np.argsort(sizes[rows], axis=1, kind="stable"), axis=1)
