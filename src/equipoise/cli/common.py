"""What the commands share: their options, how runs are carried out, what is shown of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from equipoise.cli.live import Live
from equipoise.report.collect import Comparison, collect
from equipoise.report.render import for_terminal
from equipoise.report.tables import make_table
from equipoise.runs.config import RunConfig, setting
from equipoise.runs.engine import Outcome, run_local
from equipoise.runs.ranks import launched, onlooking
from equipoise.runs.trackers import check_tracker

console = Console(highlight=False)
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

Out = Annotated[Path, typer.Option("--out", "-o", help="Folder of the runs.", show_default=True)]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="epochs=20, lr=3e-4, schedule=none, an option of the method, or suite.OPTION; may be given again.",
    ),
]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, help="Runs side by side, each with its share of threads.")]
Force = Annotated[bool, typer.Option("--force", help="Start finished and unfinished runs again from nothing.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N; with several jobs, one GPU each in turns.")]
Data = Annotated[Path | None, typer.Option(help="Where the suite's data are; see `equipoise data`.")]
Seeds = Annotated[str, typer.Option(help="Seeds with commas between.")]
Methods = Annotated[str, typer.Option("--methods", "-m", help="all, or names with commas between.")]
Track = Annotated[str | None, typer.Option(help="Tell tensorboard, wandb or mlflow too what the runs' tables hold.")]
Engine = Annotated[Literal["local", "ray"], typer.Option(help="Where runs go: this machine, or a Ray cluster.")]
Address = Annotated[str | None, typer.Option(help="Of a running Ray cluster; without it one is started here.")]


@dataclass(frozen=True)
class Work:
    """How the runs of a command are carried out; refused before anything is trained when that cannot be."""

    out: Path
    jobs: int = 1
    force: bool = False
    track: str | None = None
    engine: Literal["local", "ray"] = "local"
    address: str | None = None

    def __post_init__(self) -> None:
        check_tracker(self.track)
        if self.engine == "ray":
            in_one_process("--engine ray")
        if self.engine == "ray" and find_spec("ray") is None:
            raise ValueError("--engine ray needs the package ray: pip install 'equipoise[ray]'")
        if self.address is not None and self.engine != "ray":
            raise ValueError(f"--address belongs to --engine ray; found {self.address!r} with --engine local.")

    def carry_out(self, configs: Sequence[RunConfig]) -> list[Outcome]:
        """Run everything with live progress; a stop ends the command, with what to type to go on."""
        with Live(configs, console) as live:
            if self.engine == "ray":
                from equipoise.runs.engine_ray import run_ray

                outcomes = run_ray(
                    configs, self.out, jobs=self.jobs, watch=live, force=self.force, track=self.track,
                    address=self.address,
                )  # fmt: skip
            else:
                outcomes = run_local(
                    configs, self.out, jobs=self.jobs, watch=live, force=self.force, track=self.track
                )  # fmt: skip
        if any(outcome.stopped for outcome in outcomes):
            done = sum(outcome.result is not None for outcome in outcomes)
            console.print(f"Stopped: {done} of {len(outcomes)} runs are done. The same command goes on from here.")
            raise typer.Exit(130)
        if onlooking():
            raise typer.Exit  # under torchrun the first rank shows what came out
        return outcomes


def in_one_process(what: str) -> None:
    """Refuse to be one of several ranks, each of which would do the same work and write the same files."""
    if launched():
        raise ValueError(
            f"{what} works in one process, and torchrun started {os.environ['WORLD_SIZE']}: give the command without "
            "torchrun. `run`, `compare`, `demo` and a sweep of given values train on all ranks."
        )


def show(*folders: Path, published: bool = False, html: Path | None = None) -> list[Comparison]:
    """The tables of everything finished below the folders, and the page."""
    comparisons = collect(folders)
    for comparison in comparisons:
        console.print(for_terminal(make_table(comparison, published=published), console.width))
    if html is not None:
        write_report(html, comparisons, published=published)
    return comparisons


def write_report(path: Path, comparisons: Sequence[Comparison], *, published: bool = False) -> None:
    """The html page, and where it is."""
    from equipoise.report.page import write_page

    write_page(path, comparisons, published=published)
    console.print(f"Report: {path.resolve()}")


def end(outcomes: Sequence[Outcome]) -> None:
    """A command with a failed run says so and ends with 1."""
    failed = sum(outcome.problem is not None for outcome in outcomes)
    if failed:
        console.print(f"[red]{failed} of {len(outcomes)} runs failed[/]: the reasons are above and in their folders.")
        raise typer.Exit(1)


def folders(out: Path, configs: Sequence[RunConfig]) -> list[Path]:
    """Where the runs are, each once."""
    return list(dict.fromkeys(out / config.folder for config in configs))


def all_settings(texts: Sequence[str] | None, device: str | None, data: Path | None) -> dict[str, Any]:
    """The settings of a command's options; those of `--set` win."""
    named = {"device": device, "data": None if data is None else str(data)}
    return {
        **{name: value for name, value in named.items() if value is not None},
        **dict(setting(text) for text in texts or []),
    }


def split(text: str) -> list[str]:
    """Names with commas between; commas inside brackets belong to a value.

    >>> split("ls:weights=[1,2],ldc")
    ['ls:weights=[1,2]', 'ldc']
    """
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def whole_numbers(text: str, option: str) -> list[int]:
    """Whole numbers with commas between.

    >>> whole_numbers("0,1,2", "--seeds")
    [0, 1, 2]
    """
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} must be whole numbers with commas between; found {text!r}.") from None


def numbers(text: str, option: str) -> list[float]:
    """Numbers with commas between.

    >>> numbers("0.01, 1e-3", "--grid")
    [0.01, 0.001]
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} must be numbers with commas between; found {text!r}.") from None
