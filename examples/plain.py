"""Plain PyTorch with everything at once: autocast to float16 and a GradScaler, accumulation, gradient checkpointing,
clipping, an average of the weights, checkpoints. The balancer is three lines of it. Ten seconds on one core:

    python examples/plain.py
"""

from __future__ import annotations

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

import equipoise as eq
import problem

ACCUMULATE = 2


def main() -> None:
    options = problem.arguments(__doc__)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = problem.Model().to(device)
    balancer = eq.make(options.method, tasks=problem.TASKS).to(device)
    groups = [{"params": model.parameters()}, *balancer.param_groups(lr=1e-2)]  # its own rate, and no decay
    optimizer = torch.optim.AdamW(groups, lr=1e-3, weight_decay=1e-2)
    scaler = torch.amp.GradScaler(device)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    state = {"model": model, "balancer": balancer, "optimizer": optimizer, "scaler": scaler, "average": average}
    start = resume(options, state)
    for epoch in range(start, options.epochs):
        balancer.start_epoch()  # for DWA and LDC(normalize="log"); the others do not mind
        for index, batch in enumerate(problem.loader(options)):
            batch = {name: column.to(device) for name, column in batch.items()}
            with torch.autocast(device, torch.float16):
                features = checkpoint(model.trunk, batch["x"], use_reentrant=False)
                losses = model.losses(features, batch)
                total = balancer(losses, shared=features)
            scaler.scale(total / ACCUMULATE).backward()
            if (index + 1) % ACCUMULATE:
                continue
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            average.update_parameters(model)
            if balancer.needs_after_step:  # FAMO looks at the last batch again
                with torch.no_grad(), torch.autocast(device, torch.float16):
                    balancer.after_step(model(batch))
        if options.folder is not None:
            options.folder.mkdir(parents=True, exist_ok=True)
            found = {name: part.state_dict() for name, part in state.items()}
            torch.save(found | {"epoch": epoch + 1}, options.folder / "last.pt")
    problem.report(average.eval(), options, balancer.weights)


def resume(options, state) -> int:
    """Load the last checkpoint, if there is one; the epoch to go on with."""
    if options.folder is None or not (options.folder / "last.pt").exists():
        return 0
    found = torch.load(options.folder / "last.pt", weights_only=True)
    for name, part in state.items():
        part.load_state_dict(found[name])
    return found["epoch"]


if __name__ == "__main__":
    main()
