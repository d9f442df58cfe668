"""Timing that survives a busy machine: contenders take turns with the base in one run, and only ratios are kept."""

from __future__ import annotations

import gc
import importlib.metadata
import platform
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass
class Timing:
    """One contender: its time over the base's in each round, and what a call took."""

    name: str
    ratios: list[float]
    seconds: list[float]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def spread(self) -> tuple[float, float]:
        """The quartiles of the ratio."""
        first, _, third = statistics.quantiles(self.ratios, n=4)
        return first, third

    @property
    def milliseconds(self) -> float:
        return statistics.median(self.seconds) * 1e3

    def __str__(self) -> str:
        low, high = self.spread
        return f"{self.ratio:.3f} ({low:.3f} to {high:.3f})"


def compare(
    base: Callable[[], object],
    contenders: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    warmup: int = 3,
    repeat: int = 1,
    seed: int = 0,
    on_round: Callable[[int], object] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Timing]:
    """Time each contender between two runs of the base (base, ours, ours, base), in a new order each round.

    The ratio of a round is ours + ours over base + base, so a machine that drifts slower or faster drifts out.
    `repeat` calls are timed together. `time.process_time` as `clock` counts this process alone, which helps where
    others share the cores and is wrong where a device computes.
    """
    timings = {name: Timing(name, [], []) for name in contenders}
    order = list(contenders)
    shuffle = random.Random(seed).shuffle
    for call in (base, *contenders.values()):
        for _ in range(warmup):
            call()
    gc.collect()
    gc.disable()
    try:
        for round_number in range(rounds):
            shuffle(order)
            for name in order:
                ours = contenders[name]
                times = [_seconds(call, repeat, clock) for call in (base, ours, ours, base)]
                timings[name].ratios.append((times[1] + times[2]) / (times[0] + times[3]))
                timings[name].seconds.append((times[1] + times[2]) / 2 / repeat)
            gc.collect()
            if on_round is not None:
                on_round(round_number + 1)
    finally:
        gc.enable()
    return list(timings.values())


def _seconds(call: Callable[[], object], repeat: int, clock: Callable[[], float] = time.perf_counter) -> float:
    synchronise()
    start = clock()
    for _ in range(repeat):
        call()
    synchronise()
    return clock() - start


def synchronise() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


WARM_CAPTURE = 3  # calls of `captured` before the one that is recorded


def captured(call: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """The call as a CUDA graph, which `.replay()` runs again."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_CAPTURE):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def microseconds(call: Callable[[], object], repeat: int = 50, rounds: int = 9) -> float:
    """The time of one call in the round that was disturbed least."""
    call()
    return min(_seconds(call, repeat) / repeat for _ in range(rounds)) * 1e6


class _Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


def operators(call: Callable[[], object]) -> Counter[str]:
    """How often each operator runs in a call, backward included; views and detaches count."""
    with _Operators() as mode:
        call()
    return mode.counts


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A markdown table, numbers to the right."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = [
        "| "
        + " | ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        + " |"
        for row in cells
    ]
    rule = "|" + "|".join("-" * (w + 1) + (":" if i else "-") for i, w in enumerate(widths)) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def environment(*packages: str) -> str:
    """One line: the versions and the machine the numbers belong to."""
    parts = [f"{name} {importlib.metadata.version(name)}" for name in ("torch", *packages)]
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else _processor()
    threads = torch.get_num_threads()
    return f"{', '.join(parts)}, Python {platform.python_version()}; {device}, {threads} thread{'s'[: threads > 1]}."


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def write(path: str | Path, text: str) -> None:
    """Write a report, making its folder."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.rstrip("\n") + "\n")
