"""Training a fleet of runs to the end: schedules, selection, checkpoints, and a folder for each run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from equipoise.runs.checkpoint import read_checkpoint, write_checkpoint
from equipoise.runs.config import RunConfig
from equipoise.runs.machine import environment, peak_memory, synchronize
from equipoise.runs.measure import selection_score
from equipoise.runs.store import open_run

from .fleet import Fleet, Speed
from .fleet_data import FleetData


class _Run:
    """What is kept of one run besides the fleet's tensors: its rates, its table, its best epoch."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        places = [torch.zeros(1, requires_grad=True) for _ in range(2)]
        self.rates = torch.optim.SGD(
            [{"params": [places[0]], "lr": config.lr}, {"params": [places[1]], "lr": config.balancer_lr}]
        )
        options = {name: value for name, value in config.schedule.items() if name != "kind"}
        if config.schedule and config.schedule["kind"] != "plateau":
            raise ValueError(f"`schedule` must be 'plateau' or none; found {config.schedule['kind']!r}.")
        self.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(self.rates, **options) if options else None
        self.table: list[dict[str, Any]] = []
        self.best: dict[str, Any] | None = None

    @property
    def lr(self) -> tuple[float, float]:
        model, balancer = (float(group["lr"]) for group in self.rates.param_groups)
        return model, balancer

    @property
    def task(self) -> int | None:
        """The task a single-task run is selected by."""
        return int(self.config.options.get("task", 0)) if self.config.method == "stl" else None

    def end_epoch(self, score: float, row: dict[str, Any], validation: Mapping[str, float], test: Any) -> None:
        self.table.append(row)
        better = self.best is None or score < self.best["score"] or math.isnan(self.best["score"])
        if better and not (self.best is not None and math.isnan(score)):
            self.best = {"score": score, "epoch": row["epoch"], "validation": dict(validation), "test": dict(test)}
        if self.plateau is not None:
            self.plateau.step(score)

    def state(self) -> dict[str, Any]:
        plateau = None if self.plateau is None else self.plateau.state_dict()
        return {"plateau": plateau, "lr": list(self.lr), "table": self.table, "best": self.best}

    def load_state(self, state: Mapping[str, Any]) -> None:
        if self.plateau is not None:
            self.plateau.load_state_dict(state["plateau"])
        for group, lr in zip(self.rates.param_groups, state["lr"], strict=True):
            group["lr"] = lr
        self.table, self.best = state["table"], state["best"]


class FleetTraining:
    """R runs on their way from the first epoch to the last, resumable at every epoch to the same numbers.

    checkpoint: the file to go on from, and to write to.
    """

    def __init__(
        self,
        configs: Sequence[RunConfig],
        checkpoint: Path,
        *,
        device: torch.device | str = "cpu",
        speed: Speed | None = None,
        data: FleetData | Path | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.fleet = Fleet(configs, device, speed, data)
        self.runs = [_Run(config) for config in configs]
        self.checkpoint = checkpoint
        self.say = say
        self.epoch, self.seconds = 0, 0.0
        self.tables = [config.to_table() for config in configs]
        if checkpoint.exists():
            self._load()

    @property
    def finished(self) -> bool:
        return self.epoch == self.runs[0].config.epochs

    def run(self, seconds: float = math.inf, save_every: float = 60.0) -> bool:
        """Train until the end, or for about so many seconds; whether the runs are finished. Saves before it returns.

        save_every: seconds between checkpoints, which are written at the ends of epochs.
        """
        began = saved = time.monotonic()
        slowest = 0.0
        with ThreadPoolExecutor(1) as ahead:
            rows = ahead.submit(self.fleet.epoch_rows, self.epoch)
            while not self.finished:
                start = time.monotonic()
                if start - began + slowest > seconds:
                    break
                given = rows.result()
                rows = ahead.submit(self.fleet.epoch_rows, self.epoch + 1)
                self._epoch(given)
                slowest = max(slowest, time.monotonic() - start)
                if time.monotonic() - saved > save_every:
                    self._save()
                    saved = time.monotonic()
        self._save()
        return self.finished

    def write_folders(self, root: Path) -> None:
        """Each run's folder, as `equipoise run` would have left it: configuration, table, and the result if done."""
        since = environment(str(self.fleet.device))
        for run in self.runs:
            with open_run(root / run.config.folder, force=True, say=self.say) as folder:
                folder.start(run.config, since)
                folder.append("metrics.csv", run.table)
                if self.finished:
                    folder.finish(self._result(run))

    def _epoch(self, rows: Any) -> None:
        fleet, began = self.fleet, time.monotonic()
        rates = [run.lr for run in self.runs]
        fleet.set_rates(rates)
        fleet.train_epoch(rows)
        synchronize(fleet.device)
        self.seconds += time.monotonic() - began
        validation, test = fleet.evaluate("validation"), fleet.evaluate("test")
        losses = (fleet.losses_sum / fleet.steps).tolist()
        weights = (fleet.weights_sum / fleet.steps).tolist()
        scores = []
        for r, run in enumerate(self.runs):
            score = selection_score(fleet.suite(r), validation[r], run.task)
            assert score is not None  # QM9 has published single-task numbers
            scores.append(score)
            row = {"epoch": self.epoch, "seconds": self.seconds, "lr": rates[r][0]}
            row.update((f"loss:{task}", value) for task, value in zip(fleet.tasks, losses[r], strict=True))
            row.update((f"weight:{task}", value) for task, value in zip(fleet.tasks, weights[r], strict=True))
            row["validation:delta_m"] = score
            row.update((f"validation:{task}", value) for task, value in validation[r].items())
            row.update((f"test:{task}", value) for task, value in test[r].items())
            run.end_epoch(score, row, validation[r], test[r])
        self.epoch += 1
        per_step = (time.monotonic() - began) / fleet.steps
        self.say(f"epoch {self.epoch} {1e3 * per_step:.2f} ms {' '.join(f'{score:.1f}' for score in scores)}")

    def _result(self, run: _Run) -> dict[str, Any]:
        assert run.best is not None
        steps = self.epoch * self.fleet.steps
        return {
            "metrics": run.best["test"],
            "validation": run.best["validation"],
            "best_epoch": run.best["epoch"],
            "steps": steps,
            "seconds": self.seconds,
            "seconds_per_step": self.seconds / steps,
            "runs_in_step": len(self.runs),
            "precision": self.fleet.speed.precision,
            "peak_memory": peak_memory(self.fleet.device),
            "parameters": sum(p.numel() for p in self.fleet.suite(0).model().parameters()),
            "conflict": None,
        }

    def _save(self) -> None:
        self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        tree = {
            "configs": self.tables,
            "speed": list(self.fleet.speed),
            "epoch": self.epoch,
            "seconds": self.seconds,
            "fleet": self.fleet.state(),
            "runs": [run.state() for run in self.runs],
        }
        write_checkpoint(self.checkpoint, tree)

    def _load(self) -> None:
        tree = read_checkpoint(self.checkpoint)
        if tree["configs"] != self.tables or tree["speed"] != list(self.fleet.speed):
            raise ValueError(
                f"{self.checkpoint} is of other runs, or of these computed otherwise: choose another file."
            )
        self.epoch, self.seconds = tree["epoch"], tree["seconds"]
        self.fleet.load_state(tree["fleet"])
        for run, state in zip(self.runs, tree["runs"], strict=True):
            run.load_state(state)
        self.say(f"goes on after epoch {self.epoch}")
