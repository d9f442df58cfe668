import io
import time

import numpy as np
import pytest
from PIL import Image

from equipoise.suites import suite_class
from equipoise.suites.cityscapes.data import SHAPE, load, load_offsets

FOLDERS = {"image": (*SHAPE, 3), "label_7": SHAPE, "depth": (*SHAPE, 1)}


@pytest.fixture
def folder(tmp_path):
    """Three training images and two test images in MTAN's layout."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 3), ("val", 2)):
        for kind, shape in FOLDERS.items():
            (tmp_path / "set" / part / kind).mkdir(parents=True)
            for i in range(count):
                row = rng.integers(-1, 7, shape) if kind == "label_7" else rng.random(shape, np.float32)
                row = np.rint(row * 255) / 255 if kind == "image" else row
                np.save(tmp_path / "set" / part / kind / f"{i}.npy", row)
    return tmp_path / "set"


def test_folders_come_back_in_order(folder, tmp_path):
    arrays = load(folder, cache=tmp_path / "cache")
    assert arrays["part"].tolist() == [0, 0, 0, 1, 1]
    for row, (part, i) in enumerate([("train", 0), ("train", 1), ("train", 2), ("val", 0), ("val", 1)]):
        image, label, depth = (np.load(folder / part / kind / f"{i}.npy") for kind in FOLDERS)
        np.testing.assert_array_equal(arrays["image"][row], np.rint(image * 255))
        np.testing.assert_array_equal(arrays["segmentation"][row], label)
        np.testing.assert_array_equal(arrays["depth"][row], depth[..., 0].astype(np.float32))


def test_the_suite_gives_batches_of_them(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    suite = suite_class("cityscapes")(data=folder, batch_size=3, augmentation=False)
    (batch,) = suite.batches(0)
    assert batch["image"].shape == (3, 3, *SHAPE) and batch["depth"].shape == (3, 1, *SHAPE)
    assert suite.protocol.epochs == 200 and suite.protocol.report == "last-ten"


def test_one_file_is_opened_at_a_time(folder, tmp_path, monkeypatch):
    """Two threads in Python's parser at once, where numpy reads a header, are a SystemError before 3.11.8."""
    inside, most, real = [], [], np.load

    def opened(*args, **kwargs):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.002)
        inside.pop()
        return real(*args, **kwargs)

    monkeypatch.setattr(np, "load", opened)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    load(folder, cache=tmp_path / "cache")
    assert len(most) >= 15 and max(most) == 1


def test_files_changed_since_are_read_again(folder, tmp_path):
    load(folder, cache=tmp_path / "cache")
    np.save(folder / "train/label_7/0.npy", np.full(SHAPE, 3))
    assert (load(folder, cache=tmp_path / "cache")["segmentation"][0] == 3).all()


def test_what_is_missing_is_named(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"needs `data`.*Found none.*linked from"):
        load(None)
    (folder / "train/depth/1.npy").unlink()
    with pytest.raises(FileNotFoundError, match=r"without a gap\. Found no 1\.npy.*linked from"):
        load(folder, cache=tmp_path / "cache")
    (folder / "train/depth/2.npy").rename(folder / "train/depth/1.npy")
    with pytest.raises(ValueError, match=r"as many files.*'image': 3, 'label_7': 3, 'depth': 2"):
        load(folder, cache=tmp_path / "cache")
    for path in (folder / "train/depth").iterdir():
        path.unlink()
    (folder / "train/depth").rmdir()
    with pytest.raises(FileNotFoundError, match=r"should hold train/depth"):
        load(folder, cache=tmp_path / "cache")


def test_a_wrong_shape_is_named(folder, tmp_path):
    np.save(folder / "val/image/1.npy", np.zeros((64, 128, 3)))
    with pytest.raises(ValueError, match=r"val/image/1\.npy should be of shape \(128, 256, 3\)\. Found \(64, 128, 3\)"):
        load(folder, cache=tmp_path / "cache")


def png(array):
    file = io.BytesIO()
    Image.fromarray(array).save(file, "png")
    return file.getvalue()


def write_pack(path, **fields):
    archive = {"split": np.array([0, 1])}
    for name, rows in fields.items():
        files = [png(row) for row in rows]
        archive[name] = np.frombuffer(b"".join(files), np.uint8)
        archive[f"{name}_off"] = np.cumsum([0, *map(len, files)])
    np.savez(path, **archive)


def test_a_pack_gives_categories_and_offsets(tmp_path):
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 34, (2, *SHAPE)).astype(np.uint8)
    instances = np.zeros((2, *SHAPE), np.uint8)
    instances[0, 10:20, 30:51] = 5  # its centre is at row 14.5, column 40
    instances[0, 100:, :100] = 9
    images = rng.integers(0, 256, (2, *SHAPE, 3)).astype(np.uint8)
    write_pack(tmp_path / "cityscapes.npz", rgb=images, label=ids, inst=instances)
    arrays = load_offsets(tmp_path, cache=tmp_path / "cache")
    np.testing.assert_array_equal(arrays["image"], images)
    groups = {-1: range(7), 0: range(7, 11), 1: range(11, 17), 2: range(17, 21), 3: (21, 22), 4: (23,), 5: (24, 25)}
    category = {i: c for c, members in groups.items() for i in members}
    expected = np.vectorize(lambda i: category.get(i, 6))(ids)
    np.testing.assert_array_equal(arrays["segmentation"], expected)
    offset = arrays["offset"][0].astype(float) * SHAPE[1]
    np.testing.assert_allclose(offset[10, 30], (10, 4.5), atol=0.02)
    np.testing.assert_allclose(offset[19, 50], (-10, -4.5), atol=0.02)
    assert (arrays["offset"][0][instances[0] == 0] == 0).all() and (arrays["offset"][1] == 0).all()


def test_a_strange_pack_is_refused(tmp_path):
    np.savez(tmp_path / "cityscapes.npz", rgb=np.zeros(3, np.uint8))
    with pytest.raises(ValueError, match=r"should hold 'rgb_off'"):
        load_offsets(tmp_path / "cityscapes.npz", cache=tmp_path / "cache")
    with pytest.raises(FileNotFoundError, match="needs `data`, a pack"):
        load_offsets(tmp_path / "nothing.npz", cache=tmp_path / "cache")
