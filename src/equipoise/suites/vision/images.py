"""Decoding image files, several at a time."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

Item = TypeVar("Item")


def decode(
    data: bytes, *, mode: Literal["RGB", "L"] = "RGB", size: tuple[int, int] | None = None
) -> npt.NDArray[np.uint8]:
    """The pixels of an image file, [height, width, 3] or [height, width]; `size` (height, width) resizes.

    Resizing is bilinear with antialiasing, what torchvision's `Resize` does to a PIL image.

    >>> import io
    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("RGB", (4, 2), (255, 0, 0)).save(file, "png")
    >>> decode(file.getvalue(), size=(1, 2)).tolist()
    [[[255, 0, 0], [255, 0, 0]]]
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("Decoding images needs Pillow: `pip install pillow` (or `equipoise[bench]`).") from error
    with Image.open(io.BytesIO(data)) as file:
        image = file.convert(mode)
    if size is not None and image.size != size[::-1]:
        image = image.resize(size[::-1], Image.Resampling.BILINEAR)
    return np.asarray(image)


def stacked(make: Callable[[Item], npt.NDArray[Any]], items: Iterable[Item]) -> npt.NDArray[Any]:
    """`make` of every item, stacked; in threads, since decoders let go of the interpreter."""
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return np.stack(list(threads.map(make, items)))


class Blobs:
    """Files kept end to end in one uint8 array, file i from offsets[i] up to offsets[i + 1]."""

    def __init__(self, buffer: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> None:
        self.buffer = buffer
        self.offsets = offsets

    def __getitem__(self, index: int) -> bytes:
        return self.buffer[self.offsets[index] : self.offsets[index + 1]].tobytes()


def archive_fingerprint(path: Path) -> str:
    """What tells an .npz from another: the checksums of its members, read off its directory."""
    with zipfile.ZipFile(path) as archive:
        return " ".join(f"{member.filename}:{member.CRC:08x}" for member in archive.infolist())
