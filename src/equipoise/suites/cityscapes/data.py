"""Where Cityscapes comes from: MTAN's folders of .npy files, or a pack of encoded images; both through a cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.suites.vision.cache import Arrays, Source, packed
from equipoise.suites.vision.folders import Layout
from equipoise.suites.vision.images import Blobs, archive_fingerprint, decode, stacked

SHAPE = (128, 256)
CLASSES = 7

WHERE = "The preprocessed Cityscapes is linked from https://github.com/lorenmt/mtan (about 3 GB of .npy files)."

_LAYOUT = Layout(
    name="cityscapes",
    fields={"image": "image", "segmentation": "label_7", "depth": "depth"},
    rows={
        "image": ("u1", (*SHAPE, 3)),
        "segmentation": ("i1", SHAPE),
        "depth": ("<f4", SHAPE),
    },  # relative errors are of tiny depths
    where=WHERE,
)
# Cityscapes' 34 label ids to its seven categories: void, flat, construction, object, nature, sky, human, vehicle.
_CATEGORY = np.repeat(np.arange(-1, CLASSES, dtype=np.int8), [7, 4, 6, 4, 2, 1, 2, 8])


def load(path: Path | None, *, cache: Path | None = None) -> Arrays:
    """Images, labels (-1: none) and inverse depth (0: none) from MTAN's folders train and val."""
    if path is None or not path.is_dir():
        found = "none" if path is None else str(path)
        raise FileNotFoundError(f"Cityscapes needs `data`, the folder with train and val. Found {found}. {WHERE}")
    return packed(_LAYOUT.find(path), cache)


def load_offsets(path: Path | None, *, cache: Path | None = None) -> Arrays:
    """Images, labels and offsets to the instance's centre (0: no instance) from a pack (.npz, or a folder with it).

    A pixel's offset (dx, dy) leads to the mean of its instance's pixels, in image widths.
    """
    if path is not None and path.is_dir():
        packs = sorted(path.glob("cityscapes*.npz"))
        path = packs[0] if len(packs) == 1 else None
    if path is None or not path.is_file():
        raise FileNotFoundError("Cityscapes with offsets needs `data`, a pack of its images, labels and instances.")
    return packed(_pack(path), cache)


def _pack(path: Path) -> Source:
    with np.load(path, allow_pickle=False) as archive:
        needed = [name for kind in ("rgb", "label", "inst") for name in (kind, f"{kind}_off")]
        missing = [name for name in (*needed, "split") if name not in archive.files]
        if missing:
            raise ValueError(f"{path} should hold {missing[0]!r}, as a pack of Cityscapes does. Found {archive.files}.")
        images, labels, instances = (Blobs(archive[k], archive[f"{k}_off"]) for k in ("rgb", "label", "inst"))
        part = archive["split"].astype(np.uint8)

    def read(start: int, stop: int) -> dict[str, npt.NDArray[Any]]:
        rows = range(start, stop)
        return {
            "image": stacked(lambda i: decode(images[i]), rows),
            "segmentation": stacked(lambda i: _CATEGORY[decode(labels[i], mode="L")], rows),
            "offset": stacked(lambda i: centre_offsets(decode(instances[i], mode="L")), rows),
            "part": part[start:stop],
        }

    fields = {"image": ("u1", (*SHAPE, 3)), "segmentation": ("i1", SHAPE), "offset": ("<f2", (*SHAPE, 2))}
    return Source("cityscapes-offset", archive_fingerprint(path), len(part), {**fields, "part": ("u1", ())}, read)


def centre_offsets(instances: npt.NDArray[np.uint8]) -> npt.NDArray[np.float16]:
    """The vector (dx, dy) from each pixel to the mean pixel of its instance, in image widths; 0 outside (id 0).

    >>> centre_offsets(np.array([[0, 1, 1, 1]], dtype=np.uint8))[..., 0].tolist()
    [[0.0, 0.25, 0.0, -0.25]]
    """
    height, width = instances.shape
    flat = instances.ravel()
    pixels = np.maximum(np.bincount(flat), 1)
    y, x = np.divmod(np.arange(flat.size), width)
    to_x = (np.bincount(flat, x) / pixels)[flat] - x
    to_y = (np.bincount(flat, y) / pixels)[flat] - y
    offsets = np.stack([to_x, to_y], axis=-1) / width * (flat > 0)[:, None]
    return np.asarray(offsets, dtype=np.float16).reshape(height, width, 2)
