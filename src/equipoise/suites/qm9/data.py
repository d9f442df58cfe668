"""Where QM9 comes from: the shipped sample, or all of it from ``qm9pack`` through a checked cache; and its splits."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from . import compact
from .molecules import Molecules
from .raw import read_qm9pack

SAMPLE_SIZE = 5000
_SAMPLE_SEED = 0
_CACHE_NAME = "qm9-1.npz"
T = TypeVar("T")


def load_sample() -> Molecules:
    """The 5,000 real molecules that ship with the package: no download, a few hundredths of a second.

    >>> sample = load_sample()
    >>> len(sample), sample.targets().shape
    (5000, (5000, 11))
    """
    return compact.decode(files(__package__).joinpath("sample.npz").read_bytes())


def make_sample(molecules: Molecules) -> bytes:
    """The file ``sample.npz``, from all of QM9: molecules drawn at random, in QM9's order."""
    chosen = np.random.RandomState(_SAMPLE_SEED).permutation(len(molecules))[:SAMPLE_SIZE]
    return compact.encode(molecules.take(np.sort(chosen)))


def cache_folder() -> Path:
    """``$EQUIPOISE_CACHE``, or ``equipoise`` in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("EQUIPOISE_CACHE") or Path(base) / "equipoise")


def load(folder: Path | None = None, *, source: Path | None = None) -> Molecules:
    """All 130,831 molecules: from the cache in ``folder``, which is built from qm9pack first where it is missing.

    The cache is one file of 16 MB. A damaged one is named on stderr and built again; it appears whole or not at
    all; of several processes that want it, one builds and the others wait. ``source`` is the folder with
    qm9pack's CSV files, by default that of the installed package.
    """
    path = (cache_folder() if folder is None else folder) / _CACHE_NAME
    return cached(path, compact.read, lambda: read_qm9pack(source), compact.encode)


def cached(path: Path, read: Callable[[Path], T], make: Callable[[], T], encode: Callable[[T], bytes]) -> T:
    """What `read` finds in the file at `path`; where it is missing or damaged, what `make` makes, stored there first.

    The file appears whole or not at all, and of several processes that want it, one makes it and the others wait.
    """
    found = _read_cache(path, read)
    if found is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock(path.with_suffix(".lock")):
            found = _read_cache(path, read)  # another process may have made it meanwhile
            if found is None:
                found = make()
                _write_whole(path, encode(found))
    return found


def _read_cache(path: Path, read: Callable[[Path], T]) -> T | None:
    try:
        return read(path)
    except FileNotFoundError:
        return None
    except compact.DamagedFile as error:
        print(f"equipoise: {error} It is built again.", file=sys.stderr)
        return None


def _write_whole(path: Path, data: bytes) -> None:
    """A reader sees the old file or the new one, never a part."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Held by one process at a time; the system frees it when its holder dies."""
    import fcntl

    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class Split:
    """Rows of the molecules in each part."""

    train: npt.NDArray[np.int64]
    validation: npt.NDArray[np.int64]
    test: npt.NDArray[np.int64]


def split(size: int, *, seed: int = 0, held_out: int | None = None, permutation: npt.ArrayLike | None = None) -> Split:
    """Test, validation and training rows, in that order along a permutation of the molecules.

    As published: 10,000 molecules for the test, 10,000 for validation, all others for training (``held_out``
    molecules each; by default 10,000, and a tenth of sets under 100,000). The permutation is drawn from ``seed``
    or given, for instance the one LibMTL stores.

    >>> parts = split(1000, seed=3)
    >>> len(parts.train), len(parts.validation), len(parts.test)
    (800, 100, 100)
    """
    if permutation is None:
        order = np.random.RandomState(seed).permutation(size)
    else:
        order = np.asarray(permutation, dtype=np.int64)
        if order.shape != (size,) or not np.array_equal(np.sort(order), np.arange(size)):
            raise ValueError(f"`permutation` should hold each of 0 .. {size - 1} once. Found shape {order.shape}.")
    if held_out is None:
        held_out = 10_000 if size >= 100_000 else size // 10
    if not 0 < 2 * held_out < size:
        raise ValueError(f"`held_out` should leave molecules to train on. Found {held_out} of {size}, twice.")
    return Split(train=order[2 * held_out :], validation=order[held_out : 2 * held_out], test=order[:held_out])


def load_permutation(path: Path) -> npt.NDArray[np.int64]:
    """A stored permutation: a ``.npy`` file, a text file with one number a line, or a ``.t``/``.pt`` tensor file."""
    if path.suffix in (".t", ".pt", ".pth"):
        import torch

        try:
            return np.asarray(torch.load(path, weights_only=True), dtype=np.int64)
        except Exception as error:  # what a damaged or hostile file raises is torch's affair
            raise ValueError(f"{path} should be one tensor of whole numbers, saved by torch.save.") from error
    if path.suffix == ".npy":
        return np.asarray(np.load(path, allow_pickle=False), dtype=np.int64)
    return np.loadtxt(path, dtype=np.int64)


def statistics(
    targets: npt.NDArray[np.float64], train: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Mean and standard deviation of each target over the TRAINING molecules only.

    The reference code takes them over the full set, test molecules included.
    """
    chosen = targets[train]
    return chosen.mean(axis=0), chosen.std(axis=0, ddof=1)
