"""torch.compile. LDC and the methods that read losses only compile with the model, the whole step as one graph, and the
optimizer as another. Gradient methods take gradients in the middle of a step: for them the trunk and the heads are
compiled apart. --smoke looks at the graphs alone (backend aot_eager); without it code is generated (inductor):

    python examples/compiled.py --method famo
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._dynamo.utils import counters

import equipoise as eq
import problem


def main() -> None:
    options = problem.arguments(__doc__, folder=False)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    backend = "aot_eager" if options.smoke else "inductor"
    model = problem.Model().to(device)
    balancer = eq.make(options.method, tasks=problem.TASKS).to(device)
    groups = [{"params": model.parameters()}, *balancer.param_groups(lr=1e-2)]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, weight_decay=1e-2)
    scalar = apart(model, balancer, backend) if balancer.needs_shared else whole(model, balancer, backend)
    update = torch.compile(optimizer.step, backend=backend)
    look_again = torch.compile(lambda batch: balancer.after_step(model(batch)), backend=backend, fullgraph=True)
    for _ in range(options.epochs):
        balancer.start_epoch()  # raises if a loss was not finite: a compiled step cannot
        for batch in problem.loader(options):
            batch = {name: column.to(device) for name, column in batch.items()}
            scalar(batch).backward()
            update()
            optimizer.zero_grad()
            if balancer.needs_after_step:
                with torch.no_grad():
                    look_again(batch)
    print(f"graphs compiled: {counters['stats']['unique_graphs']}")
    problem.report(model.eval(), options, balancer.weights)


def whole(model, balancer, backend):
    """One graph from the batch to the scalar, and one for its backward."""
    return torch.compile(lambda batch: balancer(model(batch)), backend=backend, fullgraph=True)


def apart(model, balancer, backend):
    """A graph to the features and one to the losses; the balancer runs between the two backwards, as it is."""
    torch._functorch.config.donated_buffer = False  # the heads' graph runs backwards once a task
    trunk = torch.compile(model.trunk, backend=backend, fullgraph=True)
    losses = torch.compile(model.losses, backend=backend, fullgraph=True)

    def scalar(batch: dict[str, Tensor]) -> Tensor:
        features = trunk(batch["x"])
        return balancer(losses(features, batch), shared=features)

    return scalar


if __name__ == "__main__":
    main()
