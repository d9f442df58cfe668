"""The hook for TensorBoard, Weights & Biases and MLflow: each is told what the run's tables hold."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from equipoise.losses import nearest
from equipoise.runs.checkpoint import write_whole
from equipoise.runs.config import RunConfig


class Tracker(Protocol):
    """All that a run asks of an experiment tracker."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def check_tracker(name: str | None) -> None:
    """Refuse a tracker that is unknown or not installed, before anything is trained.

    >>> check_tracker("tensorbord")
    Traceback (most recent call last):
    ValueError: there is no tracker 'tensorbord'; did you mean 'tensorboard'?
    """
    if name is None:
        return
    if name not in _TRACKERS:
        raise ValueError(f"there is no tracker {name!r}; {nearest(name, list(_TRACKERS))}")
    if find_spec(name) is None:
        raise ValueError(f"tracking with {name} needs its package: pip install {name}")


@contextmanager
def tracking(name: str | None, config: RunConfig, folder: Path, position: int) -> Iterator[Tracker | None]:
    """The tracker for a run that has done `position` steps, closed whatever happens; None for None."""
    check_tracker(name)
    if name is None:
        yield None
        return
    tracker = _TRACKERS[name](config, folder, position)
    try:
        yield tracker
    finally:
        tracker.close()


def of_step(row: Mapping[str, Any]) -> dict[str, float]:
    """A row of steps.csv under the names trackers group by.

    >>> of_step({"step": 3, "loss:mu": 0.5})
    {'loss/mu': 0.5}
    """
    return {name.replace(":", "/"): float(value) for name, value in row.items() if name != "step" and _finite(value)}


def of_epoch(row: Mapping[str, Any]) -> dict[str, float]:
    """What a row of metrics.csv has that steps.csv has not: the evaluation and the rate.

    >>> of_epoch({"epoch": 0, "lr": 0.1, "loss:mu": 0.5, "validation:mu": "", "test:mu": 2.0})
    {'lr': 0.1, 'test/mu': 2.0}
    """
    told = ("loss/", "weight/")
    return {k: value for k, value in of_step(row).items() if k != "epoch" and not k.startswith(told)}


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


class _TensorBoard:
    """Event files in the run's own folder: `tensorboard --logdir runs`."""

    def __init__(self, config: RunConfig, folder: Path, position: int) -> None:  # noqa: ARG002
        from torch.utils.tensorboard.writer import SummaryWriter

        # What was told beyond the checkpoint we go on from is dropped. The epoch that ended there was told at its step.
        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=position + 1 if position else 0)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()  # a kill must not take what a checkpoint has kept

    def close(self) -> None:
        self.writer.close()


class _WandB:
    """A run of the project "equipoise" whose id is kept in the run's folder, so that a resumed run goes on there."""

    def __init__(self, config: RunConfig, folder: Path, position: int) -> None:  # noqa: ARG002
        import wandb

        self.run = wandb.init(
            project="equipoise", name=config.folder, id=_kept_id(folder, "wandb"), resume="allow", dir=str(folder),
            config=config.to_table(),
        )  # fmt: skip
        _keep_id(folder, "wandb", self.run.id)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def close(self) -> None:
        self.run.finish()


class _MLflow:
    """A run of the experiment "equipoise", found again by the id kept in the run's folder."""

    def __init__(self, config: RunConfig, folder: Path, position: int) -> None:  # noqa: ARG002
        import mlflow

        self.mlflow = mlflow
        mlflow.set_experiment("equipoise")
        known = _kept_id(folder, "mlflow")
        run = mlflow.start_run(run_id=known) if known else mlflow.start_run(run_name=config.folder)
        _keep_id(folder, "mlflow", run.info.run_id)
        if not known:
            mlflow.log_params({name: str(value) for name, value in config.to_table().items()})

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.mlflow.log_metrics(dict(values), step=step)

    def close(self) -> None:
        self.mlflow.end_run()


_TRACKERS: dict[str, Callable[[RunConfig, Path, int], Tracker]] = {
    "tensorboard": _TensorBoard,
    "wandb": _WandB,
    "mlflow": _MLflow,
}


def _kept_id(folder: Path, name: str) -> str | None:
    file = folder / f"{name}.id"
    if not file.exists():
        return None
    found = file.read_text("utf-8", "replace").strip()
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,128}", found):
        raise ValueError(f"{file} must hold a run's id, of letters, digits, - and _; found {found[:40]!r}.")
    return found


def _keep_id(folder: Path, name: str, value: str) -> None:
    write_whole(folder / f"{name}.id", value.encode())
