"""Decoded once, mapped into memory ever after: arrays in files that are checked, resumable, and whole or absent."""

from __future__ import annotations

import json
import os
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_VERSION = 1
_CHUNK = 512  # rows decoded, checked and resumed together

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Source:
    """Rows that can be decoded, a range at a time.

    name, fingerprint: together they name the cache; the fingerprint changes when the data do.
    fields: the type and the shape of one row of each array.
    read: the arrays of the rows from `start` up to `stop`.
    """

    name: str
    fingerprint: str
    size: int
    fields: Mapping[str, tuple[str, tuple[int, ...]]]
    read: Callable[[int, int], Mapping[str, npt.NDArray[Any]]]

    def plan(self) -> dict[str, Any]:
        """What a cache of this source must say about itself."""
        fields = {name: [np.dtype(kind).str, list(shape)] for name, (kind, shape) in self.fields.items()}
        return {"version": _VERSION, "fingerprint": self.fingerprint, "size": self.size, "fields": fields}


def cache_folder() -> Path:
    """``$EQUIPOISE_CACHE``, or ``equipoise`` in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("EQUIPOISE_CACHE") or Path(base) / "equipoise")


def packed(source: Source, folder: Path | None = None) -> Arrays:
    """The arrays of a source, mapped into memory; decoded into a cache under `folder` the first time.

    The cache appears whole or not at all. An interrupted packing goes on where it stopped, a damaged cache is named
    on stderr and made again, and of several processes that want it one packs while the others wait.
    """
    folder = cache_folder() if folder is None else folder
    place = folder / f"{source.name}-{zlib.crc32(source.fingerprint.encode()):08x}"
    arrays = _open(place, source)
    if arrays is None:
        folder.mkdir(parents=True, exist_ok=True)
        with _lock(place.with_suffix(".lock")):
            arrays = _open(place, source)  # another process may have packed it meanwhile
            if arrays is None:
                _pack(place, source)
                arrays = _open(place, source)
    if arrays is None:
        raise OSError(f"{place} should hold the arrays just packed from {source.name}. Found them damaged.")
    return arrays


def _open(place: Path, source: Source) -> Arrays | None:
    """The arrays if the cache is there and every chunk has its checksum; a damaged cache is removed."""
    try:
        manifest = json.loads((place / "manifest.json").read_text())
        if {key: manifest[key] for key in source.plan()} != source.plan():
            raise ValueError("its manifest is of other data")
        arrays = {name: np.load(place / f"{name}.npy", mmap_mode="c") for name in source.fields}
        for start in range(0, source.size, _CHUNK):
            if _checksums(arrays, start) != manifest["checksums"][str(start)]:
                raise ValueError(f"rows from {start} do not have the checksum written with them")
    except FileNotFoundError:
        if not place.exists():
            return None
        reason = "a file is missing"
    except (ValueError, KeyError, OSError) as error:
        reason = str(error)
    else:
        return arrays
    print(f"equipoise: {place} is damaged ({reason}). It is made again.", file=sys.stderr)
    shutil.rmtree(place)
    return None


def _pack(place: Path, source: Source) -> None:
    partial = place.with_suffix(".partial")
    arrays = _begin(partial, source)
    log = partial / "progress.jsonl"
    checksums = {}
    for start, written in _progress(log):
        if _checksums(arrays, start) == written:
            checksums[str(start)] = written
    with log.open("a") as progress:
        for start in range(0, source.size, _CHUNK):
            if str(start) in checksums:
                continue
            stop = min(start + _CHUNK, source.size)
            _fill(arrays, source, start, stop)
            checksums[str(start)] = _checksums(arrays, start)
            progress.write(json.dumps([start, checksums[str(start)]]) + "\n")
            progress.flush()
            _say(f"\requipoise: packing {source.name}: {stop:,} of {source.size:,}")
    _say("\n")
    for array in arrays.values():
        array.flush()
    del arrays
    (partial / "manifest.json").write_text(json.dumps({**source.plan(), "checksums": checksums}))
    log.unlink()
    os.replace(partial, place)


def _begin(partial: Path, source: Source) -> dict[str, np.memmap[Any, Any]]:
    """The arrays to fill: those of an interrupted packing of the same data, or fresh ones."""
    plan = json.dumps(source.plan())
    if not (partial / "plan.json").is_file() or (partial / "plan.json").read_text() != plan:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        for name, (kind, shape) in source.fields.items():
            np.lib.format.open_memmap(partial / f"{name}.npy", "w+", np.dtype(kind), (source.size, *shape))
        (partial / "plan.json").write_text(plan)
    return {name: np.load(partial / f"{name}.npy", mmap_mode="r+") for name in source.fields}


def _progress(log: Path) -> Iterator[tuple[int, dict[str, int]]]:
    """The chunks an interrupted packing finished; its last line may be cut short."""
    if not log.is_file():
        return
    for line in log.read_text().splitlines():
        try:
            start, checksums = json.loads(line)
        except ValueError:
            return
        yield start, checksums


def _fill(arrays: Mapping[str, npt.NDArray[Any]], source: Source, start: int, stop: int) -> None:
    rows = source.read(start, stop)
    for name, array in arrays.items():
        if rows[name].shape != array[start:stop].shape or rows[name].dtype != array.dtype:
            raise ValueError(
                f"{source.name}: rows {start} to {stop} of {name!r} should be {array.dtype} of shape "
                f"{array[start:stop].shape}. Found {rows[name].dtype} of shape {rows[name].shape}."
            )
        array[start:stop] = rows[name]


def _checksums(arrays: Mapping[str, npt.NDArray[Any]], start: int) -> dict[str, int]:
    return {name: zlib.crc32(array[start : start + _CHUNK].tobytes()) for name, array in arrays.items()}


def _say(text: str) -> None:
    """Packing takes minutes: say where it is to somebody who watches."""
    if sys.stderr.isatty():
        print(text, end="", file=sys.stderr, flush=True)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Held by one process at a time; the system frees it when its holder dies."""
    import fcntl

    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
