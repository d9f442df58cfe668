"""The loop of a run: what changes while it trains, what is written down on the way, how it goes on after a stop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from equipoise.diagnostics.diagnosis import diagnose
from equipoise.gradient.base import GradientBalancer
from equipoise.ldc.double_loop import DoubleLoopLDC
from equipoise.registry import make
from equipoise.runs.config import RunConfig
from equipoise.runs.double_loop import double_loop_backward
from equipoise.runs.machine import peak_memory, reset_peak_memory, synchronize
from equipoise.runs.measure import conflict, selection_score
from equipoise.runs.ranks import Ranks
from equipoise.runs.store import RunFolder
from equipoise.runs.trackers import Tracker, of_epoch, of_step
from equipoise.suites import suite_class
from equipoise.weighting.stl import STL

Notify: TypeAlias = Callable[[Mapping[str, Any]], None]

STEP_ROWS = 1000  # about how many rows steps.csv gets
ROUTER_NORMS = ("router_gradient", "inner_router_gradient")  # what Algorithm 1 leaves in a balancer's status
_REPORT_SECONDS = 0.25


class Stopped(Exception):
    """The run was asked to stop; its checkpoint holds everything done so far."""


class Training:
    """Everything of a run that changes while it trains."""

    def __init__(self, config: RunConfig, folder: RunFolder, notify: Notify, ranks: Ranks) -> None:
        self.config, self.folder, self.notify, self.ranks = config, folder, notify, ranks
        data = None if config.data is None else Path(config.data)
        self.suite = suite_class(config.suite)(
            seed=config.seed, device=config.device, data=data, batch_size=config.batch_size, **config.suite_options
        )
        self.model = self.suite.model()
        self.trunk = list(self.suite.shared_parameters(self.model))
        self.losses = ranks.losses(self.suite, self.model)
        self.balancer = make(config.method, tasks=self.suite.tasks, **config.options).to(self.suite.device)
        groups = [{"params": list(self.model.parameters())}, *self.balancer.param_groups(lr=config.balancer_lr)]
        if isinstance(self.balancer, DoubleLoopLDC) and ranks.size > 1:
            raise ValueError("ldc-double takes no shares of unequal size: train it in one process, without torchrun.")
        self.optimizer = torch.optim.Adam(groups, lr=config.lr, fused=True)
        self.schedule = self._schedule()
        self.steps_per_epoch = len(self.suite.batches(0))
        self.stride = max(1, config.epochs * self.steps_per_epoch // STEP_ROWS)
        self.task = self.balancer.task if isinstance(self.balancer, STL) else None
        self.epoch, self.batch, self.seconds = 0, 0, 0.0  # the position: the epoch, and batches done in it
        self.best: dict[str, Any] | None = None  # score, epoch and test row of the epoch chosen so far
        self.last_rows: list[dict[str, float]] = []  # test rows of the last ten epochs
        self.loss_sum = torch.zeros(len(self.suite.tasks), dtype=torch.float64, device=self.suite.device)
        self.weight_sum = torch.zeros_like(self.loss_sum)
        self.told = 0.0  # when progress was last told of
        self.pending: list[dict[str, float]] = []  # rows of steps.csv not written yet
        self.tracker: Tracker | None = None

    @property
    def position(self) -> int:
        """Steps done."""
        return self.epoch * self.steps_per_epoch + self.batch

    # The loop.

    def run(self, stop: Callable[[], bool], checkpoint_seconds: float) -> Mapping[str, Any]:
        """Train what is left and finish the run."""
        reset_peak_memory(self.suite.device)
        while self.epoch < self.config.epochs:
            self._train_epoch(stop, checkpoint_seconds)
            self._end_epoch()
        cosines, found = self._examined()  # on every rank: their models may share statistics
        return self.ranks.from_first(lambda: self._finish(cosines, found))

    def _train_epoch(self, stop: Callable[[], bool], checkpoint_seconds: float) -> None:
        self.model.train()
        if self.batch == 0:
            self.balancer.start_epoch()
        began = saved = time.monotonic()
        for batch in islice(self.suite.batches(self.epoch), self.batch, None):
            losses = self.step(batch)
            if self.position % self.stride == 0:
                self._log_step(self.position, losses)
            self.batch += 1
            now = time.monotonic()
            if now - self.told > _REPORT_SECONDS:
                self.told = now
                self._tell(losses, self.seconds + now - began)
            asked, due = self.ranks.any(stop(), now - saved > checkpoint_seconds)
            if asked or due:
                self.seconds, began, saved = self.seconds + now - began, now, now
                self._save()
            if asked:
                raise Stopped(f"{self.folder.path} stopped at epoch {self.epoch + 1}, batch {self.batch}.")
        synchronize(self.suite.device)
        self.seconds += time.monotonic() - began

    def step(self, batch: Any) -> Tensor:
        """One training step; returns the losses."""
        self.optimizer.zero_grad()
        counts = None
        if isinstance(self.balancer, DoubleLoopLDC):
            losses = double_loop_backward(self.losses, self.balancer, batch)
        else:
            batch, counts = self.ranks.share(self.suite, batch)
            losses, features = self.losses(batch)
            gradients = isinstance(self.balancer, GradientBalancer)  # others that need `shared` read features
            shared = self.trunk if gradients and self.config.shared == "parameters" else features
            self.balancer(losses, shared if self.balancer.needs_shared else None, counts=counts).backward()
        self.optimizer.step()
        if self.balancer.needs_after_step:
            with torch.no_grad():
                self.balancer.after_step(self.losses(batch)[0], counts=counts)
        values = losses.detach() if isinstance(losses, Tensor) else torch.stack([loss.detach() for loss in losses])
        values = self.ranks.mean(values, counts)
        self.loss_sum += values
        self.weight_sum += self.balancer.weights
        return values

    def _end_epoch(self) -> None:
        lr = self.optimizer.param_groups[0]["lr"]
        best_validation = self.suite.protocol.report == "best-validation"
        validation = self._evaluate("validation") if best_validation or self._plateau() else {}
        score = selection_score(self.suite, validation, self.task) if validation else None
        better = best_validation and self._is_better(score)
        test = self._evaluate("test") if better or not best_validation else {}
        if better:
            self.best = {"score": score, "epoch": self.epoch, "test": test, "validation": validation}
        if not best_validation:
            self.last_rows = [*self.last_rows[-9:], test]
        if isinstance(self.schedule, torch.optim.lr_scheduler.ReduceLROnPlateau):
            assert score is not None  # _schedule() saw to it
            self.schedule.step(score)
        elif self.schedule is not None:
            self.schedule.step()
        row = self._epoch_row(lr, score, validation, test)
        self.folder.append("metrics.csv", [row])
        self.epoch, self.batch = self.epoch + 1, 0
        self.loss_sum.zero_()
        self.weight_sum.zero_()
        self._save()
        if self.tracker is not None:
            self.tracker.log(self.position, of_epoch(row))

    def _is_better(self, score: float | None) -> bool:
        """Without a score the last epoch counts; NaN is better than nothing only."""
        if self.best is None or score is None:
            return True
        return score < self.best["score"] or (math.isnan(self.best["score"]) and not math.isnan(score))

    def _evaluate(self, part: Any) -> dict[str, float]:
        self.model.eval()
        with torch.no_grad():
            return self.ranks.from_first(lambda: self.suite.evaluate(self.model, part))

    # What is written down.

    def _epoch_row(
        self, lr: float, score: float | None, validation: Mapping[str, float], test: Mapping[str, float]
    ) -> dict[str, Any]:
        losses = (self.loss_sum / self.steps_per_epoch).tolist()
        weights = (self.weight_sum / self.steps_per_epoch).tolist()
        names = [metric.name for metric in self.suite.metrics]
        return {
            "epoch": self.epoch,
            "seconds": self.seconds,
            "lr": lr,
            **{f"loss:{task}": value for task, value in zip(self.suite.tasks, losses, strict=True)},
            **{f"weight:{task}": value for task, value in zip(self.suite.tasks, weights, strict=True)},
            "validation:delta_m": "" if score is None else score,
            **{f"validation:{name}": validation.get(name, "") for name in names},
            **{f"test:{name}": test.get(name, "") for name in names},
        }

    def _log_step(self, position: int, losses: Tensor) -> None:
        row: dict[str, float] = {"step": position}
        row.update((name, float(self.balancer.status[name])) for name in ROUTER_NORMS if name in self.balancer.status)
        row.update((f"loss:{task}", v) for task, v in zip(self.suite.tasks, losses.tolist(), strict=True))
        row.update(
            (f"weight:{task}", v) for task, v in zip(self.suite.tasks, self.balancer.weights.tolist(), strict=True)
        )
        self.pending.append(row)

    def _tell(self, losses: Tensor, seconds: float) -> None:
        self.notify({
            "kind": "progress", "epoch": self.epoch, "epochs": self.config.epochs, "step": self.position,
            "steps": self.config.epochs * self.steps_per_epoch, "seconds": seconds, "losses": losses.tolist(),
        })  # fmt: skip

    def _finish(self, cosines: dict[str, Any] | None, found: dict[str, Any] | None) -> dict[str, Any]:
        result = self._result(cosines)
        if found is not None:
            self.folder.write_diagnosis(found)
        self.folder.finish(result)
        return result

    def _result(self, cosines: dict[str, Any] | None) -> dict[str, Any]:
        if self.suite.protocol.report == "last-ten":
            names = self.last_rows[0]
            metrics = {name: sum(row[name] for row in self.last_rows) / len(self.last_rows) for name in names}
            chosen = {"metrics": metrics, "epochs_averaged": len(self.last_rows)}
        else:
            assert self.best is not None
            chosen = {
                "metrics": self.best["test"], "validation": self.best["validation"], "best_epoch": self.best["epoch"],
            }  # fmt: skip
        steps = self.config.epochs * self.steps_per_epoch
        return {
            **chosen,
            "steps": steps,
            "seconds": self.seconds,
            "seconds_per_step": self.seconds / steps,
            "peak_memory": peak_memory(self.suite.device),
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "conflict": cosines,
        }

    def _examined(self) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """Cosines on the trunk, and a diagnosis where the suite has its gradients taken.

        Of the trained model on the first batch of the first epoch; nothing for a single task.
        """
        if self.task is not None:
            return None, None
        self.model.train()
        losses, features = self.suite.losses(self.model, next(iter(self.suite.batches(0))))
        cosines = conflict(self.suite, losses, self.trunk, self.config.seed)
        shared = self.trunk if self.suite.protocol.shared == "parameters" else features
        named = dict(zip(self.suite.tasks, losses, strict=True))
        return cosines, diagnose(named, shared, balancer=self.balancer, costs=False).to_dict()

    # Stopping and going on.

    def _save(self) -> None:
        rows, self.pending = self.pending, []
        self.folder.append("steps.csv", rows)
        self.folder.save(self.state())
        if self.tracker is not None:  # after the checkpoint: what is tracked is never trained again
            for row in rows:
                self.tracker.log(int(row["step"]), of_step(row))

    def state(self) -> dict[str, Any]:
        """Everything the rest of the run depends on."""
        cuda = self.suite.device.type == "cuda"
        return {
            "model": self.model.state_dict(),
            "balancer": self.balancer.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
            "position": {"epoch": self.epoch, "batch": self.batch, "seconds": self.seconds},
            "best": self.best,
            "last_rows": self.last_rows,
            "loss_sum": self.loss_sum,
            "weight_sum": self.weight_sum,
            "random": self.ranks.stack(torch.get_rng_state()),
            "random_cuda": self.ranks.stack(torch.cuda.get_rng_state(self.suite.device)) if cuda else None,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go back to what `state` gave."""
        self.model.load_state_dict(state["model"])
        self.balancer.load_state_dict(state["balancer"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.schedule is not None:
            self.schedule.load_state_dict(state["schedule"])
        position = state["position"]
        self.epoch, self.batch, self.seconds = position["epoch"], position["batch"], position["seconds"]
        self.best, self.last_rows = state["best"], state["last_rows"]
        self.loss_sum.copy_(state["loss_sum"])
        self.weight_sum.copy_(state["weight_sum"])
        if (drawn := self.ranks.row(state["random"])) is not None:
            torch.set_rng_state(drawn)
        if state["random_cuda"] is not None and (drawn := self.ranks.row(state["random_cuda"])) is not None:
            torch.cuda.set_rng_state(drawn, self.suite.device)

    def _plateau(self) -> bool:
        return self.config.schedule.get("kind") == "plateau"

    def _schedule(self) -> torch.optim.lr_scheduler.LRScheduler | None:
        if not self.config.schedule:
            return None
        options = {name: value for name, value in self.config.schedule.items() if name != "kind"}
        if self._plateau():
            if not self.suite.stl:
                raise ValueError(f"the plateau schedule of {self.suite.name!r} needs single-task numbers in `stl`.")
            return torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer, **options)
        return torch.optim.lr_scheduler.StepLR(self.optimizer, **options)
