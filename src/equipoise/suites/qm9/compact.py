"""One checked file for many molecules: about 130 bytes each, decoded in a second for all of QM9.

A zip of numpy arrays (readable with ``numpy.load``). Positions are stored as the step from a bonded neighbour that
comes earlier in the molecule, targets as integers with what composition and each other predict taken off, both
split into byte planes so that deflate finds the regular ones. A sha256 over all arrays is stored beside them.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .chemistry import ATOMIC_NUMBERS
from .molecules import ATOM_REFERENCE, Molecules

_VERSION = 1
_MOST = 2**27  # bytes; all molecules unpack to 40 million, and a small file can be made to unpack to any number
_FIXED_DATE = (1980, 1, 1, 0, 0, 0)  # the same molecules give the same file


class DamagedFile(ValueError):
    """The file is not what was written: cut short, changed, or something else altogether."""


def encode(molecules: Molecules) -> bytes:
    """The file for these molecules, whose QM9 numbers must increase; what is perceived of them is left out.

    >>> from equipoise.suites.qm9 import load_sample
    >>> few = load_sample().take(np.arange(3))
    >>> decode(encode(few)).number.tolist() == few.number.tolist()
    True
    """
    head = _first_atoms(molecules)
    step = molecules.grid.copy()
    step[~head] -= molecules.grid[_anchors(molecules)[~head]]
    arrays = {
        "version": np.array([_VERSION]),
        "index_step": np.diff(molecules.index, prepend=0).astype(np.uint32),
        "atoms": molecules.atoms.astype(np.uint8),
        "number": molecules.number,
        "bonds": molecules.bonds.astype(np.uint8),
        "bond_i": molecules.bond[:, 0].copy(),
        "bond_j": molecules.bond[:, 1].copy(),
        "order": molecules.order,
        "first_position": _planes(step[head].T.astype("<i4")),
        "step": _planes(step[~head].T.astype("<i2")),
        "raw": _planes(_residuals(molecules).T.astype("<i4")),
    }
    if (np.abs(step[~head]) > np.iinfo(np.int16).max).any():
        raise ValueError("`molecules` should have bonded atoms within 3.2767 Angstrom. Found a longer step.")
    return pack(arrays)


def pack(arrays: Mapping[str, npt.NDArray[np.generic]]) -> bytes:
    """A checked file of these arrays: a zip that ``numpy.load`` reads, with a sha256 over all of them."""
    arrays = {**arrays, "sha256": np.frombuffer(digest(arrays), dtype=np.uint8)}
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, array, allow_pickle=False)
            entry = zipfile.ZipInfo(f"{name}.npy", _FIXED_DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, member.getvalue(), compresslevel=9)
    return file.getvalue()


def unpack(data: bytes, name: str, version: int) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a file that `pack` made, refused as :class:`DamagedFile` if a byte of them differs.

    name: the array with the file's version, which tells what kind of file it is; version: the one that is known.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as members:
            size = sum(member.file_size for member in members.infolist())
        if size > _MOST:
            raise DamagedFile(f"it says it unpacks to {size:,} bytes; all of QM9 takes less than {_MOST:,}")
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        if not all(isinstance(array, np.ndarray) for array in arrays.values()):
            raise DamagedFile("it holds other things than arrays")
    except (
        ValueError,
        OSError,
        EOFError,
        MemoryError,
        KeyError,
        zipfile.BadZipFile,
        zlib.error,
        NotImplementedError,
    ) as error:
        raise DamagedFile(f"the archive cannot be read ({error})") from error
    stored = arrays.pop("sha256", np.zeros(0, dtype=np.uint8))
    if stored.tobytes() != digest(arrays):
        raise DamagedFile("its contents do not have the sha256 written with them")
    if name not in arrays:
        raise DamagedFile("it is a file of another kind")
    if arrays[name].item() != version:
        raise DamagedFile(f"its version is {arrays[name].item()}, this reader knows version {version}")
    return arrays


def decode(data: bytes) -> Molecules:
    """The molecules of a file, refused as :class:`DamagedFile` if a single byte differs from what was written."""
    arrays = unpack(data, "version", _VERSION)
    atoms = arrays["atoms"].astype(np.int64)
    bond = np.stack([arrays["bond_i"], arrays["bond_j"]], axis=1)
    shell = Molecules(
        index=np.cumsum(arrays["index_step"], dtype=np.int64),
        atoms=atoms,
        number=arrays["number"],
        grid=np.zeros((len(arrays["number"]), 3), dtype=np.int32),
        bonds=arrays["bonds"].astype(np.int64),
        bond=bond,
        order=arrays["order"],
        raw=np.zeros((len(atoms), 12), dtype=np.int64),
    )
    _fill_positions(shell, arrays)
    _fill_targets(shell, _numbers(arrays["raw"], "<i4", 12).T.astype(np.int64))
    return shell


def read(path: Path) -> Molecules:
    """The molecules of the file at ``path``; errors name it."""
    try:
        return decode(path.read_bytes())
    except DamagedFile as error:
        raise DamagedFile(f"{path} is damaged: {error}.") from error


def _first_atoms(molecules: Molecules) -> npt.NDArray[np.bool_]:
    head = np.zeros(len(molecules.number), dtype=bool)
    head[molecules.atom_offset[:-1]] = True
    return head


def _anchors(molecules: Molecules) -> npt.NDArray[np.int64]:
    """The atom each position is told from: its first bonded atom if that comes earlier, else the atom before it."""
    anchor = np.arange(len(molecules.number)) - 1
    start = np.repeat(molecules.atom_offset[:-1], molecules.bonds)
    # Bonds are sorted by (i, j) with i < j: going backwards, the smallest i is written to j last.
    anchor[(start + molecules.bond[:, 1])[::-1]] = (start + molecules.bond[:, 0])[::-1]
    return anchor


def _fill_positions(molecules: Molecules, arrays: dict[str, npt.NDArray[np.generic]]) -> None:
    """Atom k of every molecule at once, for k = 1, 2, ...: its anchor is already in place."""
    grid, head = molecules.grid, _first_atoms(molecules)
    grid[head] = _numbers(arrays["first_position"], "<i4", 3).T
    grid[~head] = _numbers(arrays["step"], "<i2", 3).T
    anchor = _anchors(molecules)
    local = np.arange(len(anchor)) - np.repeat(molecules.atom_offset[:-1], molecules.atoms)
    by_local = np.argsort(local, kind="stable")
    for atoms in np.split(by_local, np.cumsum(np.bincount(local))[:-1])[1:]:
        grid[atoms] += grid[anchor[atoms]]


def _composition(molecules: Molecules) -> npt.NDArray[np.int64]:
    """Free-atom energies of each molecule, ``[M, 4]``."""
    molecule = np.repeat(np.arange(len(molecules)), molecules.atoms)
    counts = [np.bincount(molecule[molecules.number == z], minlength=len(molecules)) for z in ATOMIC_NUMBERS]
    return np.stack(counts, axis=1) @ ATOM_REFERENCE.T


def _residuals(molecules: Molecules) -> npt.NDArray[np.int64]:
    """Targets with what is known taken off: the gap is lumo - homo, H - U is kT, energies are near their atoms'."""
    rest = molecules.raw.copy()
    rest[:, 4] -= rest[:, 3] - rest[:, 2]
    energies = molecules.raw[:, 7:11] - _composition(molecules)
    rest[:, 7] = energies[:, 0]
    rest[:, 8:11] = np.diff(energies, axis=1)
    return rest


def _fill_targets(molecules: Molecules, rest: npt.NDArray[np.int64]) -> None:
    molecules.raw[:] = rest
    molecules.raw[:, 4] += rest[:, 3] - rest[:, 2]
    molecules.raw[:, 7:11] = np.cumsum(rest[:, 7:11], axis=1) + _composition(molecules)


def _planes(rows: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    """All first bytes, then all second bytes, ... of a matrix of little-endian integers, row by row."""
    return np.ascontiguousarray(rows.reshape(-1)).view(np.uint8).reshape(rows.size, -1).T.copy()


def _numbers(planes: npt.NDArray[np.generic], kind: str, rows: int) -> npt.NDArray[np.generic]:
    return np.ascontiguousarray(planes.T).view(kind).reshape(rows, -1)


def digest(arrays: Mapping[str, npt.NDArray[np.generic]]) -> bytes:
    """A sha256 of names, types, shapes and contents."""
    seen = hashlib.sha256()
    for name, array in arrays.items():
        seen.update(f"{name} {array.dtype.str} {array.shape};".encode())
        seen.update(np.ascontiguousarray(array).data)
    return seen.digest()
