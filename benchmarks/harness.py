"""What the benchmarks share beside the timing of `equipoise speed`: CUDA graphs, operator counts, tables."""

from __future__ import annotations

import importlib.metadata
import platform
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from equipoise.runs.timing import Timing, compare, seconds_of, synchronise

__all__ = ["Timing", "captured", "compare", "environment", "microseconds", "operators", "synchronise", "table", "write"]


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
    return min(seconds_of(call, repeat) / repeat for _ in range(rounds)) * 1e6


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
