"""What of a run must not depend on what happened to it on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from equipoise.runs.store import read_run


def numbers(path: Path) -> tuple[Any, ...]:
    """Everything of a finished run that does not depend on the clock: rows, steps, result."""
    run = read_run(path)
    assert run.result is not None
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in run.metrics]
    return rows, run.steps, {k: v for k, v in run.result.items() if "seconds" not in k and k != "peak_memory"}
