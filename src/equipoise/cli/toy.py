"""`equipoise toy`: every method from all five starts, side by side in processes."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Literal, cast

import torch
from rich.console import Console

from equipoise.registry import methods
from equipoise.report.render import for_terminal
from equipoise.report.tables import display_name
from equipoise.report.toy import toy_page, toy_table
from equipoise.runs.checkpoint import write_whole
from equipoise.runs.config import configure
from equipoise.suites.toy.starts import PAPER, Trajectories, run_starts

_NEITHER = ("stl", "ldc-double")  # one task alone, and an inner problem: nothing to draw here


def show_toy(names: Sequence[str], *, steps: int, lr: float, sign: str, jobs: int, out: Path, console: Console) -> None:
    """Run, print the table, and write the page."""
    if sign not in ("code", "paper"):
        raise ValueError(f"--sign must be 'code' or 'paper'; found {sign!r}.")
    if list(names) == ["all"]:
        names = [*(name for name in methods() if name not in _NEITHER), "ldc-no-router"]
    names = names or [*PAPER, "ldc-no-router"]
    known = cast('Literal["code", "paper"]', sign)
    configs = {name: configure("toy", name) for name in names}
    runs: dict[str, Trajectories] = {}
    failed: dict[str, str] = {}
    with ProcessPoolExecutor(min(jobs, len(names)), mp_context=get_context("spawn")) as pool:
        waiting = {
            pool.submit(_run, config.method, dict(config.options), steps, lr, known): name
            for name, config in configs.items()
        }
        with console.status("") as status:
            for future in as_completed(waiting):
                name = waiting.pop(future)
                found = future.result()
                if isinstance(found, str):
                    failed[name] = found
                else:
                    runs[name] = found
                status.update(f"{len(waiting)} of {len(names)} methods still on their way")
                console.print(
                    f"{display_name(name):20} {found if isinstance(found, str) else f'{found.seconds:.0f} s'}"
                )
    runs = {name: runs[name] for name in names if name in runs}
    if not runs:
        raise ValueError(f"none of the methods can run here: {failed}")
    console.print(for_terminal(toy_table(runs, failed), console.width))
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, toy_page(runs, failed, known).encode())
    console.print(f"Figure: {out.resolve()}")


def _run(
    method: str, options: dict[str, object], steps: int, lr: float, sign: Literal["code", "paper"]
) -> Trajectories | str:
    """In a process of its own: the trajectories, or why there are none."""
    torch.set_num_threads(1)
    try:
        return run_starts(method, options, steps=steps, lr=lr, sign=sign)
    except ValueError as error:
        return str(error)
