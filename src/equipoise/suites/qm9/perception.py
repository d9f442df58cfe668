"""Which atoms and bonds are aromatic, and which atoms sp, sp2 or sp3: RDKit's answer, from the bonds we hold.

Molecules keep neither SMILES nor charges, so each is rebuilt from its atoms, bonds and orders: an atom's formal charge
is the bonds it has beyond its valence. Of a carbon with more than four (long contacts in strained cages, which the
geometry counts as bonds) the longest single bonds to carbon are left out, for this alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from .molecules import Molecules

AROMATIC = 4  # the class of an aromatic bond; 1 to 3 are orders
_CARBON = 6
_VALENCE = np.array([0, 1, 0, 0, 0, 0, 4, 3, 2, 1])  # by atomic number
_STRIDE = 1000  # molecules between two words on how far it is


class Perception(NamedTuple):
    """What RDKit says of the atoms and bonds of some molecules.

    aromatic ``[A]``; hybridisation ``[A]``: 1 to 3 for sp, sp2 and sp3, 0 for hydrogen; aromatic_bond ``[B]``.
    """

    aromatic: npt.NDArray[np.bool_]
    hybridisation: npt.NDArray[np.uint8]
    aromatic_bond: npt.NDArray[np.bool_]

    def take(self, atoms: npt.NDArray[np.int64], bonds: npt.NDArray[np.int64]) -> Perception:
        """That of the atoms and bonds at these places."""
        return Perception(self.aromatic[atoms], self.hybridisation[atoms], self.aromatic_bond[bonds])


def perceive(molecules: Molecules, say: Callable[[int], None] = lambda _: None) -> Perception:
    """Aromaticity and hybridisation of every atom and bond, by RDKit.

    say: is told now and then how many molecules are done.

    >>> from equipoise.suites.qm9 import load_sample
    >>> acetone = load_sample().take(np.arange(1))
    >>> perceive(acetone).hybridisation[acetone.number > 1].tolist()
    [3, 2, 3, 2]
    """
    chem = _rdkit()
    single, double, triple = chem.BondType.SINGLE, chem.BondType.DOUBLE, chem.BondType.TRIPLE
    bond_types = np.array([None, single, double, triple])
    kinds = {chem.HybridizationType.SP: 1, chem.HybridizationType.SP2: 2, chem.HybridizationType.SP3: 3}
    kept, charge = _sound_bonds(molecules)
    hybridisation = np.zeros(len(molecules.number), dtype=np.uint8)
    aromatic, aromatic_bond = np.zeros(len(molecules.number), dtype=bool), np.zeros(len(kept), dtype=bool)
    for m in range(len(molecules)):
        atoms = slice(*molecules.atom_offset[m : m + 2])
        bonds = np.arange(*molecules.bond_offset[m : m + 2])
        bonds = bonds[kept[bonds]]
        rebuilt = chem.RWMol()
        for number, formal in zip(molecules.number[atoms].tolist(), charge[atoms].tolist(), strict=True):
            atom = chem.Atom(number)
            atom.SetFormalCharge(formal)
            atom.SetNoImplicit(True)  # every hydrogen is there
            rebuilt.AddAtom(atom)
        for (i, j), bond_type in zip(molecules.bond[bonds].tolist(), bond_types[molecules.order[bonds]], strict=True):
            rebuilt.AddBond(i, j, bond_type)
        try:
            chem.SanitizeMol(rebuilt)
        except ValueError as error:
            raise ValueError(
                f"`molecules` should be sound to RDKit. Found number {molecules.index[m]}: {error}."
            ) from error
        hybridisation[atoms] = [kinds.get(atom.GetHybridization(), 0) for atom in rebuilt.GetAtoms()]
        aromatic[atoms] = [atom.GetIsAromatic() for atom in rebuilt.GetAtoms()]
        aromatic_bond[bonds] = [bond.GetIsAromatic() for bond in rebuilt.GetBonds()]
        if (m + 1) % _STRIDE == 0 or m + 1 == len(molecules):
            say(m + 1)
    return Perception(aromatic, hybridisation, aromatic_bond)


def _rdkit() -> Any:
    try:
        from rdkit import Chem
    except ImportError as error:
        raise ValueError("Rich features of QM9 need the package rdkit: pip install 'equipoise[chem]'.") from error
    return Chem


def _sound_bonds(molecules: Molecules) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """Which bonds are bonds to a chemist, ``[B]``, and with these the formal charge of each atom, ``[A]``."""
    start = np.repeat(molecules.atom_offset[:-1], molecules.bonds)
    first, second = start + molecules.bond[:, 0], start + molecules.bond[:, 1]
    excess = -_VALENCE[molecules.number]
    np.add.at(excess, first, molecules.order)
    np.add.at(excess, second, molecules.order)
    carbon = molecules.number == _CARBON
    crowded = (excess[first] > 0) | (excess[second] > 0)
    loose = np.flatnonzero(carbon[first] & carbon[second] & crowded & (molecules.order == 1))
    step = molecules.grid[first[loose]].astype(np.int64) - molecules.grid[second[loose]]
    kept = np.ones(len(molecules.order), dtype=bool)
    for bond in loose[np.argsort(-(step**2).sum(1), kind="stable")]:
        ends = [first[bond], second[bond]]
        if excess[ends].max() > 0:
            kept[bond] = False
            excess[ends] -= 1
    return kept, excess
