"""A callback for Lightning: starts the balancer's epochs, logs what it does, lets FAMO look again."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from equipoise.balancer import Balancer
from equipoise.integrations.watch import Watch, find_balancer, look_again

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback
    except ImportError as error:
        raise ImportError(
            "equipoise.integrations.lightning needs the package `lightning`: pip install 'equipoise[lightning]'."
        ) from error


class BalancerCallback(Callback):  # type: ignore[misc]  # untyped where the library is not installed
    """For a LightningModule that holds a balancer and optimises by itself (automatic optimisation).

        class Module(L.LightningModule):
            def __init__(self):
                ...
                self.balancer = eq.LDC(tasks=("seg", "depth"), shared=self.trunk)

            def training_step(self, batch, batch_idx):
                return self.balancer(self.losses(batch))

        L.Trainer(callbacks=[BalancerCallback()])

    It calls `start_epoch()` once an epoch, also where a run is continued in the middle of one. Every
    `log_every_n_steps` optimizer steps the loggers get `balancer/weight/TASK`, `balancer/loss/TASK`,
    `balancer/discrepancy` (the losses' standard deviation over the tasks) and `balancer/discrepancy_ratio` (largest
    over smallest); they are in `trainer.callback_metrics` too. After each optimizer step a balancer that needs it
    (FAMO) sees the losses of the last micro-batch again: `training_step` runs a second time, without gradients and
    without its logging, up to the balancer.

    balancer: which, where the module holds none or several.
    """

    def __init__(self, balancer: Balancer | None = None) -> None:
        self._given = balancer
        self._watch: Watch | None = None
        self._epoch = -1  # the last one that was started
        self._step = 0

    @property
    def _balancer(self) -> Balancer:
        assert self._watch is not None  # since setup()
        return self._watch.balancer

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002 (Lightning's signature)
        if stage == "fit":
            self._watch = Watch(self._given or find_balancer(pl_module))

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        if self._watch is not None:
            self._watch.close()

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._epoch = state_dict["epoch"]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._step = trainer.global_step

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        if trainer.current_epoch != self._epoch:
            self._epoch = trainer.current_epoch
            self._balancer.start_epoch()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        if trainer.global_step == self._step:
            return  # gradients are still being accumulated
        self._step = trainer.global_step
        if self._balancer.needs_after_step:
            few = len(inspect.signature(pl_module.training_step).parameters) < 2
            arguments = (batch,) if few else (batch, batch_idx)
            with trainer.precision_plugin.train_step_context(), _silent(pl_module):
                look_again(self._balancer, lambda: pl_module.training_step(*arguments))
        if self._step % trainer.log_every_n_steps == 0:
            self._log(trainer)

    def _log(self, trainer: Any) -> None:
        assert self._watch is not None
        metrics = {f"balancer/{name}": value for name, value in self._watch.metrics().items()}
        trainer.callback_metrics.update(metrics)
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=self._step)


@contextmanager
def _silent(module: Any) -> Iterator[None]:
    """What the module logs is of the step itself, not of the second look."""
    module.log = module.log_dict = lambda *_, **__: None
    try:
        yield
    finally:
        del module.log, module.log_dict
