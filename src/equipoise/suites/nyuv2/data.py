"""Where NYU-v2 comes from: MTAN's folders of .npy files, or a pack of encoded images; both through a cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from equipoise.suites.nyuv2.normals import normals_from_depth
from equipoise.suites.vision.cache import Arrays, Source, packed
from equipoise.suites.vision.folders import Layout
from equipoise.suites.vision.images import Blobs, archive_fingerprint, decode, stacked

SHAPE = (288, 384)
CLASSES = 13

WHERE = "The preprocessed NYU-v2 is linked from https://github.com/lorenmt/mtan (about 9 GB of .npy files)."

_ROWS: dict[str, tuple[str, tuple[int, ...]]] = {
    "image": ("u1", (*SHAPE, 3)),
    "segmentation": ("i1", SHAPE),
    "depth": ("<f2", SHAPE),
    "normal": ("<f2", (*SHAPE, 3)),
}
_LAYOUT = Layout(
    name="nyuv2",
    fields={"image": "image", "segmentation": "label", "depth": "depth", "normal": "normal"},
    rows=_ROWS,
    where=WHERE,
)
_TOGETHER = {"cuda": 64, "cpu": 1}  # images whose normals are fitted at a time; one stays in a CPU's cache


def load(path: Path | None, *, cache: Path | None = None) -> Arrays:
    """Images, labels (-1: none), depth in metres (0: none) and normals (0: none) from MTAN's folders train and val."""
    if path is None or not path.is_dir():
        found = "none" if path is None else str(path)
        raise FileNotFoundError(f"NYU-v2 needs `data`, the folder with train and val. Found {found}. {WHERE}")
    return packed(_LAYOUT.find(path), cache)


def load_pack(path: Path | None, *, cache: Path | None = None) -> Arrays:
    """The same fields from a pack (.npz, or a folder with one) of images, labels and depth.

    It has no normals: they are fitted to its depth once, about a second an image and CPU core, or a few seconds in
    all on a GPU.
    """
    if path is not None and path.is_dir():
        packs = sorted(path.glob("nyuv2*.npz"))
        path = packs[0] if len(packs) == 1 else None
    if path is None or not path.is_file():
        raise FileNotFoundError("NYU-v2 from a pack needs `data`, an .npz of its images, labels and depth. Found none.")
    return packed(_pack(path), cache)


def _pack(path: Path) -> Source:
    with np.load(path, allow_pickle=False) as archive:
        needed = [name for kind in ("rgb", "label", "depth") for name in (kind, f"{kind}_off")]
        missing = [name for name in (*needed, "depth_scale", "split") if name not in archive.files]
        if missing:
            raise ValueError(f"{path} should hold {missing[0]!r}, as a pack of NYU-v2 does. Found {archive.files}.")
        images, labels, depths = (Blobs(archive[kind], archive[f"{kind}_off"]) for kind in ("rgb", "label", "depth"))
        metres, part = archive["depth_scale"].astype(np.float32), archive["split"].astype(np.uint8)

    def read(start: int, stop: int) -> dict[str, npt.NDArray[Any]]:
        rows = range(start, stop)
        depth = stacked(lambda i: decode(depths[i], mode="L") * metres, rows)
        return {
            "image": stacked(lambda i: decode(images[i]), rows),
            "segmentation": stacked(lambda i: decode(labels[i], mode="L").astype(np.int8) - 1, rows).astype(np.int8),
            "depth": depth.astype(np.float16),
            "normal": _normals(depth),
            "part": part[start:stop],
        }

    fields = {**_ROWS, "part": ("u1", ())}
    return Source("nyuv2-pack", archive_fingerprint(path), len(part), fields, read)


def _normals(depth: npt.NDArray[np.float32]) -> npt.NDArray[np.float16]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parts = torch.split(torch.from_numpy(depth), _TOGETHER[device])
    found = [normals_from_depth(part.to(device)).permute(0, 2, 3, 1).half().cpu() for part in parts]
    return torch.cat(found).numpy()
