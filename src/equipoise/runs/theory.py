"""What the theorem of LDC-MTL speaks of, on any suite's model and batch."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from equipoise.diagnostics.stationarity import Stationarity, pareto_stationarity
from equipoise.diagnostics.theory import LowerLevel, lower_level
from equipoise.diagnostics.untouched import same_draws, untouched
from equipoise.ldc.single_loop import LDC
from equipoise.runs.ranks import Ranks
from equipoise.suites.suite import Suite


class Theory(NamedTuple):
    """How near a model is to Pareto stationarity, and to solving the lower level."""

    stationarity: Stationarity
    lower: LowerLevel


def theory(suite: Suite, model: nn.Module, balancer: LDC, batch: Any, *, lr: float, steps: int = 50) -> Theory:
    """`pareto_stationarity` at the suite's shared parameters and `lower_level`, on one batch; nothing changes.

    The lower level is solved by `steps` gradient steps of size `lr` from the model.

    >>> import equipoise as eq
    >>> from equipoise.runs.theory import theory
    >>> from equipoise.suites.toy import Toy
    >>> suite = Toy(seed=3)
    >>> balancer = eq.LDC(tasks=suite.tasks, normalize=[0.1, 1.0])
    >>> found = theory(suite, suite.model(), balancer, None, lr=0.1)
    >>> found.lower.gap > 0, found.stationarity.value > 0
    (True, True)
    """
    module = Ranks().losses(suite, model)

    def closure(params: dict[str, Tensor]) -> Any:
        return torch.func.functional_call(module, params, (batch,))

    with untouched():
        losses, _ = same_draws(lambda: module(batch))
        found = pareto_stationarity(losses, suite.shared_parameters(model))
    params = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return Theory(found, lower_level(balancer, closure, params, lr=lr, steps=steps))
