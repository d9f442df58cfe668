"""What the trainers' callbacks share: which balancer, what it was given, and its second look at a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from equipoise.balancer import Balancer
from equipoise.diagnostics.discrepancy import discrepancy
from equipoise.losses import read

STEP_OPTIONS = ("present", "counts")  # what `after_step` takes as `forward` does


def find_balancer(model: nn.Module) -> Balancer:
    """The one balancer among a model's modules.

    >>> import torch, equipoise as eq
    >>> from equipoise.integrations.watch import find_balancer
    >>> find_balancer(torch.nn.ModuleDict({"trunk": torch.nn.Linear(2, 2), "balancer": eq.FAMO(2)}))
    FAMO(num_tasks=2)
    """
    found = [module for module in model.modules() if isinstance(module, Balancer)]
    if len(found) != 1:
        name = type(model).__name__
        raise ValueError(f"`balancer` must be given unless the model holds exactly one; found {len(found)} in {name}.")
    return found[0]


class Watch:
    """Remembers the losses of a balancer's last training step; steps inside a compiled region are not seen.

    >>> import torch, equipoise as eq
    >>> from equipoise.integrations.watch import Watch
    >>> balancer = eq.LS(tasks=("a", "b"))
    >>> watch = Watch(balancer)
    >>> total = balancer(torch.tensor([1.0, 3.0], requires_grad=True))
    >>> watch.metrics()
    {'weight/a': 1.0, 'weight/b': 1.0, 'loss/a': 1.0, 'loss/b': 3.0, 'discrepancy': 1.0, 'discrepancy_ratio': 3.0}
    """

    def __init__(self, balancer: Balancer) -> None:
        self.balancer = balancer
        self._losses: Tensor | None = None
        self._present: Tensor | None = None
        self._handle = balancer.register_forward_hook(self._see, with_kwargs=True)

    def close(self) -> None:
        """Stop looking."""
        self._handle.remove()

    def metrics(self) -> dict[str, float]:
        """The tasks' weights and losses, the losses' standard deviation over the tasks and largest over smallest.

        Absent tasks are left out. One wait for the device.
        """
        tasks = self.balancer.tasks
        if self._losses is None:
            return {
                f"weight/{task}": weight for task, weight in zip(tasks, self.balancer.weights.tolist(), strict=True)
            }
        present = torch.ones_like(self._losses) if self._present is None else self._present.to(self._losses)
        weights, losses, here = torch.stack([self.balancer.weights.to(self._losses), self._losses, present]).tolist()
        seen = [i for i, flag in enumerate(here) if flag]
        spread = discrepancy([losses[i] for i in seen])
        return {
            **{f"weight/{tasks[i]}": weights[i] for i in seen},
            **{f"loss/{tasks[i]}": losses[i] for i in seen},
            "discrepancy": spread.std,
            "discrepancy_ratio": spread.ratio,
        }

    @torch.no_grad()
    def _see(self, balancer: Balancer, args: tuple[Any, ...], kwargs: Mapping[str, Any], _scalar: Tensor) -> None:
        if balancer.training and not torch.compiler.is_compiling():
            losses = args[0] if args else kwargs["losses"]
            values, self._present, _ = read(losses, balancer.tasks, balancer._named, kwargs.get("present"))
            self._losses = values.detach()


def look_again(balancer: Balancer, run: Callable[[], Any]) -> None:
    """Give the balancer its second look: `run` is the training step again, and is left where it hands losses over.

    The balancer's forward does not run, so its state is that of the step before, and nothing after it runs either.
    """

    def reached(_balancer: Balancer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> NoReturn:
        raise _Reached(args[0] if args else kwargs["losses"], {k: v for k, v in kwargs.items() if k in STEP_OPTIONS})

    handle = balancer.register_forward_pre_hook(reached, with_kwargs=True, prepend=True)
    try:
        with torch.no_grad():
            run()
    except _Reached as found:
        losses, options = found.losses, found.options
    else:
        raise RuntimeError("the training step did not call the balancer when it ran again for the second look.")
    finally:
        handle.remove()
    balancer.after_step(losses, **options)


class _Reached(BaseException):
    """Leaves a training step at the balancer; no `except Exception` on the way may stop it."""

    def __init__(self, losses: Any, options: dict[str, Any]) -> None:
        super().__init__()
        self.losses = losses
        self.options = options
