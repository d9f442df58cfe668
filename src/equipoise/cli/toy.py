"""`equipoise toy`: every method from all five starts, side by side in processes, as a table and a page."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Literal, cast

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from equipoise.report.render import for_terminal
from equipoise.report.tables import display_name
from equipoise.report.toy import toy_page, toy_table
from equipoise.runs.checkpoint import write_whole
from equipoise.runs.toy import Way, carry_out, toy_methods
from equipoise.suites.toy.starts import Trajectories


def show_toy(
    named: Sequence[str], *, steps: int, lr: float, sign: str, jobs: int, out: Path, force: bool, console: Console
) -> None:
    """Run what is not kept from an earlier call, print the table, and write the page."""
    if sign not in ("code", "paper"):
        raise ValueError(f"--sign must be 'code' or 'paper'; found {sign!r}.")
    names = toy_methods(named)
    way = Way(steps, lr, cast('Literal["code", "paper"]', sign))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task(f"methods, {steps:,} steps each", total=len(names))

        def told(name: str, found: Trajectories | str) -> None:
            progress.advance(bar)
            console.print(f"{display_name(name):20} {found if isinstance(found, str) else f'{found.seconds:.0f} s'}")

        try:
            runs, failed = carry_out(names, way, out, jobs=jobs, told=told, force=force)
        except (KeyboardInterrupt, BrokenProcessPool) as stop:
            console.print("Stopped. What had ended is kept: the same command goes on from here.")
            raise typer.Exit(130 if isinstance(stop, KeyboardInterrupt) else 1) from None
    if not runs:
        raise ValueError(f"none of the methods can run here: {failed}")
    console.print(for_terminal(toy_table(runs, failed), console.width))
    write_whole(out, toy_page(runs, failed, way.sign).encode())
    console.print(f"Figure: {out.resolve()}")
