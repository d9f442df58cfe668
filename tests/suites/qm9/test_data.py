"""QM9's compact file, its cache, the shipped sample and the splits."""

import multiprocessing
import os
import time
from pathlib import Path

import numpy as np
import pytest

from equipoise.suites.qm9 import compact, data, raw
from suites.qm9.molecule_files import SAMPLE, assert_same, write_csv


def test_sample_is_sound_chemistry() -> None:
    """Every atom has its valence: what no mistake in positions, bonds or orders would leave standing."""
    total = np.zeros(len(SAMPLE.number), dtype=np.int64)
    first, second = SAMPLE._bond_atoms()
    np.add.at(total, first, SAMPLE.order)
    np.add.at(total, second, SAMPLE.order)
    wrong = total != np.array([0, 1, 0, 0, 0, 0, 4, 3, 2, 1])[SAMPLE.number]
    molecules = np.unique(np.repeat(np.arange(len(SAMPLE)), SAMPLE.atoms)[wrong])
    assert len(molecules) < 0.02 * len(SAMPLE)  # 1.5 % of QM9: ions, nitro groups and long C-C contacts
    values = SAMPLE.columns()
    np.testing.assert_allclose(values[:, 4], values[:, 3] - values[:, 2], atol=3e-3)
    np.testing.assert_allclose(values[:, 9] - values[:, 8], 0.0009445 * 27.2114, atol=2e-5)
    # mean and spread of the whole set, as PyTorch Geometric gives them
    targets = SAMPLE.targets()
    np.testing.assert_allclose(targets[:, [0, 1, 6]].mean(0), [2.672953, 75.281185, -76.116002], rtol=0.02)
    np.testing.assert_allclose(targets[:, [0, 1, 6]].std(0), [1.503479, 8.173831, 10.323752], rtol=0.05)


def test_sample_is_small_and_fast() -> None:
    start = time.perf_counter()
    again = data.load_sample()
    assert time.perf_counter() - start < 1
    assert_same(again, SAMPLE)
    folder = Path(data.__file__).parent
    assert (folder / "sample.npz").stat().st_size < 1_000_000
    notice = (folder / "NOTICE.txt").read_text()
    assert "CC0" in notice and "Copyright (c) 2024 Raghu" in notice and "10.1038/sdata.2014.22" in notice


def test_compact_round_trip_is_exact_and_repeatable() -> None:
    few = SAMPLE.take(np.arange(0, 5000, 97))
    encoded = compact.encode(few)
    assert_same(compact.decode(encoded), few)
    assert compact.encode(few) == encoded


def test_every_damage_is_seen() -> None:
    encoded = compact.encode(SAMPLE.take(np.arange(20)))
    rng = np.random.RandomState(0)
    for cut in (0, 1, 100, len(encoded) // 2, len(encoded) - 1):
        with pytest.raises(compact.DamagedFile):
            compact.decode(encoded[:cut])
    original = compact.decode(encoded)
    for position in rng.randint(0, len(encoded), 300):
        changed = bytearray(encoded)
        changed[position] ^= 1 << rng.randint(8)
        try:
            found = compact.decode(bytes(changed))
        except compact.DamagedFile:
            continue
        assert_same(found, original)  # a bit that carries nothing, such as a date in the zip


def build(folder: str, source: str) -> int:
    return len(data.load(Path(folder), source=Path(source)))


@pytest.fixture
def small_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder read_qm9pack takes for qm9pack's, with three small files."""
    import hashlib

    source = tmp_path / "source"
    source.mkdir()
    digests = {}
    for part, name in enumerate(raw.SHA256):
        write_csv(source / name, SAMPLE.take(np.arange(part * 40, part * 40 + 40)), ["C"] * 40)
        digests[name] = hashlib.sha256((source / name).read_bytes()).hexdigest()
    monkeypatch.setattr(raw, "SHA256", digests)
    return source


def test_cache_is_built_once_and_rebuilt_when_damaged(
    tmp_path: Path, small_source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = data.load(tmp_path / "cache", source=small_source)
    path = tmp_path / "cache" / data._CACHE_NAME
    assert len(first) == 120
    assert sorted(p.name for p in path.parent.iterdir()) == ["qm9-1.lock", "qm9-1.npz"]
    written = path.read_bytes()
    assert_same(data.load(tmp_path / "cache", source=tmp_path / "nowhere"), first)  # from the cache alone
    path.write_bytes(written[:-100])
    assert_same(data.load(tmp_path / "cache", source=small_source), first)
    assert str(path) in capsys.readouterr().err
    assert path.read_bytes() == written
    # a writer that fails leaves the cache as it was
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        data._write_whole(path, b"half")
    assert path.read_bytes() == written
    assert len(list(path.parent.iterdir())) == 2


def test_builders_do_not_collide(tmp_path: Path, small_source: Path) -> None:
    context = multiprocessing.get_context("fork")  # children keep the fixture's digests
    with context.Pool(3) as pool:
        sizes = pool.starmap(build, [(str(tmp_path / "cache"), str(small_source))] * 6)
    assert sizes == [120] * 6
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_missing_package_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(FileNotFoundError, match="pip install qm9pack"):
        raw.qm9pack_folder()


def test_split() -> None:
    parts = data.split(130_831, seed=1)
    assert (len(parts.train), len(parts.validation), len(parts.test)) == (110_831, 10_000, 10_000)
    assert len(np.unique(np.concatenate([parts.train, parts.validation, parts.test]))) == 130_831
    again, other = data.split(130_831, seed=1), data.split(130_831, seed=2)
    assert (again.test == parts.test).all() and not (other.test == parts.test).all()
    given = np.arange(10)[::-1]
    assert data.split(10, held_out=2, permutation=given).train.tolist() == [5, 4, 3, 2, 1, 0]
    with pytest.raises(ValueError, match="permutation"):
        data.split(10, permutation=np.zeros(10, dtype=int))
    with pytest.raises(ValueError, match="held_out"):
        data.split(10, held_out=5)


@pytest.mark.parametrize("name", ["order.npy", "order.txt", "order.t"])
def test_stored_permutation(tmp_path: Path, name: str) -> None:
    import torch

    order = np.random.RandomState(0).permutation(50)
    if name.endswith(".npy"):
        np.save(tmp_path / name, order)
    elif name.endswith(".txt"):
        np.savetxt(tmp_path / name, order, fmt="%d")
    else:
        torch.save(torch.from_numpy(order), tmp_path / name)
    np.testing.assert_array_equal(data.load_permutation(tmp_path / name), order)


def test_statistics_come_from_training_molecules_alone() -> None:
    targets, parts = SAMPLE.targets(), data.split(len(SAMPLE))
    mean, std = data.statistics(targets, parts.train)
    np.testing.assert_allclose(mean, targets[parts.train].sum(0) / len(parts.train))
    targets[parts.test] = 1e9
    assert (data.statistics(targets, parts.train)[0] == mean).all()
    assert (std > 0).all()


def test_bond_matrices() -> None:
    few = SAMPLE.take(np.arange(5, 9))
    flat, start = few.bond_matrices()
    for m in range(4):
        n = few.atoms[m]
        matrix = flat[start[m] : start[m] + n * n].reshape(n, n)
        assert (matrix == matrix.T).all()
        rows = slice(few.bond_offset[m], few.bond_offset[m + 1])
        expected = {(i, j): o for (i, j), o in zip(few.bond[rows].tolist(), few.order[rows], strict=True)}
        found = {(i, j): matrix[i, j] for i in range(n) for j in range(i + 1, n) if matrix[i, j]}
        assert found == expected


@pytest.mark.slow
def test_all_of_qm9_against_an_independent_packing() -> None:
    """Every molecule equals an independently made packing of qm9pack (a folder given by an environment variable)."""
    folder = os.environ.get("EQUIPOISE_QM9_REFERENCE")
    if not folder:
        pytest.skip("EQUIPOISE_QM9_REFERENCE does not name the folder with qm9_compact.npz and read_compact.py")
    import importlib.util as util

    spec = util.spec_from_file_location("read_compact", Path(folder) / "read_compact.py")
    reader = util.module_from_spec(spec)
    spec.loader.exec_module(reader)
    reference = reader.load(str(Path(folder) / "qm9_compact.npz"))
    data.load()  # builds the cache where it is missing
    start = time.process_time()
    found = data.load()
    assert time.process_time() - start < 3
    assert (data.cache_folder() / data._CACHE_NAME).stat().st_size < 20e6
    assert (found.index == reference["index"]).all() and (found.atoms == reference["N"]).all()
    assert (found.number == reference["Z"]).all() and (found.position == reference["pos"]).all()
    assert (found.columns() == reference["y"]).all()
    assert (found.bonds == reference["nb"]).all()
    assert (found.bond[:, 0] == reference["bond_i"]).all() and (found.bond[:, 1] == reference["bond_j"]).all()
    # Orders: the same multiset in every molecule. In 1.1 % of them (rings with two Kekule forms, carboxylates,
    # amidinium ions, nitro groups) the double bond may be drawn on either side.
    molecule = np.repeat(np.arange(len(found)), found.bonds)
    for order in (1, 2, 3):
        ours = np.bincount(molecule[found.order == order], minlength=len(found))
        theirs = np.bincount(molecule[reference["bond_order"] == order], minlength=len(found))
        assert (ours == theirs).all()
    other = np.unique(molecule[found.order != reference["bond_order"]])
    assert len(other) < 0.012 * len(found)
