"""Files made to do harm."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np


class Bomb:
    """Unpickling it makes a file."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.proof),)


def pickled(proof: Path) -> bytes:
    return pickle.dumps(Bomb(proof), protocol=2)  # of a later one torch warns


def npy_of_objects(proof: Path) -> bytes:
    """What `np.load(allow_pickle=True)` would run."""
    file = io.BytesIO()
    np.save(file, np.array([Bomb(proof)], dtype=object), allow_pickle=True)
    return file.getvalue()


def npy_header(shape: tuple[int, ...], kind: str = "<f8") -> bytes:
    """An array that says it is huge, and holds eight bytes."""
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + bytes(8)


def archive(members: dict[str, bytes], level: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", level) as out:
        for name, data in members.items():
            out.writestr(name, data)
    return file.getvalue()


def torch_archive(proof: Path) -> bytes:
    """The layout of `torch.save`, with a pickle that runs."""
    return archive({"archive/data.pkl": pickled(proof), "archive/version": b"3\n"})


def safetensors(header: dict[str, Any], data: bytes = b"", length: int | None = None) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data
