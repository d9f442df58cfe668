"""The sample, and molecules as qm9pack's files have them."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from equipoise.suites.qm9 import data, raw
from equipoise.suites.qm9.molecules import Molecules

SAMPLE = data.load_sample()
FIELDS = ("index", "atoms", "number", "grid", "bonds", "bond", "order", "raw")


def assert_same(left: Molecules, right: Molecules) -> None:
    for field in FIELDS:
        np.testing.assert_array_equal(getattr(left, field), getattr(right, field), err_msg=field)


def write_csv(path: Path, molecules: Molecules, smiles: list[str]) -> None:
    """The molecules as qm9pack writes them, all columns the reader looks at."""
    names = ["XYZ_file", "Index", "SMILES", "N_atoms", "Elements", "XYZ_Ang", *raw._TARGETS]
    symbols = {1: "H", 6: "C", 7: "N", 8: "O", 9: "F"}
    with path.open("w", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(names)
        for m, text in enumerate(smiles):
            atoms = slice(molecules.atom_offset[m], molecules.atom_offset[m + 1])
            elements = str([symbols[z] for z in molecules.number[atoms]]).replace(" ", "")
            position = str((molecules.grid[atoms] / 1e4).tolist()).replace(" ", "")
            columns = [f"{v:.6f}" for v in molecules.raw[m] / raw.RAW_SCALE]
            number = molecules.index[m]
            writer.writerow([f"{number}.xyz", number, text, molecules.atoms[m], elements, position, *columns])
