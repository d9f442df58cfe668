"""Reads QM9 from the CSV files of the package ``qm9pack`` (without importing it)."""

from __future__ import annotations

import csv
import hashlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .chemistry import ATOMIC_NUMBERS, ELEMENTS, bond_orders, bonded_pairs, orders_from_lengths
from .molecules import RAW_SCALE, Molecules

SHA256 = {
    "qm9_part1.csv": "19f0a5d595462d52cd82eef3370f3e9eb55a1f52cb14985657200349568deff3",
    "qm9_part2.csv": "2bca113fdc0b28a13563c80ed9b240e934f3da6c64c64fe74ddb4f0f36036e61",
    "qm9_part3.csv": "9c5efb5733d2af149db8d95d36ff198b4ffed12d9f7b344220a1e5877d5c6a43",
}
_TARGETS = (
    "Dipole_debye",
    "Polarizability_bohr3",
    "HOMO_au",
    "LUMO_au",
    "HOMO_LUMO_gap_au",
    "R2_bohr2",
    "ZPVE_au",
    "InternalEnergy_0K_au",
    "InternalEnergy_298K_au",
    "Enthalphy_298K_au",
    "GibbsFreeEnergy_298K_au",
    "Heatcapacity_Cv_cal_mol_K",
)


def qm9pack_folder() -> Path:
    """The folder with qm9pack's CSV files."""
    spec = importlib.util.find_spec("qm9pack")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(
            "QM9 is read from the package `qm9pack` (104 MB, 130,831 molecules), which was not found: "
            "`pip install qm9pack`."
        )
    return Path(spec.submodule_search_locations[0]) / "data"


def read_qm9pack(folder: Path | None = None) -> Molecules:
    """All 130,831 molecules, in the order of PyTorch Geometric's QM9. Takes about 15 seconds; see ``data.load``."""
    folder = qm9pack_folder() if folder is None else folder
    for name, digest in SHA256.items():
        path = folder / name
        if not path.is_file():
            raise FileNotFoundError(f"`folder` should hold qm9pack's {name}. Found no such file in {folder}.")
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != digest:
            raise ValueError(f"{path} should have the sha256 of qm9pack 1.0.3, {digest}. Found {found}.")
    return read_csv([folder / name for name in SHA256])


def read_csv(paths: list[Path]) -> Molecules:
    """The molecules of files with qm9pack's columns."""
    index, smiles, counts, raw = [], [], [], []
    numbers: list[npt.NDArray[np.uint8]] = []
    grids: list[npt.NDArray[np.int32]] = []
    for row in _rows(paths):
        elements = row["Elements"][2:-2].split("','")
        position = np.array(row["XYZ_Ang"].translate(_NO_BRACKETS).split(","), dtype=np.float64)
        if len(elements) != int(row["N_atoms"]) or position.size != 3 * len(elements):
            raise ValueError(
                f"Row {row['XYZ_file']!r} should have N_atoms = {row['N_atoms']} elements and positions. "
                f"Found {len(elements)} elements and {position.size} coordinates."
            )
        index.append(int(row["Index"]))
        smiles.append(row["SMILES"])
        counts.append(len(elements))
        numbers.append(np.array([ELEMENTS[e] for e in elements], dtype=np.uint8))
        grids.append(np.rint(position * 1e4).astype(np.int32).reshape(-1, 3))
        raw.append([float(row[name]) for name in _TARGETS])
    number, grid = np.concatenate(numbers), np.concatenate(grids)
    atoms = np.array(counts, dtype=np.int64)
    bonds, bond = _bonds(atoms, number, grid)
    return Molecules(
        index=np.array(index, dtype=np.int64),
        atoms=atoms,
        number=number,
        grid=grid,
        bonds=bonds,
        bond=bond,
        order=_orders(smiles, atoms, number, grid, bonds, bond),
        raw=_as_integers(np.array(raw)),
    )


_NO_BRACKETS = str.maketrans("", "", "[] ")


def _rows(paths: list[Path]) -> Iterator[dict[str, str]]:
    for path in paths:
        with path.open(newline="") as file:
            yield from csv.DictReader(file)


def _as_integers(values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Published decimals as integers; refuses a value with more decimals than its column has."""
    scaled = values * RAW_SCALE
    integers = np.rint(scaled)
    worst = np.abs(scaled - integers).max(axis=0)
    if (worst > 1e-4).any():
        column = _TARGETS[int(worst.argmax())]
        raise ValueError(f"Column {column} should have no digits beyond QM9's. Found a rest of {worst.max():.2g}.")
    return np.asarray(integers, dtype=np.int64)


def _bonds(
    atoms: npt.NDArray[np.int64], number: npt.NDArray[np.uint8], grid: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Bond counts and the bonds of each molecule, found for all molecules of one size at once."""
    start = np.concatenate([[0], np.cumsum(atoms)])[:-1]
    found = []
    for n in np.unique(atoms):
        molecule = np.flatnonzero(atoms == n)
        atom = start[molecule][:, None] + np.arange(n)
        for part in np.array_split(np.arange(len(molecule)), 1 + len(molecule) // 2000):
            pairs = bonded_pairs(grid[atom[part]].astype(np.int64), number[atom[part]])
            pairs[:, 0] = molecule[part][pairs[:, 0]]
            found.append(pairs)
    pairs = np.concatenate(found)
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]  # (i, j) are already in order within a molecule
    return np.bincount(pairs[:, 0], minlength=len(atoms)), pairs[:, 1:].astype(np.uint8)


def _orders(
    smiles: list[str],
    atoms: npt.NDArray[np.int64],
    number: npt.NDArray[np.uint8],
    grid: npt.NDArray[np.int32],
    bonds: npt.NDArray[np.int64],
    bond: npt.NDArray[np.uint8],
) -> npt.NDArray[np.uint8]:
    """Bond orders: 1 for bonds to hydrogen, from the SMILES for the others."""
    atom_end, bond_end = np.cumsum(atoms), np.cumsum(bonds)
    order = np.ones(len(bond), dtype=np.uint8)
    for molecule, text in enumerate(smiles):
        if "=" not in text and "#" not in text:
            continue
        atom = slice(atom_end[molecule] - atoms[molecule], atom_end[molecule])
        rows = np.arange(bond_end[molecule] - bonds[molecule], bond_end[molecule])
        z = number[atom]
        rank = np.cumsum(z > 1) - 1  # numbering of the heavy atoms alone
        rows = rows[(z[bond[rows]] > 1).all(axis=1)]
        pairs = [(int(i), int(j)) for i, j in rank[bond[rows]]]
        heavy = z[z > 1].tolist()
        found = bond_orders(text, heavy, pairs)
        if found is None:
            hydrogens = _hydrogens(z, bond[bond_end[molecule] - bonds[molecule] : bond_end[molecule]])
            difference = grid[atom][bond[rows, 0]] - grid[atom][bond[rows, 1]]
            lengths = np.sqrt((difference.astype(np.float64) ** 2).sum(-1)).tolist()
            found = orders_from_lengths(heavy, hydrogens, pairs, lengths)
        order[rows] = found
    return order


def _hydrogens(number: npt.NDArray[np.uint8], bond: npt.NDArray[np.uint8]) -> list[int]:
    count = np.zeros(len(number), dtype=np.int64)
    for i, j in bond:
        count[i] += number[j] == ATOMIC_NUMBERS[0]
        count[j] += number[i] == ATOMIC_NUMBERS[0]
    return [int(n) for n in count[number > 1]]
