"""The layout of MTAN's preprocessed sets: train and val, in each a folder a field of 0.npy, 1.npy, ..."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.suites.vision.cache import Source
from equipoise.suites.vision.images import stacked

_PARTS = ("train", "val")
_OPENING = Lock()  # numpy reads headers by Python's parser, which before 3.11.8 and 3.12.1 fails in two threads at once

Fields = Mapping[str, tuple[str, tuple[int, ...]]]  # the type and the shape of a row of each field


@dataclass(frozen=True)
class Layout:
    """A set in this layout.

    fields: our name of a field to its folder.
    rows: the type and shape of a row of each field, and of the image.
    where: a sentence that says where the set can be had.
    """

    name: str
    fields: Mapping[str, str]
    rows: Fields
    where: str

    def find(self, folder: Path) -> Source:
        """The set in a folder, its files counted but not read yet."""
        sizes = [self._count(folder / part) for part in _PARTS]
        files = [(part, index) for part, size in zip(_PARTS, sizes, strict=True) for index in range(size)]

        def read(start: int, stop: int) -> dict[str, npt.NDArray[Any]]:
            chosen = files[start:stop]
            found = {name: self._stack(name, folder, chosen) for name in self.rows}
            return {**found, "part": np.array([_PARTS.index(part) for part, _ in chosen], dtype=np.uint8)}

        stamp = [f"{p.name}:{p.stat().st_size}:{p.stat().st_mtime_ns}" for p in self._first_files(folder)]
        fingerprint = " ".join([str(folder.resolve()), *map(str, sizes), *stamp])
        return Source(self.name, fingerprint, len(files), {**self.rows, "part": ("u1", ())}, read)

    def _first_files(self, folder: Path) -> list[Path]:
        return [folder / part / kind / "0.npy" for part in _PARTS for kind in self.fields.values()]

    def _count(self, part: Path) -> int:
        """How many rows a part has, the same in every field and without a gap."""
        counts = {}
        for kind in self.fields.values():
            if not (part / kind).is_dir():
                raise FileNotFoundError(f"`data` should hold {part.name}/{kind}. Found no {part / kind}. {self.where}")
            numbers = {path.stem for path in (part / kind).glob("*.npy")}
            missing = next((i for i in range(len(numbers)) if str(i) not in numbers), None)
            if missing is not None or not numbers:
                raise FileNotFoundError(
                    f"{part / kind} should hold 0.npy, 1.npy, ... without a gap. Found no {missing or 0}.npy. "
                    f"{self.where}"
                )
            counts[kind] = len(numbers)
        if len(set(counts.values())) > 1:
            raise ValueError(f"{part} should have as many files in each folder. Found {counts}.")
        return next(iter(counts.values()))

    def _stack(self, name: str, folder: Path, files: list[tuple[str, int]]) -> npt.NDArray[Any]:
        kind, shape = self.rows[name]

        def one(file: tuple[str, int]) -> npt.NDArray[Any]:
            path = folder / file[0] / self.fields[name] / f"{file[1]}.npy"
            with _OPENING:
                row = np.load(path, allow_pickle=False, mmap_mode="r")  # its numbers are read below, by many at once
            if row.shape[: len(shape)] != shape or row.size != np.prod(shape):
                raise ValueError(f"{path} should be of shape {shape}. Found {row.shape}.")
            if kind == "u1" and row.dtype != np.uint8:  # images are stored as numbers from 0 to 1
                row = np.rint(row * 255)
            return np.array(row, dtype=kind).reshape(shape)

        return stacked(one, files)
