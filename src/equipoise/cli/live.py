"""Live progress of many runs: a bar each for those under way, one for all, a line for each that ended."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from typing_extensions import Self

from equipoise.report.tables import display_name
from equipoise.runs.config import RunConfig


class Live:
    """A `Watch` that shows what it is told; used as a context manager around the runs."""

    def __init__(self, configs: Sequence[RunConfig], console: Console) -> None:
        self.configs = configs
        self.console = console
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[where]}", justify="right"),
            TimeRemainingColumn(compact=True),
            console=console,
            expand=True,
        )
        self.width = max((len(name(config)) for config in configs), default=0)
        self.bars: dict[int, TaskID] = {}
        self.began: dict[int, float] = {}
        self.done = [0.0] * len(configs)  # how much of each run there is
        self.ended = 0
        self.stopping = False
        self.all = self.progress.add_task("all runs".ljust(self.width), total=len(configs), where="")

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def __call__(self, at: int, event: Mapping[str, Any]) -> None:
        kind = event["kind"]
        if kind == "started":
            self.began.setdefault(at, time.monotonic())
            if at not in self.bars:  # a run whose process died is started again
                self.bars[at] = self.progress.add_task(self._name(at), total=1.0, where="starting")
        elif kind == "progress":
            self.done[at] = event["step"] / event["steps"]
            where = f"{losses(event['losses'])}  epoch {event['epoch'] + 1}/{event['epochs']}"
            self.progress.update(self.bars[at], completed=self.done[at], where=where)
        elif kind == "stopping":
            if not self.stopping:
                self.stopping = True
                self.console.print("Stopping: each run writes a checkpoint first. Ctrl-C again leaves at once.")
            if at in self.bars:
                self.progress.update(self.bars[at], where="stopping")
        elif kind == "note":
            self.console.print(f"  {self._name(at)}  {escape(event['text'])}")
        else:
            self._end(at, kind, event)
        self.progress.update(self.all, completed=sum(self.done), where=f"{self.ended}/{len(self.configs)} done")

    def _end(self, at: int, kind: str, event: Mapping[str, Any]) -> None:
        if at in self.bars:
            self.progress.remove_task(self.bars.pop(at))
        seconds = time.monotonic() - self.began.get(at, time.monotonic())
        if kind == "finished":
            self.ended += 1
            self.done[at] = 1.0
            self.console.print(f"[green]✓[/] {self._name(at)}  {seconds:.0f} s")
        elif kind == "failed":
            self.ended += 1
            self.done[at] = 1.0
            self.console.print(f"[red]✗[/] {self._name(at)}  {escape(event['text'])}")
        else:
            self.console.print(f"[yellow]‖[/] {self._name(at)}  stopped; it goes on from here next time")

    def _name(self, at: int) -> str:
        return escape(name(self.configs[at]).ljust(self.width))


def name(config: RunConfig) -> str:
    """A run in a few letters: its method, its task if it has one alone, its seed."""
    task = f" task {config.options['task']}" if config.method == "stl" else ""
    return f"{display_name(config.label)}{task}, seed {config.seed}"


def losses(values: Sequence[float]) -> str:
    """The losses of a step, or their range where there are many.

    >>> losses([0.5, 1.25]), losses([1.0, 2.0, 3.0, 0.125])
    ('loss 0.5 1.25', 'loss 0.125 … 3')
    """
    if any(math.isnan(value) for value in values):
        return "loss NaN"
    shown = [f"{value:.3g}" for value in (values if len(values) <= 3 else (min(values), max(values)))]
    return "loss " + (" " if len(values) <= 3 else " … ").join(shown)
