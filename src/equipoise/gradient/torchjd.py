"""Any weighting or aggregator of TorchJD as a balancer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from equipoise.gradient.base import Combination, Game, GradientBalancer, GradientOptions, Update
from equipoise.gradient.shared import Shared


class TorchJD(GradientBalancer):
    """A method of TorchJD (the optional package `torchjd`) behind one scalar.

    A weighting of Gram matrices, or an aggregator made of one, is given the joined Gram matrix in float64; any
    other aggregator the rows of the Jacobian, which on several ranks at a representation are each rank's own.
    Tasks with no gradient are left out of what it is given. Magnitudes are TorchJD's (most methods there
    combine like a mean, where this package's own combine like a sum); the heads get the plain sum of the losses.
    The object becomes a submodule: what it keeps in buffers is in `state_dict()`. It may wait for the device.

    method: a `torchjd.aggregation.Weighting` of Gram matrices or `torchjd.aggregation.Aggregator`.

    >>> import torch, equipoise as eq
    >>> from torchjd.aggregation import MGDAWeighting  # doctest: +SKIP
    >>> balancer = eq.TorchJD(num_tasks=2, method=MGDAWeighting())  # doctest: +SKIP
    """

    permutation_equivariant = False  # nothing is known about the method

    def __init__(self, num_tasks: int | None = None, *, method: nn.Module, **options: Unpack[GradientOptions]) -> None:
        super().__init__(num_tasks, **options)
        try:
            from torchjd.aggregation import Aggregator, GramianWeightedAggregator, Weighting
        except ImportError as error:
            raise ImportError("TorchJD needs the package `torchjd`: pip install torchjd.") from error
        if isinstance(method, GramianWeightedAggregator):
            method = method.gramian_weighting
        if not isinstance(method, (Weighting, Aggregator)):
            raise TypeError(
                f"`method` must be a Weighting or an Aggregator of torchjd.aggregation; found {type(method).__name__}."
            )
        self.method: Any = method
        self.needs_rows = isinstance(method, Aggregator)
        if self.needs_rows and self.low_memory:
            raise ValueError(f"`low_memory` must be False for {type(method).__name__}, which needs whole gradients.")

    def combine(self, game: Game) -> Combination:
        inside = game.active.nonzero().squeeze(1)
        weights = torch.zeros_like(game.losses)
        if len(inside):
            weights[inside] = self.method(game.gram[inside][:, inside]).to(weights)
        return Combination(weights, weights)

    def update(self, rows: Tensor, shared: Shared, game: Game) -> Update:
        if not self.needs_rows:
            return super().update(rows, shared, game)
        ones = game.active.double()
        inside = game.active.nonzero().squeeze(1)
        direction = self.method(rows[inside]).to(rows) if len(inside) else torch.zeros_like(rows[0])
        return Update(direction, ones, ones)
