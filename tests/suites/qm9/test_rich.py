"""Rich features: what RDKit says of real molecules, and the file its answer is kept in."""

import importlib.util
import multiprocessing
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from equipoise.suites.qm9 import compact, data, enrich, load_sample, perception, rich
from equipoise.suites.qm9.perception import Perception, _sound_bonds, perceive

sys.path.insert(0, str(Path(__file__).parent))
from qm9_reference import made_up

SAMPLE = load_sample()
needs_rdkit = pytest.mark.skipif(importlib.util.find_spec("rdkit") is None, reason="rdkit is missing")

# Number in QM9, heavy atoms in their order, sp/sp2/sp3 of each, which of them are aromatic, aromatic bonds.
BY_HAND = [
    (18, "CCCO", "3232", "....", 0),  # acetone
    (24, "CCCN", "1111", "....", 0),  # propiolonitrile, H-C#C-C#N
    (125, "COCCN", "33311", ".....", 0),  # methoxyacetonitrile
    (951, "OCCNCCC", "2222222", ".aaaaaa", 6),  # 3-hydroxypyridine, its oxygen conjugated with the ring
    (1480, "CCCONCO", "3333222", ".......", 0),  # a formamide, its nitrogen conjugated with the carbonyl
    (131907, "CCCCCNNOO", "322222222", ".aaaaa...", 5),  # a nitropyrrole
    (55190, "OCOCCNCCC", "222333333", ".........", 0),  # a zwitterion: carboxylate and ammonium
    (3506, "CCCCCCO", "3333333", ".......", 0),  # a cage with a long C-C contact, two carbons of five bonds
]


def numbered(*numbers):
    """Molecules of the sample by their number in QM9."""
    return SAMPLE.take(np.searchsorted(SAMPLE.index, numbers))


def assert_same(left, right):
    for one, other, name in zip(left, right, Perception._fields, strict=True):
        np.testing.assert_array_equal(one, other, err_msg=name)


# What RDKit says.


@needs_rdkit
@pytest.mark.parametrize(("number", "elements", "hybrid", "aromatic", "bonds"), BY_HAND)
def test_molecules_known_by_hand(number, elements, hybrid, aromatic, bonds):
    one = numbered(number)
    assert one.index.tolist() == [number]
    found = perceive(one)
    heavy = one.number > 1
    assert "".join(" H    CNOF"[z] for z in one.number[heavy]) == elements
    assert "".join(map(str, found.hybridisation[heavy])) == hybrid
    assert "".join(".a"[flag] for flag in found.aromatic[heavy].astype(int)) == aromatic
    assert found.aromatic_bond.sum() == bonds
    assert not found.hybridisation[~heavy].any() and not found.aromatic[~heavy].any()


def test_charges_follow_from_bonds():
    _, charge = _sound_bonds(nitro := numbered(131907))
    assert charge[nitro.number > 1].tolist() == [0, 0, 0, 0, 0, 0, 1, 0, -1]
    _, charge = _sound_bonds(zwitterion := numbered(55190))
    assert charge[zwitterion.number > 1].tolist() == [-1, 0, 0, 0, 0, 1, 0, 0, 0]
    _, charge = _sound_bonds(SAMPLE)
    owner = np.repeat(np.arange(len(SAMPLE)), SAMPLE.atoms)
    assert not np.bincount(owner, charge).any()  # every molecule is neutral
    assert set(charge[SAMPLE.number == 6]) == {-1, 0}


def test_the_longest_bond_of_a_crowded_carbon_is_left_out():
    cage = numbered(3506)
    kept, charge = _sound_bonds(cage)
    assert (~kept).sum() == 1 and not charge.any()
    lengths = np.linalg.norm(cage.position[cage.bond[:, 0]] - cage.position[cage.bond[:, 1]], axis=1)
    assert lengths.argmax() == np.flatnonzero(~kept)[0] and lengths.max() > 1.7
    assert np.bincount(cage.bond[kept].ravel()).max() == 4 < np.bincount(cage.bond.ravel()).max()


@needs_rdkit
def test_what_rdkit_refuses_is_named():
    acetone = numbered(18)
    order = acetone.order.copy()
    order[0] = 3  # two carbons with too many bonds, none of them single between carbons alone
    with pytest.raises(ValueError, match=r"should be sound to RDKit\. Found number 18: .*valence"):
        perceive(replace(acetone, order=order))


# Features.


def test_features_are_the_published_ones_and_four_columns_more():
    few = SAMPLE.take(np.arange(30))
    answer = made_up(few)
    more = replace(few, perception=answer)
    published, found = few.features(), more.features()
    assert not published[:, 6:10].any()
    columns = [0, 1, 2, 3, 4, 5, 10]
    assert (found[:, columns] == published[:, columns]).all()
    assert (found[:, 6] == answer.aromatic).all()
    for code in (1, 2, 3):
        assert (found[:, 6 + code] == (answer.hybridisation == code)).all()
    assert (few.bond_classes() == few.order).all()
    assert (more.bond_classes() == np.where(answer.aromatic_bond, 4, few.order)).all()


def test_some_of_the_molecules_keep_their_own():
    few = SAMPLE.take(np.arange(30))
    more = replace(few, perception=made_up(few))
    chosen = np.array([17, 3, 29])
    some = more.take(chosen)
    for m, place in enumerate(chosen):
        atoms, all_atoms = (slice(*x.atom_offset[k : k + 2]) for x, k in ((some, m), (more, place)))
        assert (some.features()[atoms] == more.features()[all_atoms]).all()
        bonds, all_bonds = (slice(*x.bond_offset[k : k + 2]) for x, k in ((some, m), (more, place)))
        assert (some.bond_classes()[bonds] == more.bond_classes()[all_bonds]).all()
    assert few.take(chosen).perception is None


# The file.


def _flipped(written):
    """One bit of an atom's code is another."""
    place = written.index(b"hybridisation.npy") + 150
    return written[:place] + bytes([written[place] ^ 1]) + written[place + 1 :]


@pytest.fixture
def asked(monkeypatch):
    """How often RDKit is asked; its answers are made up."""
    count = []

    def answer(molecules, say):
        count.append(len(molecules))
        say(len(molecules))
        return made_up(molecules)

    monkeypatch.setattr(rich, "perceive", answer)
    return count


def test_rdkit_is_asked_once_and_again_where_its_answer_is_damaged(tmp_path, asked, capsys, monkeypatch):
    few, folder = SAMPLE.take(np.arange(40)), tmp_path / "cache"
    first = enrich(few, folder)
    assert_same(first.perception, made_up(few))
    assert_same(enrich(few, folder).perception, first.perception)
    assert asked == [40] and few.perception is None
    lock, file = sorted(folder.iterdir())
    assert (lock.suffix, file.suffix) == (".lock", ".npz")
    written = file.read_bytes()
    assert capsys.readouterr().err == ""  # nobody watches a terminal here
    for damaged in (b"", written[:-50], written.replace(b"hybridisation", b"hybridization"), _flipped(written)):
        asked.clear()
        file.write_bytes(damaged)
        assert_same(enrich(few, folder).perception, first.perception)
        told = capsys.readouterr().err
        assert f"{file} is damaged" in told and "built again" in told
        assert asked == [40] and file.read_bytes() == written
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    file.unlink()
    with pytest.raises(OSError, match="disk full"):
        enrich(few, folder)
    assert list(folder.iterdir()) == [lock]


def test_other_molecules_have_another_file(tmp_path, asked, capsys):
    few = SAMPLE.take(np.arange(40))
    enrich(few, tmp_path)
    (file,) = tmp_path.glob("*.npz")
    grid = few.grid.copy()
    grid[0] += 1
    enrich(replace(few, grid=grid), tmp_path)
    (other,) = set(tmp_path.glob("*.npz")) - {file}
    other.write_bytes(file.read_bytes())
    enrich(replace(few, grid=grid), tmp_path)
    assert f"{other} is damaged: it is of other molecules." in capsys.readouterr().err and len(asked) == 3
    other.write_bytes(compact.encode(few))
    enrich(replace(few, grid=grid), tmp_path)
    assert "a file of another kind" in capsys.readouterr().err and len(asked) == 4
    with pytest.raises(compact.DamagedFile, match="another kind"):
        compact.decode(file.read_bytes())


def enriched(folder):
    return int(enrich(SAMPLE.take(np.arange(40)), Path(folder)).perception.hybridisation.sum())


def test_of_several_processes_one_asks(tmp_path, monkeypatch):
    def answer(molecules, say):
        with (tmp_path / "asked").open("a") as file:
            file.write("once\n")
        time.sleep(0.3)  # the others are waiting by then
        return made_up(molecules)

    monkeypatch.setattr(rich, "perceive", answer)
    with multiprocessing.get_context("fork").Pool(3) as pool:  # children keep the made-up answer
        sums = pool.map(enriched, [str(tmp_path / "cache")] * 6)
    assert sums == [int(made_up(SAMPLE.take(np.arange(40))).hybridisation.sum())] * 6
    assert (tmp_path / "asked").read_text() == "once\n"
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_without_rdkit_the_extra_is_named_and_a_stored_answer_read(tmp_path, monkeypatch, asked):
    few = SAMPLE.take(np.arange(10))
    enrich(few, tmp_path)
    monkeypatch.setattr(rich, "perceive", perception.perceive)
    monkeypatch.setitem(sys.modules, "rdkit", None)
    assert_same(enrich(few, tmp_path).perception, made_up(few))
    with pytest.raises(ValueError, match=r"^Rich features .* rdkit: pip install 'equipoise\[chem\]'\.$"):
        enrich(SAMPLE.take(np.arange(11)), tmp_path)


def test_progress_is_told_to_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    rich._say(1000, 1500)
    rich._say(1500, 1500)
    assert capsys.readouterr().err.endswith("\requipoise: RDKit has seen 1,500 of 1,500 molecules\n")


@pytest.mark.slow
@needs_rdkit
def test_all_of_qm9_against_an_independent_packing():
    """Every atom and bond as RDKit has them from the SMILES (a folder given by an environment variable)."""
    folder = os.environ.get("EQUIPOISE_QM9_REFERENCE")
    if not folder:
        pytest.skip("EQUIPOISE_QM9_REFERENCE does not name the folder with qm9_compact.npz and read_compact.py")
    spec = importlib.util.spec_from_file_location("read_compact", Path(folder) / "read_compact.py")
    reader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reader)
    packed = reader.load(str(Path(folder) / "qm9_compact.npz"))
    every = data.load()
    every = replace(every, perception=perceive(every))
    assert_same(every.perception, [packed[name] for name in ("atom_aromatic", "hyb", "bond_aromatic")])
    # Classes: in 198 molecules (carboxylates, amidinium ions, nitro groups) a double bond is drawn on the other side.
    classes = every.bond_classes()
    expected = np.where(packed["bond_aromatic"], 4, packed["bond_order"])
    molecule = np.repeat(np.arange(len(every)), every.bonds)
    assert len(np.unique(molecule[classes != expected])) == 198
    for kind in (1, 2, 3, 4):
        ours, theirs = (np.bincount(molecule[x == kind], minlength=len(every)) for x in (classes, expected))
        assert (ours == theirs).all()
    nodes = every.features()
    for m in np.random.RandomState(0).permutation(len(every))[:2000]:
        assert (nodes[slice(*every.atom_offset[m : m + 2])] == reader.graph(packed, m, rich=True)[0]).all()
