"""What `equipoise.diagnose` found of a run, where its folder holds a `diagnosis.json` (`Diagnosis.to_dict()`)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.report.charts import Heat
from equipoise.report.collect import Comparison
from equipoise.report.tables import display_name
from equipoise.runs.store import DIAGNOSIS

_DRAWN = 12  # tasks up to which the cosines are drawn: the section on conflict has eight of more
_COLUMNS = {"losses": "loss", "gradient_norms": "gradient", "weights": "weight", "pull": "pull"}


@dataclass(frozen=True)
class Diagnosed:
    """One run's diagnosis; `problem` says why there is none though there is a file."""

    name: str
    problem: str = ""
    recommendation: str = ""
    findings: Sequence[str] = ()
    head: Sequence[str] = ()
    tasks: Sequence[tuple[str, Sequence[float]]] = ()
    heat: Heat | None = None


def diagnoses(comparison: Comparison) -> list[Diagnosed]:
    """One of each row: of its first run that has one."""
    found = []
    for row in comparison.rows:
        files = (run.path / DIAGNOSIS for entry in row.entries for run in entry.runs)
        path = next((path for path in files if path.exists()), None)
        if path is not None:
            found.append(_read(display_name(row.label), path))
    return found


def _read(name: str, path: Path) -> Diagnosed:
    """The file is somebody else's: whatever it holds, the page stays whole."""
    try:
        return _of(name, json.loads(path.read_text("utf-8")))
    except (ValueError, TypeError, KeyError, AttributeError):
        return Diagnosed(name, problem=f"{path} is no diagnosis that this version can read.")


def _of(name: str, content: Mapping[str, Any]) -> Diagnosed:
    tasks = [str(task) for task in content["tasks"]]
    kept = {title: _numbers(content[key]) for key, title in _COLUMNS.items() if content.get(key) is not None}
    heat = None
    if content.get("cosines") is not None and 1 < len(tasks) <= _DRAWN:
        heat = Heat(name, tasks, [_numbers(row) for row in content["cosines"]])
        if any(len(row) != len(tasks) for row in heat.cosine) or len(heat.cosine) != len(tasks):
            raise ValueError
    return Diagnosed(
        name,
        recommendation=str(content["recommendation"]),
        findings=[str(finding["text"]) for finding in content["findings"]],
        head=list(kept),
        tasks=[(task, values) for task, *values in zip(tasks, *kept.values(), strict=True)],
        heat=heat,
    )


def _numbers(values: Sequence[Any]) -> list[float]:
    return [math.nan if value is None else float(value) for value in values]
