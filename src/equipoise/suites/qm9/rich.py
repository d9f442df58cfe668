"""The rich features' codes in a checked file of their own, beside the molecules' cache: RDKit is asked once."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from .compact import DamagedFile, digest, pack, unpack
from .data import cache_folder, cached
from .molecules import Molecules
from .perception import Perception, perceive

_VERSION = 1
_KIND = "perception"  # the name of the version's array


def enrich(molecules: Molecules, folder: Path | None = None) -> Molecules:
    """The molecules with their rich features: which atoms and bonds are aromatic, which atoms sp, sp2 or sp3.

    RDKit says so once (18 seconds for all of QM9; the extra `chem` has it). Its answer stays in ``folder``, by default
    the cache's, in a file named after the molecules: checked, whole or not at all, and made by one process at a time.

    >>> import tempfile
    >>> from equipoise.suites.qm9 import load_sample
    >>> acetone = enrich(load_sample().take(np.arange(1)), Path(tempfile.mkdtemp()))
    >>> acetone.features()[1, 6:10].tolist()  # the carbon of C=O: aromatic, sp, sp2, sp3
    [0.0, 0.0, 1.0, 0.0]
    """
    fingerprint = _fingerprint(molecules)
    path = (cache_folder() if folder is None else folder) / f"qm9-rich-{_VERSION}-{fingerprint.hex()[:12]}.npz"
    perception = cached(
        path,
        lambda path: _read(path, fingerprint),
        lambda: perceive(molecules, lambda done: _say(done, len(molecules))),
        lambda perception: _encode(perception, fingerprint),
    )
    return replace(molecules, perception=perception)


def _encode(perception: Perception, fingerprint: bytes) -> bytes:
    """The file for what was perceived of the molecules with this fingerprint."""
    return pack(
        {
            _KIND: np.array([_VERSION]),
            "molecules": np.frombuffer(fingerprint, dtype=np.uint8),
            "aromatic": perception.aromatic,
            "hybridisation": perception.hybridisation,
            "aromatic_bond": perception.aromatic_bond,
        }
    )


def _read(path: Path, fingerprint: bytes) -> Perception:
    """The file at `path`, refused as `DamagedFile` if it is not what was written for these molecules."""
    try:
        arrays = unpack(path.read_bytes(), _KIND, _VERSION)
        if arrays["molecules"].tobytes() != fingerprint:
            raise DamagedFile("it is of other molecules")
    except DamagedFile as error:
        raise DamagedFile(f"{path} is damaged: {error}.") from error
    return Perception(
        arrays["aromatic"].astype(bool), arrays["hybridisation"].astype(np.uint8), arrays["aromatic_bond"].astype(bool)
    )


def _fingerprint(molecules: Molecules) -> bytes:
    """A sha256 of everything RDKit's answer follows from."""
    return digest({name: getattr(molecules, name) for name in ("atoms", "number", "grid", "bonds", "bond", "order")})


def _say(done: int, total: int) -> None:
    """Half a minute for all of QM9: say where it is to somebody who watches."""
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\requipoise: RDKit has seen {done:,} of {total:,} molecules", end=end, file=sys.stderr, flush=True)
