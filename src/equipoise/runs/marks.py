"""How long a run's tables were at a checkpoint, and what was in them: read back with care, whoever wrote it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from equipoise.runs.checkpoint import DamagedFile

TABLES = ("metrics.csv", "steps.csv")


def mark(path: Path) -> tuple[int, str]:
    """Length and hash of a file; of nothing where there is none."""
    data = path.read_bytes() if path.exists() else b""
    return len(data), hashlib.sha256(data).hexdigest()


def cut(path: Path, length: int, digest: str) -> None:
    """Cut a table back to the length it had, if what it had then is still there."""
    data = path.read_bytes() if path.exists() else b""
    if hashlib.sha256(data[:length]).hexdigest() != digest or len(data) < length:
        raise DamagedFile(f"{path} is damaged: the rows before the checkpoint are not those that were written.")
    if len(data) > length:
        with path.open("r+b") as file:
            file.truncate(length)


def marks_in(tree: Mapping[str, Any], path: Path) -> list[tuple[str, int, str]]:
    """The tables a checkpoint goes with; the file names no others, whoever wrote it."""
    tables, state = tree.get("tables"), tree.get("state")
    if not isinstance(tables, dict) or not isinstance(state, dict) or set(tables) != set(TABLES):
        raise DamagedFile(f"{path} is damaged: it must hold a state, and marks of {', '.join(TABLES)} alone.")
    try:
        marks = [(name, int(length), str(digest)) for name, (length, digest) in tables.items()]
    except (TypeError, ValueError):
        raise DamagedFile(f"{path} is damaged: a mark must be a length and a hash.") from None
    if any(length < 0 for _, length, _ in marks):
        raise DamagedFile(f"{path} is damaged: a length must be 0 or more.")
    return marks


def refuse_links(path: Path) -> None:
    """A link in a run's folder would let whoever made the folder choose what is written over elsewhere."""
    for entry in path.iterdir():
        if entry.is_symlink():
            raise ValueError(f"a run's folder must hold no links; found {entry} -> {os.readlink(entry)}.")
