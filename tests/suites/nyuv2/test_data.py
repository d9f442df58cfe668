import io

import numpy as np
import pytest
from PIL import Image

from equipoise.suites.nyuv2 import data
from equipoise.suites.nyuv2.data import SHAPE, load, load_pack

FOLDERS = {"image": (*SHAPE, 3), "label": SHAPE, "depth": (*SHAPE, 1), "normal": (*SHAPE, 3)}


def test_folders_come_back_in_order(tmp_path):
    rng = np.random.default_rng(0)
    for part, count in (("train", 2), ("val", 1)):
        for kind, shape in FOLDERS.items():
            (tmp_path / part / kind).mkdir(parents=True)
            for i in range(count):
                row = rng.integers(-1, 13, shape) if kind == "label" else rng.random(shape, np.float32)
                np.save(tmp_path / part / kind / f"{i}.npy", row)
    arrays = load(tmp_path, cache=tmp_path / "cache")
    assert arrays["part"].tolist() == [0, 0, 1]
    for row, (part, i) in enumerate([("train", 0), ("train", 1), ("val", 0)]):
        image, label, depth, normal = (np.load(tmp_path / part / kind / f"{i}.npy") for kind in FOLDERS)
        assert np.abs(arrays["image"][row] / 255 - image).max() <= 0.5 / 255 + 1e-6
        np.testing.assert_array_equal(arrays["segmentation"][row], label)
        np.testing.assert_array_equal(arrays["depth"][row], depth[..., 0].astype(np.float16))
        np.testing.assert_array_equal(arrays["normal"][row], normal.astype(np.float16))


def encode(rows):
    files = []
    for row in rows:
        file = io.BytesIO()
        Image.fromarray(row).save(file, "png")
        files.append(file.getvalue())
    return np.frombuffer(b"".join(files), np.uint8), np.cumsum([0, *map(len, files)])


def test_a_pack_gives_labels_metres_and_fitted_normals(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "normals_from_depth", lambda depth: data.torch.stack([depth, 0 * depth, 0 * depth], 1))
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (2, *SHAPE, 3)).astype(np.uint8)
    labels = rng.integers(0, 14, (2, *SHAPE)).astype(np.uint8)
    depths = rng.integers(0, 256, (2, *SHAPE)).astype(np.uint8)
    archive = {"split": np.array([0, 1], np.uint8), "depth_scale": np.float32(1 / 25.5)}
    for name, rows in (("rgb", images), ("label", labels), ("depth", depths)):
        archive[name], archive[f"{name}_off"] = encode(rows)
    np.savez(tmp_path / "nyuv2_small.npz", **archive)
    for path in (tmp_path, tmp_path / "nyuv2_small.npz"):
        arrays = load_pack(path, cache=tmp_path / "cache")
        np.testing.assert_array_equal(arrays["image"], images)
        np.testing.assert_array_equal(arrays["segmentation"], labels.astype(int) - 1)
        np.testing.assert_allclose(arrays["depth"], depths / 25.5, rtol=1e-3)
        np.testing.assert_allclose(arrays["normal"][..., 0], depths / 25.5, rtol=1e-3)


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"needs `data`.*Found none.*linked from"):
        load(None)
    with pytest.raises(FileNotFoundError, match=r"should hold train/image.*linked from"):
        load(tmp_path, cache=tmp_path / "cache")
    np.savez(tmp_path / "nyuv2.npz", rgb=np.zeros(3, np.uint8))
    with pytest.raises(ValueError, match=r"should hold 'rgb_off'"):
        load_pack(tmp_path, cache=tmp_path / "cache")
    with pytest.raises(FileNotFoundError, match=r"needs `data`, an \.npz"):
        load_pack(tmp_path / "cache", cache=tmp_path / "cache")
