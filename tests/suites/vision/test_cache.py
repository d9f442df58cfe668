import json

import numpy as np
import pytest

from equipoise.suites.vision import cache
from equipoise.suites.vision.cache import Source, packed

SIZE = 1300  # three chunks


class Rows:
    """Rows that can be counted, and that can fail."""

    def __init__(self, fail_at=None):
        self.calls = []
        self.fail_at = fail_at

    def __call__(self, start, stop):
        self.calls.append(start)
        if start == self.fail_at:
            raise KeyboardInterrupt
        index = np.arange(start, stop)
        return {"x": (index[:, None] + np.arange(3)).astype(np.int16), "y": (index % 7).astype(np.uint8)}


def source(read, fingerprint="a"):
    return Source("rows", fingerprint, SIZE, {"x": ("<i2", (3,)), "y": ("u1", ())}, read)


@pytest.fixture
def place(tmp_path):
    """The one cache in the folder."""
    return lambda: next(p for p in tmp_path.iterdir() if p.is_dir())


def test_packs_once_and_maps_what_was_read(tmp_path):
    read = Rows()
    first = packed(source(read), tmp_path)
    again = packed(source(read), tmp_path)
    assert read.calls == [0, 512, 1024]
    for arrays in (first, again):
        assert isinstance(arrays["x"], np.memmap)
        np.testing.assert_array_equal(arrays["x"], np.arange(SIZE)[:, None] + np.arange(3))
        np.testing.assert_array_equal(arrays["y"], np.arange(SIZE) % 7)


def test_what_is_written_into_a_mapped_row_stays_out_of_the_file(tmp_path):
    packed(source(Rows()), tmp_path)["x"][0] = 99
    assert packed(source(Rows()), tmp_path)["x"][0, 0] == 0


def test_an_interrupted_packing_goes_on(tmp_path, place):
    with pytest.raises(KeyboardInterrupt):
        packed(source(Rows(fail_at=1024)), tmp_path)
    assert place().suffix == ".partial"  # nothing that looks finished
    read = Rows()
    packed(source(read), tmp_path)
    assert read.calls == [1024]


def test_going_on_redoes_a_chunk_that_did_not_reach_the_disk(tmp_path, place):
    with pytest.raises(KeyboardInterrupt):
        packed(source(Rows(fail_at=1024)), tmp_path)
    np.load(place() / "y.npy", mmap_mode="r+")[3] = 200
    with (place() / "progress.jsonl").open("a") as log:
        log.write("[1024, {")  # and a line cut short
    read = Rows()
    arrays = packed(source(read), tmp_path)
    assert read.calls == [0, 1024]
    assert arrays["y"][3] == 3


def test_a_half_packed_folder_of_other_data_is_not_gone_on_with(tmp_path, place):
    with pytest.raises(KeyboardInterrupt):
        packed(source(Rows(fail_at=1024)), tmp_path)
    plan = json.loads((place() / "plan.json").read_text())
    (place() / "plan.json").write_text(json.dumps({**plan, "size": 7}))
    read = Rows()
    packed(source(read), tmp_path)
    assert read.calls == [0, 512, 1024]


def _flip_a_byte(place):
    np.load(place / "x.npy", mmap_mode="r+")[700, 1] ^= 1


def _cut_short(place):
    whole = (place / "y.npy").read_bytes()
    (place / "y.npy").write_bytes(whole[:-5])


def _lose_a_file(place):
    (place / "x.npy").unlink()


def _spoil_the_manifest(place):
    (place / "manifest.json").write_text("{")


@pytest.mark.parametrize("damage", [_flip_a_byte, _cut_short, _lose_a_file, _spoil_the_manifest])
def test_a_damaged_cache_is_named_and_made_again(tmp_path, place, capsys, damage):
    packed(source(Rows()), tmp_path)
    damage(place())
    read = Rows()
    arrays = packed(source(read), tmp_path)
    said = capsys.readouterr().err
    assert str(place()) in said and "is damaged" in said
    assert read.calls == [0, 512, 1024]
    np.testing.assert_array_equal(arrays["y"], np.arange(SIZE) % 7)


def test_other_data_get_a_cache_of_their_own(tmp_path):
    packed(source(Rows()), tmp_path)
    read = Rows()
    packed(source(read, fingerprint="b"), tmp_path)
    assert read.calls == [0, 512, 1024]
    assert len([p for p in tmp_path.iterdir() if p.is_dir()]) == 2


def test_rows_of_the_wrong_shape_are_refused(tmp_path):
    def read(start, stop):
        return {"x": np.zeros((stop - start, 4), np.int16), "y": np.zeros(stop - start, np.uint8)}

    with pytest.raises(ValueError, match=r"'x' should be int16 of shape \(512, 3\)\. Found int16 of shape \(512, 4\)"):
        packed(source(read), tmp_path)


def test_the_folder_can_be_told(tmp_path, monkeypatch):
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "here"))
    assert cache.cache_folder() == tmp_path / "here"
