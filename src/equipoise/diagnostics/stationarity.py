"""How near the model is to a point where no step improves every task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.capture import tensors_in
from equipoise.diagnostics.gradients import gram_of
from equipoise.gradient.solvers import min_norm
from equipoise.losses import Batch, Losses, read_any


class Stationarity(NamedTuple):
    """The least |G w|^2 over the simplex: epsilon, where a point is epsilon-accurate Pareto stationary.

    value: the least |G w|^2.
    relative: over the square of the shortest gradient, so between 0 and 1, and 1 / K for K gradients of one length at
        right angles. 0 where a gradient is 0: then the point is stationary for that task alone.
    weights: [K], a w that has it; 0 for absent tasks.
    """

    value: float
    relative: float
    weights: Tensor


def stationarity(gram: Tensor, present: Tensor | None = None) -> Stationarity:
    """From the Gram matrix of the tasks' gradients.

    >>> import torch
    >>> from equipoise.diagnostics.stationarity import stationarity
    >>> J = torch.tensor([[3.0, 1.0], [-3.0, 1.0]], dtype=torch.float64)
    >>> found = stationarity(J @ J.T)
    >>> round(found.value, 6), round(found.relative, 6), found.weights.tolist()
    (1.0, 0.1, [0.5, 0.5])
    """
    gram = gram.detach().to("cpu", torch.float64)
    here = torch.ones(len(gram), dtype=torch.bool) if present is None else present.cpu()
    weights = min_norm(gram, here).weights
    value = float((weights @ gram @ weights).clamp(min=0.0))
    shortest = float(gram.diagonal()[here].min())
    return Stationarity(value, min(1.0, value / shortest) if shortest > 0 else 0.0, weights)


def pareto_stationarity(
    losses: Losses,
    shared: Tensor | Sequence[Tensor] | Iterator[Tensor],
    *,
    present: Tensor | Sequence[bool] | None = None,
) -> Stationarity:
    """min over the simplex of |G w|^2, G the gradients of the losses at `shared`, on any model's graph.

    The graph stays usable and no `.grad` changes. At parameters it is the paper's definition; at a representation
    it is the same with the representation for the parameters: below it, the trunk can only add stationary points.

    >>> import torch
    >>> from equipoise.diagnostics import pareto_stationarity
    >>> x = torch.tensor([2.0], requires_grad=True)
    >>> round(pareto_stationarity([(x[0] - 1) ** 2, (x[0] + 1) ** 2], [x]).value, 4)  # gradients 2 and 6
    4.0
    >>> with torch.no_grad():
    ...     _ = x.fill_(0.5)
    >>> round(pareto_stationarity([(x[0] - 1) ** 2, (x[0] + 1) ** 2], [x]).value, 4)  # between the two minima
    0.0
    """
    _, values, mask, given = read_any(losses, present)
    batch = Batch(values, mask, None, given, None)
    tensors = list(tensors_in(list(shared) if not isinstance(shared, Tensor) else shared))
    return stationarity(gram_of(batch, tensors), mask)
