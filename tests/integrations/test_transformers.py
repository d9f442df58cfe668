"""The callback for the Hugging Face Trainer against loops by hand."""

from __future__ import annotations

import copy
import importlib
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq

pytestmark = pytest.mark.filterwarnings("ignore")  # the library's own

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers", reason="needs the extra [transformers]")
    pytest.importorskip("accelerate", reason="needs the extra [transformers]")
    from equipoise.integrations.transformers import BalancerCallback

BATCHES, SIZE = 4, 3


class Config(transformers.PretrainedConfig):
    model_type = "two-heads"


class Model(transformers.PreTrainedModel):
    """Two heads on a layer; the balancer catches the layer's output."""

    config_class = Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.trunk, self.heads = nn.Linear(3, 4), nn.Linear(4, 2)
        self.post_init()

    def balance(self, method: str) -> None:
        self.balancer = eq.make(method, num_tasks=2, shared=self.trunk)

    def losses(self, x: Tensor) -> Tensor:
        return (self.heads(self.trunk(x)) - torch.tensor([1.0, 20.0])).square().mean(0)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"loss": self.balancer(self.losses(x))}


def make(method: str) -> Model:
    torch.manual_seed(0)
    model = Model(Config())
    model.balance(method)
    return model


def rows(same: bool = False) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    found = [{"x": torch.randn(3, generator=generator)} for _ in range(BATCHES * SIZE)]
    return found[:1] * len(found) if same else found


class Trainer(transformers.Trainer):
    """In the data's own order."""

    def _get_train_sampler(self, *_: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)


def fit(
    model: Model, folder: Path, *callbacks: Any, same: bool = False, resume: str | None = None, **options: Any
) -> Any:
    args = transformers.TrainingArguments(
        **{"output_dir": str(folder), "per_device_train_batch_size": SIZE, "num_train_epochs": 2, "logging_steps": 1,
           "learning_rate": 0.01, "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "save_strategy": "no",
           "report_to": [], "disable_tqdm": True, "use_cpu": True, **options},
    )  # fmt: skip
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    trainer = Trainer(model, args, train_dataset=rows(same), callbacks=list(callbacks), optimizers=(sgd, None))
    trainer.callback_handler.callbacks.insert(0, BalancerCallback())  # before the trackers, as the docs say
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def by_hand(method: str, accumulate: int) -> Model:
    model = make(method)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.stack([row["x"] for row in rows()]).split(SIZE)
    for _ in range(2):
        model.balancer.start_epoch()
        for index, x in enumerate(data):
            (model(x)["loss"] / accumulate).backward()
            if (index + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
                with torch.no_grad():
                    model.balancer.after_step(model.losses(x))
    return model


def equal(one: nn.Module, other: nn.Module) -> None:
    for (name, mine), theirs in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs), name


@pytest.mark.parametrize("method", ["famo", "dwa", "mgda", "ldc"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_equals_a_loop_by_hand(method: str, accumulate: int, tmp_path: Path) -> None:
    model = make(method)
    fit(model, tmp_path, gradient_accumulation_steps=accumulate)
    equal(model, by_hand(method, accumulate))
    assert not model._forward_pre_hooks and not model.balancer._forward_hooks


def test_a_run_continued_within_an_epoch_starts_no_epoch(tmp_path: Path) -> None:
    """DWA's averages would be passed on too early."""
    unbroken = make("dwa")
    fit(unbroken, tmp_path, same=True, num_train_epochs=3, save_strategy="steps", save_steps=BATCHES + 2)
    resumed = make("dwa")
    found = str(tmp_path / f"checkpoint-{BATCHES + 2}")
    fit(resumed, tmp_path / "b", same=True, num_train_epochs=3, resume=found)
    assert resumed.balancer.step == unbroken.balancer.step == 3 * BATCHES
    equal(resumed, unbroken)


def test_what_is_logged_goes_with_the_loss(tmp_path: Path) -> None:
    class Tracker(transformers.TrainerCallback):
        seen: list[dict[str, Any]] = []  # noqa: RUF012 (a test's)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            self.seen.append(copy.copy(logs))

    trainer = fit(make("ldc"), tmp_path, Tracker, num_train_epochs=1)
    ours = {"balancer/weight/0", "balancer/weight/1", "balancer/loss/0", "balancer/loss/1", "balancer/discrepancy",
            "balancer/discrepancy_ratio"}  # fmt: skip
    for logs in (Tracker.seen, trainer.state.log_history):
        steps = [row for row in logs if "loss" in row]
        assert len(steps) == BATCHES and all(ours < set(row) for row in steps)
        assert not any(ours & set(row) for row in logs if "loss" not in row)


def test_a_model_that_is_loaded_gets_a_balancer_afterwards(tmp_path: Path) -> None:
    """`from_pretrained` of version 5 builds modules on the meta device and fills in what was saved."""
    model = make("famo")
    fit(model, tmp_path / "a")
    model.save_pretrained(tmp_path / "saved")
    again = Model.from_pretrained(tmp_path / "saved")
    again.balance("famo")
    saved = {name: tensor for name, tensor in model.state_dict().items() if name.startswith("balancer.")}
    missing, _ = again.load_state_dict(saved, strict=False)
    assert not any(name.startswith("balancer.") for name in missing)
    equal(again, model)
    again.train()
    again(torch.ones(2, 3))["loss"].backward()
    assert again.trunk.weight.grad is not None


def test_missing_transformers_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "equipoise.integrations.transformers")
    with pytest.raises(ImportError, match=r"pip install 'equipoise\[transformers\]'"):
        importlib.import_module("equipoise.integrations.transformers")
