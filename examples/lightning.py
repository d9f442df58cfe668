"""Lightning, automatic optimisation: the balancer is a part of the module, `training_step` returns its scalar, and a
callback starts epochs, logs weights and losses, and lets FAMO look again. Ten seconds on one core:

    python examples/lightning.py
"""

from __future__ import annotations

import sys

sys.path.append(sys.path.pop(0))  # this folder last: `import lightning` must not find this file

import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

import equipoise as eq
import lightning as L
import problem
from equipoise.integrations.lightning import BalancerCallback


class Balanced(L.LightningModule):
    """The usual module. Features never show in `training_step`, so the balancer knows the trunk from the start."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.model = problem.Model()
        self.balancer = eq.make(method, tasks=problem.TASKS, shared=self.model.trunk)

    def training_step(self, batch: dict[str, torch.Tensor], _index: int) -> torch.Tensor:
        return self.balancer(self.model(batch))

    def validation_step(self, batch: dict[str, torch.Tensor], _index: int) -> None:
        self.log_dict(
            {f"validation/{task}": loss for task, loss in self.model(batch).items()}, batch_size=problem.BATCH
        )

    def configure_optimizers(self) -> torch.optim.Optimizer:
        groups = [{"params": self.model.parameters()}, *self.balancer.param_groups(lr=1e-2)]
        return torch.optim.AdamW(groups, lr=1e-3, weight_decay=1e-2)


def main() -> None:
    options = problem.arguments(__doc__)
    module = Balanced(options.method)
    callbacks = [BalancerCallback()]
    if options.folder is not None:
        callbacks.append(ModelCheckpoint(options.folder, save_last=True))
    trainer = L.Trainer(
        max_epochs=options.epochs,
        precision="bf16-mixed",
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        callbacks=callbacks,
        logger=False if options.folder is None else CSVLogger(options.folder, name=None),
        log_every_n_steps=1 if options.smoke else 50,
        enable_checkpointing=options.folder is not None,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    last = None if options.folder is None else options.folder / "last.ckpt"
    found = last if last is not None and last.exists() else None
    trainer.fit(module, problem.loader(options), problem.loader(options, test=True), ckpt_path=found)
    problem.report(module.model.eval(), options, module.balancer.weights)


if __name__ == "__main__":
    main()
