"""The toy problem's methods, side by side in processes; each is kept as it ends, and what is kept is not run again.

Needs torch and numpy only.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path
from threading import Thread
from typing import Any, cast

import torch

from equipoise.registry import methods
from equipoise.runs.checkpoint import DamagedFile, write_whole
from equipoise.runs.config import configure
from equipoise.suites.toy.problem import STARTS, Sign, toy_losses
from equipoise.suites.toy.starts import PAPER, Trajectories, run_starts

_NEITHER = ("stl", "ldc-double")  # one task alone, and an inner problem: nothing to draw here


@dataclass(frozen=True)
class Way:
    """How every method goes: the steps of Adam, its rate, and the sign of the second loss."""

    steps: int
    lr: float
    sign: Sign

    def folder(self, out: Path) -> Path:
        """Where the methods are kept that went this way, beside the page that shows them.

        >>> Way(50_000, 1e-3, "code").folder(Path("runs/toy.html")).as_posix()
        'runs/toy-code-50000-0.001'
        """
        return out.with_name(f"{out.stem}-{self.sign}-{self.steps}-{self.lr:g}")


def toy_methods(named: Sequence[str]) -> list[str]:
    """The methods meant: the paper's four and LDC without a router for none, everything that draws for "all".

    >>> toy_methods([])
    ['ls', 'mgda', 'famo', 'ldc', 'ldc-no-router']
    """
    if list(named) == ["all"]:
        return [*(name for name in methods() if name not in _NEITHER), "ldc-no-router"]
    return list(named) or [*PAPER, "ldc-no-router"]


def carry_out(
    names: Sequence[str],
    way: Way,
    out: Path,
    *,
    jobs: int,
    told: Callable[[str, Trajectories | str], object],
    force: bool = False,
) -> tuple[dict[str, Trajectories], dict[str, str]]:
    """Every method from all starts, and why some cannot run; what an earlier call has kept beside `out` is taken.

    told: is called with each method as it ends, and its trajectories or what it said.
    """
    folder = way.folder(out)
    folder.mkdir(parents=True, exist_ok=True)
    configs = {name: configure("toy", name) for name in names}
    tables = {name: _told_apart(config.method, config.options, way) for name, config in configs.items()}
    files = {name: folder / f"{name}.json" for name in names}
    found: dict[str, Trajectories | str] = {}
    for name in names:
        kept = None if force else _read(files[name], tables[name])
        if kept is not None:
            found[name] = kept
    missing = [name for name in names if name not in found]
    with ProcessPoolExecutor(max(1, min(jobs, len(missing))), get_context("spawn"), _mind_the_parent) as pool:
        try:
            waiting = {
                pool.submit(_run, configs[name].method, dict(configs[name].options), way): name for name in missing
            }
            for future in as_completed(waiting):
                name = waiting[future]
                found[name] = ended = future.result()
                if isinstance(ended, Trajectories):
                    _write(files[name], tables[name], ended)
                told(name, ended)
        except BaseException:
            for child in active_children():  # the pool would wait for what is under way
                child.terminate()
            raise
    runs = {name: found[name] for name in names if isinstance(found[name], Trajectories)}
    return cast("dict[str, Trajectories]", runs), {name: why for name, why in found.items() if isinstance(why, str)}


def _run(method: str, options: dict[str, object], way: Way) -> Trajectories | str:
    """In a process of its own: the trajectories, or why there are none."""
    torch.set_num_threads(1)
    try:
        return run_starts(method, options, steps=way.steps, lr=way.lr, sign=way.sign)
    except ValueError as error:
        return str(error)


def _mind_the_parent() -> None:
    """End when the process that started this one is gone, however it went; a terminal's Ctrl-C is for that one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    Thread(target=watch, daemon=True).start()


def _told_apart(method: str, options: Mapping[str, Any], way: Way) -> dict[str, Any]:
    """What two runs must share to be the same one."""
    return {"method": method, "options": dict(options), "steps": way.steps, "lr": way.lr, "sign": way.sign}


def _write(path: Path, table: Mapping[str, Any], run: Trajectories) -> None:
    content = {**table, "seconds": run.seconds, "torch": torch.__version__, "points": run.points.tolist()}
    write_whole(path, json.dumps(content).encode())


def _read(path: Path, table: Mapping[str, Any]) -> Trajectories | None:
    """What a file keeps, or None if there is none or it is of another run."""
    try:
        content = json.loads(path.read_text("utf-8"))
        same = {key: content[key] for key in table} == json.loads(json.dumps(table))
        points, seconds = torch.tensor(content["points"]), float(content["seconds"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedFile(f"{path} is damaged ({type(error).__name__}): remove it, or --force to run again.") from None
    if not same:
        return None
    if points.shape[1:] != (len(STARTS), 2) or len(points) < 2:
        raise DamagedFile(f"{path} is damaged: its points have the shape {list(points.shape)}.")
    return Trajectories(table["method"], points, toy_losses(points, table["sign"]), table["steps"], seconds)
