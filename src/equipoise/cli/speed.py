"""`equipoise speed`: the paper's figure on run time, LS = 1, with memory."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from equipoise.cli.common import Data, Device, Methods, Settings, all_settings, console, in_one_process, split
from equipoise.registry import methods as all_methods
from equipoise.report.collect import STL
from equipoise.report.tables import display_name
from equipoise.runs.checkpoint import write_whole
from equipoise.runs.compare import NOT_IN_ALL
from equipoise.runs.config import RunConfig, configure
from equipoise.runs.machine import environment
from equipoise.runs.speed import Speed, by_processor, measure


def speed(
    suite: Annotated[str, typer.Argument(help="A suite's name; see `equipoise list`.")] = "qm9-sample",
    methods: Methods = "all",
    rounds: Annotated[int, typer.Option(min=5, help="How often each takes turns with LS; 15 for a figure.")] = 5,
    settings: Settings = None,
    device: Device = "cpu",
    data: Data = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Of torch on the CPU; without it as torch has it.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The table as csv.")] = Path("runs/speed.csv"),
) -> None:
    """What a training step costs with each method, LS = 1: `equipoise speed celeba-pack --data pack.npz --device cuda`.

    Each method takes turns with LS in one process, so that what else the machine does cancels out; evaluation and
    loading are left out. Memory is of tensors on a CPU, of torch's allocator on a GPU. As it is, about five minutes of
    one core.
    """
    in_one_process("speed")
    if threads is not None:
        torch.set_num_threads(threads)
    names = split(methods)
    if names == ["all"]:
        names = [name for name in all_methods() if name not in (*NOT_IN_ALL, STL)]
    configs = [configure(suite, name, settings=all_settings(settings, device, data)) for name in names]
    found: list[Speed] = []
    try:
        _measure(configs, rounds, found)
    finally:  # a stop shows what was measured by then
        if found:
            _show(found, suite, device)
            out.parent.mkdir(parents=True, exist_ok=True)
            write_whole(out, _csv(found).encode())
            console.print(f"Table: {out.resolve()}")


def _measure(configs: Sequence[RunConfig], rounds: int, found: list[Speed]) -> None:
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeRemainingColumn(compact=True),
        console=console,
        transient=True,
        speed_estimate_period=600,
    ) as progress:
        bar = progress.add_task("", total=len(configs) * rounds)

        def on_round(done: int) -> None:
            progress.update(bar, completed=len(found) * rounds + done)

        measured = measure(configs, rounds, on_round)
        for config in configs:
            progress.update(bar, description=display_name(config.label))
            found.append(next(measured))
            on_round(0)


def _show(found: Sequence[Speed], suite: str, device: str) -> None:
    titles = ["time / LS", "quartiles", "ms a step", "MiB", "MiB / LS"]
    columns = [Column(title, justify="right") for title in titles]
    table = Table(Column("method", overflow="fold"), *columns, title=f"A training step on {suite}")
    for one in sorted(found, key=lambda speed: (speed.ratio is None, speed.ratio)):
        if one.ratio is None or one.quartiles is None or one.peak is None or not one.peak_of_ls:
            table.add_row(display_name(one.label), "—")
            continue
        low, high = one.quartiles
        table.add_row(
            display_name(one.label), f"{one.ratio:.2f}", f"{low:.2f} to {high:.2f}", f"{one.milliseconds:.1f}",
            f"{one.peak / 2**20:.1f}", f"{one.peak / one.peak_of_ls:.2f}",
        )  # fmt: skip
    console.print(table)
    for one in found:
        if one.problem is not None:
            console.print(f"{display_name(one.label)} cannot run here: {one.problem}")
    now = environment(device)
    clock = "processor time" if by_processor(device) else "time"
    where = now.get("gpu") or f"{now['threads']} of {now['cores']} cores"
    console.print(
        f"Medians of {clock} in turns with LS, on {where}, torch {now['torch']}. MiB: the most that the first two "
        "steps hold beyond the model and the data, gradients and optimizer included."
    )


def _csv(found: Sequence[Speed]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["method", "ratio", "lower_quartile", "upper_quartile", "ms_per_step", "peak_bytes", "peak_bytes_ls"]
    )
    for one in found:
        low, high = one.quartiles or (None, None)
        writer.writerow([one.label, one.ratio, low, high, one.milliseconds, one.peak, one.peak_of_ls])
    return text.getvalue()
