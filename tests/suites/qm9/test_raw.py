"""Reading QM9 as qm9pack has it: molecules, what is refused, SMILES, bonds and their orders."""

from pathlib import Path

import numpy as np
import pytest

from equipoise.suites.qm9 import raw
from equipoise.suites.qm9.chemistry import bond_orders, bonded_pairs, orders_from_lengths, parse_smiles
from suites.qm9.molecule_files import SAMPLE, assert_same, write_csv

# Methane, ammonia, water: the first three molecules, as published.
METHANE = """XYZ_file,Index,SMILES,InChi,N_atoms,Elements,XYZ_Ang,Dipole_debye,Polarizability_bohr3,HOMO_au,LUMO_au,\
HOMO_LUMO_gap_au,R2_bohr2,ZPVE_au,InternalEnergy_0K_au,InternalEnergy_298K_au,Enthalphy_298K_au,\
GibbsFreeEnergy_298K_au,Heatcapacity_Cv_cal_mol_K
"dsgdb9nsd_000001.xyz",1,"C","InChI=1S/CH4/h1H4",5,"['C','H','H','H','H']",\
"[[-0.0126981359,1.0858041578,0.0080009958],[0.002150416,-0.0060313176,0.0019761204],\
[1.0117308433,1.4637511618,0.0002765748],[-0.540815069,1.4475266138,-0.8766437152],\
[-0.5238136345,1.4379326443,0.9063972942]]",0.,13.21,-0.3877,0.1171,0.5048,35.3641,0.044749,-40.47893,\
-40.476062,-40.475117,-40.498597,6.469
"""


def test_published_molecule(tmp_path: Path) -> None:
    (tmp_path / "part.csv").write_text(METHANE)
    methane = raw.read_csv([tmp_path / "part.csv"])
    assert methane.bond.tolist() == [[0, 1], [0, 2], [0, 3], [0, 4]]
    assert methane.order.tolist() == [1, 1, 1, 1]
    features = methane.features()
    assert features[0].tolist() == [0, 1, 0, 0, 0, 6, 0, 0, 0, 0, 4]
    assert features[1].tolist() == [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    lengths = np.linalg.norm(methane.position[1:] - methane.position[0], axis=1)
    np.testing.assert_allclose(lengths, 1.09195, atol=1e-4)
    columns = methane.columns()[0]
    np.testing.assert_allclose(
        columns[[1, 4, 6, 11]], [13.21, 0.5048 * 27.211386246, 0.044749 * 27.211386246, 6.469], atol=1e-6
    )
    # -40.47893 minus a carbon and four hydrogens, in eV
    np.testing.assert_allclose(columns[12], (-40.47893 + 37.846772 + 4 * 0.500273) * 27.211386246, rtol=1e-12)


def test_reader_gives_the_sample_back(tmp_path: Path) -> None:
    highest = [SAMPLE.order[SAMPLE.bond_offset[m] : SAMPLE.bond_offset[m + 1]].max() for m in range(400)]
    chain = np.flatnonzero(np.array(highest) == 1)
    few = SAMPLE.take(chain[:20])
    write_csv(tmp_path / "a.csv", few.take(np.arange(12)), ["C"] * 12)  # no = or #: every bond is single
    write_csv(tmp_path / "b.csv", few.take(np.arange(12, 20)), ["C"] * 8)
    assert_same(raw.read_csv([tmp_path / "a.csv", tmp_path / "b.csv"]), few)


def test_reader_refuses_what_is_not_qm9(tmp_path: Path) -> None:
    path = tmp_path / "part.csv"
    path.write_text(METHANE.replace("13.21", "13.2149"))
    with pytest.raises(ValueError, match="Polarizability_bohr3"):
        raw.read_csv([path])
    path.write_text(METHANE.replace(",5,", ",4,"))
    with pytest.raises(ValueError, match="N_atoms = 4"):
        raw.read_csv([path])
    with pytest.raises(FileNotFoundError, match=r"qm9_part1\.csv"):
        raw.read_qm9pack(tmp_path)
    (tmp_path / "qm9_part1.csv").write_text(METHANE)
    with pytest.raises(ValueError, match="sha256"):
        raw.read_qm9pack(tmp_path)


def test_smiles() -> None:
    assert parse_smiles("CC1(C[NH3+])C#C1")[1] == {
        (0, 1): 1, (1, 2): 1, (2, 3): 1, (1, 4): 1, (4, 5): 3, (1, 5): 1,
    }  # fmt: skip
    for wrong in ("c1ccccc1", "C1CC", "C(C", "CX"):
        with pytest.raises(ValueError, match="Kekule"):
            parse_smiles(wrong)


def test_bond_orders() -> None:
    pairs = [(0, 1), (1, 2)]
    assert bond_orders("C=CO", [6, 6, 8], pairs) == [2, 1]
    assert bond_orders("C=CO", [8, 6, 6], pairs) == [1, 2]  # the geometry lists the atoms backwards
    assert bond_orders("C=CO", [6, 6, 7], pairs) is None
    assert bond_orders("C1CN1", [6, 6, 7], pairs) is None
    assert bond_orders("C=CC", [6, 6, 6], [*pairs, (0, 2)]) == [2, 1, 1]  # a contact the SMILES does not have
    nitromethane = bond_orders("CN(=O)=O", [6, 7, 8, 8], [(0, 1), (1, 2), (1, 3)])
    assert nitromethane == [1, 2, 1]
    assert orders_from_lengths([6, 7], [1, 0], [(0, 1)], [1.15]) == [3]


def test_bonds_by_distance() -> None:
    # C-C reach is 0.68 + 0.68 + 0.45 = 1.81 Angstrom
    pair = np.array([[[0, 0, 0], [18099, 0, 0]], [[0, 0, 0], [18100, 0, 0]]])
    assert bonded_pairs(pair, np.full((2, 2), 6, dtype=np.uint8)).tolist() == [[0, 0, 1]]
