"""How many examples a long run takes, and its progress: a line of JSON a test in the file EQUIPOISE_FUZZ_LOG."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

EXAMPLES = int(os.environ.get("EQUIPOISE_FUZZ_EXAMPLES", "1500"))  # of each method in a long run


@contextmanager
def counted(kind: str, name: str) -> Iterator[Callable[[], None]]:
    """Counts the calls of what it gives, and writes them down when the block ends, well or not."""
    count, cpu, outcome = 0, time.process_time(), "failed"

    def tick() -> None:
        nonlocal count
        count += 1

    try:
        yield tick
        outcome = "passed"
    finally:
        line = {"kind": kind, "name": name, "examples": count, "seconds": time.process_time() - cpu, "outcome": outcome}
        file = os.environ.get("EQUIPOISE_FUZZ_LOG")
        if file:
            with Path(file).open("a") as log:
                log.write(json.dumps(line) + "\n")
