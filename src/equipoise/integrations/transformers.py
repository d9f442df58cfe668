"""A callback for the Hugging Face Trainer: starts the balancer's epochs, logs what it does, lets FAMO look again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from equipoise.balancer import Balancer
from equipoise.integrations.watch import Watch, find_balancer, look_again

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError(
        "equipoise.integrations.transformers needs the package `transformers`: pip install 'equipoise[transformers]'."
    ) from error


class BalancerCallback(TrainerCallback):  # type: ignore[misc]  # untyped where the library is not installed
    """For a model that holds a balancer and returns its scalar as the loss.

        class Model(PreTrainedModel):
            def __init__(self, config):
                ...
                self.balancer = eq.LDC(tasks=("seg", "depth"), shared=self.trunk)

            def forward(self, x, seg=None, depth=None):
                ...
                return {"loss": self.balancer(losses), ...}

        Trainer(model, args, callbacks=[BalancerCallback()], ...)

    It calls `start_epoch()` once an epoch, also where a run is continued in the middle of one. Whenever the Trainer
    logs its loss, `balancer/weight/TASK`, `balancer/loss/TASK`, `balancer/discrepancy` (the losses' standard deviation
    over the tasks) and `balancer/discrepancy_ratio` (largest over smallest) go with it, into `state.log_history` and to
    the callbacks after this one. After each optimizer step a balancer that needs it (FAMO) sees the losses of the last
    micro-batch again: the model runs a second time, without gradients, up to the balancer.

    balancer: which, where the model holds none or several.
    """

    def __init__(self, balancer: Balancer | None = None) -> None:
        self._given = balancer
        self._watch: Watch | None = None
        self._inputs: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
        self._handle: Any = None

    @property
    def _balancer(self) -> Balancer:
        assert self._watch is not None  # since on_train_begin()
        return self._watch.balancer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.on_train_end(args, state, control)  # of a run that was interrupted
        model: nn.Module = kwargs["model"]
        self._watch = Watch(self._given or find_balancer(model))
        if self._balancer.needs_after_step:
            self._handle = model.register_forward_pre_hook(self._remember, with_kwargs=True)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        if self._watch is not None:
            self._watch.close()
        if self._handle is not None:
            self._handle.remove()
        self._watch = self._handle = None
        self._inputs = ((), {})

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        if float(state.epoch or 0.0).is_integer():  # a run continued within an epoch is at a fraction
            self._balancer.start_epoch()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        if self._balancer.needs_after_step:
            positional, named = self._inputs
            look_again(self._balancer, lambda: kwargs["model"](*positional, **named))

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        logs: dict[str, Any] | None = kwargs.get("logs")
        if self._watch is None or logs is None or "loss" not in logs:
            return
        metrics = {f"balancer/{name}": value for name, value in self._watch.metrics().items()}
        logs.update(metrics)
        if state.log_history:  # a copy of `logs`, made before
            state.log_history[-1].update(metrics)

    def _remember(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if model.training:
            self._inputs = args, dict(kwargs)
