"""Accelerate: one process or many, with accumulation, mixed precision and checkpoints that hold the balancer's state.
Ten seconds on one core; `accelerate launch` starts it on several devices:

    python examples/accelerate.py
"""

from __future__ import annotations

import sys

sys.path.append(sys.path.pop(0))  # this folder last: `import accelerate` must not find this file

import torch

import equipoise as eq
import problem
from accelerate import Accelerator


def main() -> None:
    options = problem.arguments(__doc__)
    accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision="bf16")
    model = problem.Model()
    # `prepare` wraps the model, and mixed precision copies what it returns: the balancer catches the features inside.
    balancer = eq.make(options.method, tasks=problem.TASKS, shared=model.trunk).to(accelerator.device)
    groups = [{"params": model.parameters()}, *balancer.param_groups(lr=1e-2)]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, weight_decay=1e-2)
    model, optimizer, batches = accelerator.prepare(model, optimizer, problem.loader(options))
    progress = Progress()
    accelerator.register_for_checkpointing(balancer, progress)
    if options.folder is not None and options.folder.exists():
        accelerator.load_state(str(options.folder))
    while progress.epoch < options.epochs:
        balancer.start_epoch()
        for batch in batches:
            with accelerator.accumulate(model):
                accelerator.backward(balancer(model(batch)))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            if balancer.needs_after_step and accelerator.sync_gradients:
                with torch.no_grad():
                    balancer.after_step(model(batch))
        progress.epoch += 1
        if options.folder is not None:
            accelerator.save_state(str(options.folder))
    if accelerator.is_main_process:
        problem.report(accelerator.unwrap_model(model, keep_fp32_wrapper=False).eval(), options, balancer.weights)


class Progress:
    """How many epochs are done, as Accelerate saves things."""

    epoch = 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch = state["epoch"]


if __name__ == "__main__":
    main()
