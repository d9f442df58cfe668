"""Molecules in memory: flat arrays over all atoms and all bonds, and the published node and edge features."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from .chemistry import ATOMIC_NUMBERS
from .perception import AROMATIC, Perception

HARTREE = 27.211386246  # eV

# The eleven tasks: name, column of PyTorch Geometric's QM9, factor from its unit to the reported one.
TASKS = ("mu", "alpha", "homo", "lumo", "r2", "zpve", "U0", "U", "H", "G", "cv")
TASK_COLUMNS = (0, 1, 2, 3, 5, 6, 12, 13, 14, 15, 11)
TASK_SCALES = (1.0, 1.0, 1e3, 1e3, 1.0, 1e3, 1e3, 1e3, 1e3, 1e3, 1.0)  # energies are reported in meV

# Energies of the free atoms H C N O F in 1e-6 hartree for U0, U, H, G (QM9's own atomref).
ATOM_REFERENCE = np.array(
    [
        [-500273, -37846772, -54583861, -75064579, -99718730],
        [-498857, -37845355, -54582445, -75063163, -99717314],
        [-497912, -37844411, -54581501, -75062219, -99716370],
        [-510927, -37861317, -54598897, -75079532, -99733544],
    ],
    dtype=np.int64,
)
# Decimals of the twelve raw columns: mu alpha homo lumo gap r2 zpve U0 U H G cv.
RAW_SCALE = np.array([1e4, 1e2, 1e4, 1e4, 1e4, 1e4, 1e6, 1e6, 1e6, 1e6, 1e6, 1e3])
_HARTREE_COLUMNS = [2, 3, 4, 6, 7, 8, 9, 10, 12, 13, 14, 15]


@dataclass(frozen=True)
class Molecules:
    """Molecules as flat arrays; every value is an integer, as published, so that nothing depends on rounding.

    ``atoms [M]`` counts atoms, ``number [A]`` their atomic numbers, ``grid [A, 3]`` their positions in 1e-4
    Angstrom, ``bonds [M]`` counts bonds, ``bond [B, 2]`` the bonded atoms i < j of each molecule, ``order [B]``
    1 to 3, ``raw [M, 12]`` the published columns as integers in their last decimal, ``index [M]`` QM9's number.
    ``perception`` is there where the rich features are wanted: see `equipoise.suites.qm9.enrich`.
    """

    index: npt.NDArray[np.int64]
    atoms: npt.NDArray[np.int64]
    number: npt.NDArray[np.uint8]
    grid: npt.NDArray[np.int32]
    bonds: npt.NDArray[np.int64]
    bond: npt.NDArray[np.uint8]
    order: npt.NDArray[np.uint8]
    raw: npt.NDArray[np.int64]
    perception: Perception | None = None

    def __len__(self) -> int:
        return len(self.atoms)

    @cached_property
    def atom_offset(self) -> npt.NDArray[np.int64]:
        """First atom of each molecule, and the total."""
        return _offsets(self.atoms)

    @cached_property
    def bond_offset(self) -> npt.NDArray[np.int64]:
        """First bond of each molecule, and the total."""
        return _offsets(self.bonds)

    @cached_property
    def position(self) -> npt.NDArray[np.float32]:
        """Positions in Angstrom, ``[A, 3]``."""
        return (self.grid / 1e4).astype(np.float32)

    @cached_property
    def element(self) -> npt.NDArray[np.int64]:
        """0 to 4 for H, C, N, O, F, ``[A]``."""
        return np.searchsorted(ATOMIC_NUMBERS, self.number)

    @cached_property
    def hydrogens(self) -> npt.NDArray[np.int64]:
        """Bonded hydrogens of each atom, ``[A]``."""
        first, second = self._bond_atoms()
        count = np.zeros(len(self.number), dtype=np.int64)
        np.add.at(count, first[self.number[second] == 1], 1)
        np.add.at(count, second[self.number[first] == 1], 1)
        return count

    def features(self) -> npt.NDArray[np.float32]:
        """The node features ``[A, 11]``: one-hot H C N O F, Z, aromatic, sp, sp2, sp3, number of hydrogens.

        PyTorch Geometric fills columns 6 to 9 (aromatic, sp, sp2, sp3) with zeros on QM9, because it reads the
        molecules unsanitised; every published multi-task number was trained on those zeros. So they are here, but
        for molecules with a `perception`.
        """
        features = np.zeros((len(self.number), 11), dtype=np.float32)
        features[np.arange(len(self.number)), self.element] = 1
        features[:, 5] = self.number
        if self.perception is not None:
            features[:, 6] = self.perception.aromatic
            features[:, 7:10] = self.perception.hybridisation[:, None] == np.arange(1, 4)
        features[:, 10] = self.hydrogens
        return features

    def bond_classes(self) -> npt.NDArray[np.uint8]:
        """The class of each bond, ``[B]``: its order, or 4 where it is perceived to be aromatic."""
        if self.perception is None:
            return self.order
        return np.where(self.perception.aromatic_bond, np.uint8(AROMATIC), self.order)

    def columns(self) -> npt.NDArray[np.float64]:
        """PyTorch Geometric's first sixteen target columns, in Debye, bohr^3, eV, bohr^2 and cal/mol/K."""
        raw = self.raw
        count = np.zeros((len(self), 5), dtype=np.int64)
        np.add.at(count, (np.repeat(np.arange(len(self)), self.atoms), self.element), 1)
        atomization = (raw[:, 7:11] - count @ ATOM_REFERENCE.T) / 1e6
        values = np.concatenate([raw / RAW_SCALE, atomization], axis=1)
        values[:, _HARTREE_COLUMNS] *= HARTREE
        return values

    def targets(self) -> npt.NDArray[np.float64]:
        """The eleven task targets ``[M, 11]`` in the units of :meth:`columns`."""
        return self.columns()[:, TASK_COLUMNS]

    def bond_matrices(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """Every molecule's n x n matrix of bond orders (0 where not bonded), flat, and where each one begins."""
        start = _offsets(self.atoms**2)
        flat = np.zeros(start[-1], dtype=np.uint8)
        molecule = np.repeat(np.arange(len(self)), self.bonds)
        i, j, n = self.bond[:, 0].astype(np.int64), self.bond[:, 1].astype(np.int64), self.atoms[molecule]
        flat[start[molecule] + i * n + j] = self.order
        flat[start[molecule] + j * n + i] = self.order
        return flat, start

    def take(self, chosen: npt.NDArray[np.int64]) -> Molecules:
        """The molecules at ``chosen``, in that order."""
        atom = _ranges(self.atom_offset[chosen], self.atoms[chosen])
        bond = _ranges(self.bond_offset[chosen], self.bonds[chosen])
        return Molecules(
            index=self.index[chosen],
            atoms=self.atoms[chosen],
            number=self.number[atom],
            grid=self.grid[atom],
            bonds=self.bonds[chosen],
            bond=self.bond[bond],
            order=self.order[bond],
            raw=self.raw[chosen],
            perception=None if self.perception is None else self.perception.take(atom, bond),
        )

    def _bond_atoms(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        start = np.repeat(self.atom_offset[:-1], self.bonds)
        return start + self.bond[:, 0], start + self.bond[:, 1]


def _offsets(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(counts)])


def _ranges(starts: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """start, start + 1, ... for each start, one after the other."""
    return np.repeat(starts - _offsets(counts)[:-1], counts) + np.arange(counts.sum())
