"""The Hugging Face Trainer and a BERT of two layers, built from its configuration: atoms are its tokens, and each of
its two heads predicts a property. The trunk recomputes its activations (gradient checkpointing). A minute on one core:

    python examples/hf_trainer.py
"""

from __future__ import annotations

import sys
import tempfile

sys.path.append(sys.path.pop(0))  # this folder last: `import accelerate` must not find the example of that name

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel, PreTrainedModel, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import equipoise as eq
import problem
from equipoise.integrations.transformers import BalancerCallback


class Properties(PreTrainedModel):
    """Two heads on the mean of the atoms' last states."""

    config_class = BertConfig
    supports_gradient_checkpointing = True

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.trunk = BertModel(config, add_pooling_layer=False)
        self.heads = nn.ModuleDict({task: nn.Linear(config.hidden_size, 1) for task in problem.TASKS})
        self.post_init()

    def losses(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        here = (batch["atoms"] > 0).long()
        states = self.trunk(batch["atoms"], attention_mask=here).last_hidden_state
        molecule = (states * here[..., None]).sum(1) / here.sum(1, keepdim=True)
        outputs = {task: head(molecule).squeeze(-1).float() for task, head in self.heads.items()}
        return {task: (outputs[task] - batch[task]).square().mean() for task in problem.TASKS}

    # No **kwargs: the Trainer would take them as a sign that the loss is divided by the accumulated batches already.
    def forward(self, atoms: Tensor, mu: Tensor, alpha: Tensor) -> dict[str, Tensor]:
        return {"loss": self.balancer(self.losses({"atoms": atoms, "mu": mu, "alpha": alpha}))}


class Rows(problem.Molecules):
    """What the model's forward takes: the Trainer hands over every column there is."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: column for name, column in super().__getitem__(index).items() if name != "x"}


def main() -> None:
    options = problem.arguments(__doc__)
    size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = BertConfig(vocab_size=1 + problem.ELEMENTS, max_position_embeddings=problem.LONGEST, **size)
    model = Properties(config)
    # A part of the model, so it is optimised and saved; added here, so that `from_pretrained` works without it.
    model.balancer = eq.make(options.method, tasks=problem.TASKS, shared=model.trunk)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    args = TrainingArguments(
        output_dir=str(options.folder or tempfile.mkdtemp()), num_train_epochs=options.epochs, learning_rate=1e-3,
        per_device_train_batch_size=problem.BATCH, gradient_accumulation_steps=2, max_grad_norm=1.0,
        bf16=torch.cuda.is_available(), use_cpu=not torch.cuda.is_available(), lr_scheduler_type="constant",
        label_names=list(problem.TASKS), eval_strategy="epoch", prediction_loss_only=True,
        save_strategy="no" if options.folder is None else "epoch", logging_steps=1 if options.smoke else 50,
        report_to=[], disable_tqdm=True,
    )  # fmt: skip
    train, test = (Rows(test=flag, smoke=options.smoke) for flag in (False, True))
    trainer = Trainer(model, args, train_dataset=train, eval_dataset=test, callbacks=[BalancerCallback()])
    found = options.folder is not None and options.folder.exists() and get_last_checkpoint(str(options.folder))
    trainer.train(resume_from_checkpoint=found or None)
    problem.report(model.eval().losses, options, model.balancer.weights)


if __name__ == "__main__":
    main()
