"""Where CelebA comes from: the official folders, or a pack of encoded images; both through a checked cache."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from equipoise.suites.vision.cache import Source, packed
from equipoise.suites.vision.images import Blobs, archive_fingerprint, decode, stacked

SIZE = 64

ATTRIBUTES = (
    "5_o_Clock_Shadow", "Arched_Eyebrows", "Attractive", "Bags_Under_Eyes", "Bald", "Bangs", "Big_Lips", "Big_Nose",
    "Black_Hair", "Blond_Hair", "Blurry", "Brown_Hair", "Bushy_Eyebrows", "Chubby", "Double_Chin", "Eyeglasses",
    "Goatee", "Gray_Hair", "Heavy_Makeup", "High_Cheekbones", "Male", "Mouth_Slightly_Open", "Mustache",
    "Narrow_Eyes", "No_Beard", "Oval_Face", "Pale_Skin", "Pointy_Nose", "Receding_Hairline", "Rosy_Cheeks",
    "Sideburns", "Smiling", "Straight_Hair", "Wavy_Hair", "Wearing_Earrings", "Wearing_Hat", "Wearing_Lipstick",
    "Wearing_Necklace", "Wearing_Necktie", "Young",
)  # fmt: skip

WHERE = (
    "CelebA is at https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html (aligned and cropped images; unzip "
    "img_align_celeba.zip inside Img)"
)

_IMAGES = Path("Img", "img_align_celeba")
_LABELS = Path("Anno", "list_attr_celeba.txt")
_PARTS = Path("Eval", "list_eval_partition.txt")


class Faces(NamedTuple):
    """Images [N, 64, 64, 3] and attributes [N, 40], uint8, and each row's part: 0 train, 1 validation, 2 test."""

    images: npt.NDArray[np.uint8]
    attributes: npt.NDArray[np.uint8]
    part: npt.NDArray[np.uint8]


def load(path: Path | None, *, cache: Path | None = None) -> Faces:
    """CelebA as published: the folder with Img, Anno and Eval.

    The first use resizes every image to 64 x 64 and keeps it in a cache of 12 KB an image.
    """
    if path is None or not path.is_dir():
        found = "none" if path is None else str(path)
        raise FileNotFoundError(f"CelebA needs `data`, the folder with Img, Anno and Eval. Found {found}. {WHERE}.")
    return _faces(_official(path), cache)


def load_pack(path: Path | None, *, cache: Path | None = None) -> Faces:
    """Some of CelebA's images from a pack (.npz, or a folder with one), through the same cache."""
    if path is not None and path.is_dir():
        packs = [file for file in sorted(path.glob("celeba*.npz")) if _is_pack(file)]
        path = packs[0] if len(packs) == 1 else None
    if path is None or not path.is_file():
        raise FileNotFoundError("CelebA from a pack needs `data`, an .npz of its images and attributes. Found none.")
    return _faces(_pack(path), cache)


def _faces(source: Source, cache: Path | None) -> Faces:
    arrays = packed(source, cache)
    return Faces(arrays["images"], arrays["attributes"], arrays["part"])


def _official(folder: Path) -> Source:
    for needed in (_LABELS, _PARTS, _IMAGES):
        if not (folder / needed).exists():
            raise FileNotFoundError(f"`data` should hold {needed}. Found no such thing in {folder}. {WHERE}.")
    names, attributes = _read_labels(folder / _LABELS)
    part = _read_parts(folder / _PARTS, names)

    def image(name: str) -> npt.NDArray[np.uint8]:
        file = folder / _IMAGES / name
        if not file.is_file():
            raise FileNotFoundError(f"{_LABELS} lists {name}. Found no such image in {file.parent}. {WHERE}.")
        return decode(file.read_bytes(), size=(SIZE, SIZE))

    def read(start: int, stop: int) -> dict[str, npt.NDArray[np.uint8]]:
        images = stacked(image, names[start:stop])
        return {"images": images, "attributes": attributes[start:stop], "part": part[start:stop]}

    texts = [(folder / file).read_bytes() for file in (_LABELS, _PARTS)]
    return _source(" ".join(f"{zlib.crc32(text):08x}" for text in texts), len(names), read)


def _source(fingerprint: str, size: int, read: object) -> Source:
    fields = {"images": ("u1", (SIZE, SIZE, 3)), "attributes": ("u1", (len(ATTRIBUTES),)), "part": ("u1", ())}
    return Source("celeba", fingerprint, size, fields, read)  # type: ignore[arg-type]


def _read_labels(path: Path) -> tuple[list[str], npt.NDArray[np.uint8]]:
    lines = path.read_text().splitlines()
    count, header, rows = lines[0].strip(), tuple(lines[1].split()), [line.split() for line in lines[2:] if line]
    if header != ATTRIBUTES:
        raise ValueError(f"{path} should name the 40 attributes of CelebA on its second line. Found {header[:3]}...")
    if count != str(len(rows)):
        raise ValueError(f"{path} should have the {count} rows its first line promises. Found {len(rows)}.")
    for row in rows:
        if len(row) != 1 + len(ATTRIBUTES) or not set(row[1:]) <= {"-1", "1"}:
            raise ValueError(
                f"{path}: each row should be a file name and 40 times 1 or -1. Found {' '.join(row)[:60]}."
            )
    return [row[0] for row in rows], np.array([[value == "1" for value in row[1:]] for row in rows], dtype=np.uint8)


def _read_parts(path: Path, names: list[str]) -> npt.NDArray[np.uint8]:
    rows = dict(line.split() for line in path.read_text().splitlines() if line)
    missing = next((name for name in names if rows.get(name) not in ("0", "1", "2")), None)
    if missing is not None:
        raise ValueError(f"{path} should give 0, 1 or 2 for every image. Found {rows.get(missing)!r} for {missing}.")
    return np.array([int(rows[name]) for name in names], dtype=np.uint8)


def _is_pack(path: Path) -> bool:
    with np.load(path, allow_pickle=False) as archive:
        return {"img", "off", "attr", "names", "split"} <= set(archive.files)


def _pack(path: Path) -> Source:
    if not _is_pack(path):
        raise ValueError(f"{path} should hold img, off, attr, names and split, as a pack of CelebA does.")
    with np.load(path, allow_pickle=False) as archive:
        blobs = Blobs(archive["img"], archive["off"])
        attributes = np.unpackbits(archive["attr"], axis=1)[:, : len(ATTRIBUTES)]
        names, part = tuple(archive["names"].tolist()), archive["split"].astype(np.uint8)
    if names != ATTRIBUTES:
        raise ValueError(f"{path}: `names` should be the 40 attributes of CelebA in their order. Found {names[:3]}...")

    def image(row: int) -> npt.NDArray[np.uint8]:
        return decode(blobs[row], size=(SIZE, SIZE))

    def read(start: int, stop: int) -> dict[str, npt.NDArray[np.uint8]]:
        images = stacked(image, range(start, stop))
        return {"images": images, "attributes": attributes[start:stop], "part": part[start:stop]}

    return _source(archive_fingerprint(path), len(part), read)
