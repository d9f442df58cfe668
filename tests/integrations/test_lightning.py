"""The Lightning callback against loops by hand."""

from __future__ import annotations

import importlib
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's own

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    L = pytest.importorskip("lightning", reason="needs the extra [lightning]")
    from equipoise.integrations.lightning import BalancerCallback

BATCHES = 4


class Module(L.LightningModule):
    """Two heads on a layer; the balancer catches the layer's output."""

    def __init__(self, method: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk, self.heads = nn.Linear(3, 4), nn.Linear(4, 2)
        self.balancer = eq.make(method, num_tasks=2, shared=self.trunk)

    def losses(self, x: Tensor) -> Tensor:
        return (self.heads(self.trunk(x)) - torch.tensor([1.0, 20.0])).square().mean(0)

    def training_step(self, batch: Tensor) -> Tensor:
        losses = self.losses(batch)
        self.log("first", losses[0], on_step=True)
        return self.balancer(losses)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Stop(L.Callback):
    """Saves a checkpoint after so many optimizer steps and stops."""

    def __init__(self, path: Path, steps: int) -> None:
        self.path, self.steps = path, steps

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.steps:
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True


def batches(same: bool = False) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    found = [torch.randn(6, 3, generator=generator) for _ in range(BATCHES)]
    return found[:1] * BATCHES if same else found


def fit(module: Module, data: list[Tensor], *callbacks: Any, path: Path | None = None, **options: Any) -> Any:
    trainer = L.Trainer(
        **{"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
           "enable_model_summary": False, "max_epochs": 2, "log_every_n_steps": 1, **options},
        callbacks=[BalancerCallback(), *callbacks],
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=None), ckpt_path=path)
    return trainer


def by_hand(method: str, accumulate: int) -> Module:
    module = Module(method)
    optimizer = module.configure_optimizers()
    for _ in range(2):
        module.balancer.start_epoch()
        for index, batch in enumerate(batches()):
            (module.balancer(module.losses(batch)) / accumulate).backward()
            if (index + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
                with torch.no_grad():
                    module.balancer.after_step(module.losses(batch))
    return module


def equal(one: nn.Module, other: nn.Module) -> None:
    for (name, mine), theirs in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs), name


@pytest.mark.parametrize("method", ["famo", "dwa", "mgda", "ldc"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_equals_a_loop_by_hand(method: str, accumulate: int) -> None:
    module = Module(method)
    fit(module, batches(), accumulate_grad_batches=accumulate)
    equal(module, by_hand(method, accumulate))


@pytest.mark.skipif(L.__version__ == "2.4.0", reason="runs the batch again at whose end the checkpoint was written")
def test_a_run_continued_within_an_epoch_starts_no_epoch(tmp_path: Path) -> None:
    """DWA's averages would be passed on too early."""
    unbroken = Module("dwa")
    fit(unbroken, batches(same=True), max_epochs=3)
    broken = Module("dwa")
    fit(broken, batches(same=True), Stop(tmp_path / "at.ckpt", BATCHES + 2), max_epochs=3)
    assert broken.balancer.step == BATCHES + 2
    resumed = Module("dwa")
    fit(resumed, batches(same=True), max_epochs=3, path=tmp_path / "at.ckpt")
    assert resumed.balancer.step == unbroken.balancer.step == 3 * BATCHES
    equal(resumed, unbroken)


def test_an_epoch_that_is_announced_again_is_not_started_again() -> None:
    """Version 2.4 does that when a run is continued within an epoch."""
    module, trainer = Module("dwa"), SimpleNamespace(current_epoch=1)
    first, second = BalancerCallback(), BalancerCallback()
    first.setup(trainer, module, "fit")
    first.on_train_epoch_start(trainer, module)
    module.balancer(module.losses(batches()[0]))
    second.setup(trainer, module, "fit")
    second.load_state_dict(first.state_dict())
    second.on_train_epoch_start(trainer, module)
    assert not module.balancer.new_epoch
    trainer.current_epoch = 2
    second.on_train_epoch_start(trainer, module)
    assert module.balancer.new_epoch


def test_logs_go_to_loggers_and_to_callbacks_and_are_of_the_first_look(tmp_path: Path) -> None:
    from lightning.pytorch.loggers import CSVLogger

    module = Module("famo")
    trainer = fit(module, batches(), logger=CSVLogger(tmp_path, name=None, version=""), max_epochs=1)
    rows = (tmp_path / "metrics.csv").read_text().splitlines()
    names = rows[0].split(",")
    ours = {"balancer/weight/0", "balancer/weight/1", "balancer/loss/0", "balancer/loss/1", "balancer/discrepancy",
            "balancer/discrepancy_ratio"}  # fmt: skip
    assert ours < set(names) and ours < set(trainer.callback_metrics)
    columns = {name: [row.split(",")[i] for row in rows[1:]] for i, name in enumerate(names)}
    seen, logged = ([float(x) for x in columns[name] if x] for name in ("balancer/loss/0", "first"))
    assert len(seen) == BATCHES and seen == pytest.approx(logged, rel=1e-6)


def test_missing_lightning_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "equipoise.integrations.lightning")
    with pytest.raises(ImportError, match=r"pip install 'equipoise\[lightning\]'"):
        importlib.import_module("equipoise.integrations.lightning")
