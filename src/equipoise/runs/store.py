"""A run's folder: what is in it, who may write it, and how damage is noticed.

    config.toml             the configuration, and the versions and machine it was started on
    metrics.csv             one row per epoch
    steps.csv               losses and weights per step, thinned
    checkpoint.safetensors  where to go on from; the one before it is kept as checkpoint.previous.safetensors
    diagnosis.json          what equipoise.diagnose says of the trained model
    result.json             the finished run's row, with the checksums of everything above
    error.txt               why the last attempt failed, if it did
    .lock                   held by the process that writes

Tables grow by appending. A checkpoint holds their length and hash at its moment, so that a resumed run cuts off rows
that were written after it, and a table that was altered is noticed.
"""

from __future__ import annotations

import csv
import errno
import fcntl
import hashlib
import io
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from equipoise.runs import toml
from equipoise.runs.checkpoint import UNFINISHED, DamagedFile, read_checkpoint, write_checkpoint, write_whole
from equipoise.runs.config import RunConfig
from equipoise.runs.marks import TABLES, cut, mark, marks_in, refuse_links

DIAGNOSIS = "diagnosis.json"
_CHECKPOINT = "checkpoint.safetensors"
_PREVIOUS = "checkpoint.previous.safetensors"
_POLL = 0.1  # seconds between looks at a lock that somebody else has
_TRACKED = ("wandb.id", "mlflow.id")  # which run of a tracker this one is
_HASHED = ("config.toml", *TABLES)


class RunLocked(RuntimeError):
    """Another process is writing the run."""


class DiskFull(RuntimeError):
    """There is no room left for what a run writes."""


@dataclass(frozen=True)
class Run:
    """A run as read from its folder; `result` is None while it is unfinished."""

    path: Path
    config: RunConfig
    environment: Mapping[str, Any]
    metrics: list[dict[str, float]]
    steps: list[dict[str, float]]
    result: Mapping[str, Any] | None
    error: str | None = None


class RunFolder:
    """A run's folder, open for writing by this process alone.

    say: is told, in one sentence, of anything damaged and what is done about it.
    """

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self.path = path
        self.say = say

    def finished(self) -> Mapping[str, Any] | None:
        """The result of a finished and undamaged run, else None."""
        try:
            return _read_result(self.path)
        except DamagedFile as error:
            self.say(f"{error} The run goes on from its last good checkpoint.")
            (self.path / "result.json").unlink()
            return None

    def start(self, config: RunConfig, environment: Mapping[str, Any]) -> Mapping[str, Any]:
        """Store the configuration, or check it against the stored one; returns the environment of the start."""
        path = self.path / "config.toml"
        if path.exists():
            stored, since = _read_config(self.path)
            changes = stored.differences(config)
            if changes:
                raise ValueError(
                    f"{self.path} holds another run, so this one would have {'; '.join(changes)}: "
                    "choose another folder, or --force to start that one again."
                )
            return since
        for name in (*TABLES, _CHECKPOINT, _PREVIOUS):
            if (self.path / name).exists():
                raise DamagedFile(f"{self.path} has a {name} but no config.toml: what it belongs to is unknown.")
        text = "# `equipoise run` with this file repeats the run.\n"
        write_whole(path, (text + toml.dumps({**config.to_table(), "environment": environment})).encode())
        return environment

    def append(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows to a table; the first row ever names the columns."""
        path = self.path / table
        text = io.StringIO()
        if rows:
            writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
            if not path.exists() or not path.stat().st_size:
                writer.writeheader()
            writer.writerows(rows)
            with path.open("ab") as file:
                file.write(text.getvalue().encode())
                file.flush()
                os.fsync(file.fileno())

    def save(self, state: Mapping[str, Any]) -> None:
        """Write a checkpoint that goes with the tables as they are now."""
        newest = self.path / _CHECKPOINT
        if newest.exists():
            os.replace(newest, self.path / _PREVIOUS)
        write_checkpoint(newest, {"tables": {name: mark(self.path / name) for name in TABLES}, "state": state})

    def load(self) -> dict[str, Any] | None:
        """The newest good state, the tables cut back to it; None when the run has to start from its beginning."""
        for name in (_CHECKPOINT, _PREVIOUS):
            path = self.path / name
            try:
                tree = read_checkpoint(path)
                for table, length, digest in marks_in(tree, path):
                    cut(self.path / table, length, digest)
            except FileNotFoundError:
                continue
            except DamagedFile as error:
                self.say(f"{error} Looking for an older checkpoint.")
                continue
            state: dict[str, Any] = tree["state"]
            return state
        had = any((self.path / name).exists() for name in (_CHECKPOINT, _PREVIOUS))
        if had:
            self.say(f"{self.path} has no good checkpoint: the run starts again.")
        for name in (*TABLES, _CHECKPOINT, _PREVIOUS):
            (self.path / name).unlink(missing_ok=True)
        return None

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result, which makes the run finished; the older checkpoint is no longer needed."""
        checksums = {name: mark(self.path / name)[1] for name in _HASHED}
        body = {"checksums": checksums, "result": dict(result)}
        text = json.dumps({"sha256": _digest_of(body), **body}, indent=1)
        write_whole(self.path / "result.json", text.encode())
        (self.path / _PREVIOUS).unlink(missing_ok=True)

    def write_diagnosis(self, found: Mapping[str, Any]) -> None:
        """Keep what `equipoise.diagnose` says of the trained model."""
        write_whole(self.path / DIAGNOSIS, json.dumps(found, indent=1).encode())

    def write_error(self, text: str) -> None:
        """Keep why an attempt failed, if that can still be written: the error itself is on its way to the user."""
        with suppress(OSError):
            write_whole(self.path / "error.txt", text.encode())


@contextmanager
def open_run(
    path: Path, *, force: bool = False, say: Callable[[str], None] = print, patience: float = 0.0
) -> Iterator[RunFolder]:
    """The folder, locked for this process; with `force` what it held of an earlier run is removed.

    patience: seconds to wait for another process that writes it, such as one whose parent was killed just now.
    """
    try:
        yield from _open_run(path, force, say, patience)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskFull(
            f"{path}: no space is left on its disk. All up to the last checkpoint is kept: make room, and the same "
            "command goes on from there."
        ) from error


def _open_run(path: Path, force: bool, say: Callable[[str], None], patience: float) -> Iterator[RunFolder]:
    path.mkdir(parents=True, exist_ok=True)
    refuse_links(path)
    with (path / ".lock").open("ab+", buffering=0) as lock:
        _take(cast("BinaryIO", lock), path, say, patience)
        (path / "error.txt").unlink(missing_ok=True)
        if force:
            for name in ("result.json", "config.toml", *TABLES, _CHECKPOINT, _PREVIOUS, DIAGNOSIS, *_TRACKED):
                (path / name).unlink(missing_ok=True)
        for left in path.glob(f"{UNFINISHED}*"):
            left.unlink()
        yield RunFolder(path, say)


def _take(lock: BinaryIO, path: Path, say: Callable[[str], None], patience: float) -> None:
    """Lock the folder, or raise `RunLocked` when somebody else still has it after so many seconds."""
    until = time.monotonic() + patience
    told = False
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().decode(errors="replace").strip() or "(unknown)"
        if time.monotonic() >= until:
            raise RunLocked(f"{path} is being written by process {holder}.")
        if not told:
            told = True
            say(f"{path} is being written by process {holder}: waiting up to {patience:g} s for it to end.")
        time.sleep(_POLL)
    with suppress(OSError):  # a full disk: the number only tells others who it is
        lock.truncate(0)
        lock.write(str(os.getpid()).encode())


def read_run(path: Path) -> Run:
    """A run from its folder, finished or not; `DamagedFile` names what is wrong with a finished one."""
    if not (path / "config.toml").exists():
        raise FileNotFoundError(f"{path} is no run: it has no config.toml.")
    config, environment = _read_config(path)
    result = _read_result(path)
    metrics, steps = (_read_table(path / name) for name in TABLES)
    return Run(path, config, environment, metrics, steps, result, _read_error(path))


def _read_error(path: Path) -> str | None:
    """The last line of what went wrong."""
    file = path / "error.txt"
    return file.read_text("utf-8", "replace").strip().splitlines()[-1] if file.exists() else None


def find_runs(root: Path) -> list[Path]:
    """The folders of all runs below a folder, in order."""
    return sorted(path.parent for path in root.rglob("config.toml"))


def _read_config(path: Path) -> tuple[RunConfig, Mapping[str, Any]]:
    try:
        table = toml.load(path / "config.toml")
        return RunConfig.from_table(table), table.get("environment", {})
    except (ValueError, TypeError) as error:
        raise DamagedFile(f"{path / 'config.toml'} is damaged: {error}") from None


def _read_result(path: Path) -> Mapping[str, Any] | None:
    file = path / "result.json"
    try:
        content = json.loads(file.read_text("utf-8"))
        stored = content.pop("sha256")
        good = stored == _digest_of(content) and set(content["checksums"]) <= set(_HASHED)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        good = False
    if not good:
        raise DamagedFile(f"{file} is damaged: it does not match its checksum.")
    for name, digest in content["checksums"].items():
        if mark(path / name)[1] != digest:
            raise DamagedFile(f"{path / name} is damaged: it is not the file the run ended with.")
    result: Mapping[str, Any] = content["result"]
    return result


def _read_table(path: Path) -> list[dict[str, float]]:
    """The whole rows of a table; empty cells are left out."""
    if not path.exists():
        return []
    text = path.read_text("utf-8")
    whole = text[: text.rfind("\n") + 1]  # a row being written right now has no end yet
    try:
        return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(io.StringIO(whole))]
    except (ValueError, TypeError, csv.Error):
        raise DamagedFile(f"{path} is damaged: a row does not hold numbers.") from None


def _digest_of(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
