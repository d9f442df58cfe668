"""MoCo: corrected gradients, averaged over steps, and weights that follow their least norm."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import Unpack

from equipoise.gradient.base import Game, GradientOptions, Update
from equipoise.gradient.running import RunningGradients, decay
from equipoise.gradient.shared import Shared
from equipoise.gradient.solvers.common import may_look


class MoCo(RunningGradients):
    """Running gradients y, and weights that take a step towards the least norm of y^T lambda.

    At step t: y <- y - beta t^-beta_sigma (y - J), lambda <- P(lambda - gamma t^-gamma_sigma (y y^T + rho I) lambda),
    with P the Euclidean projection on the simplex, y from 0 and lambda from 1 / K. With parameters as `shared` they
    get y^T lambda, as in the paper. A representation belongs to one batch, so there the running quantity is the Gram
    matrix, M <- M - beta_t (M - J J^T) in place of y y^T, and the trunk gets J^T lambda of this batch.

    form: "paper", or "libmtl": there a gradient is normalised and multiplied by its loss, and a softmax stands in place
        of the projection, which draws lambda to equal weights within a few steps.

    An absent task's running gradient stays; the projection is over the tasks present.

    >>> import torch, equipoise as eq
    >>> x = torch.nn.Parameter(torch.ones(2))
    >>> eq.MoCo(num_tasks=2)([2 * x[0], x[1]], shared=[x]).backward()
    >>> x.grad
    tensor([0.4812, 0.2594])
    """

    def __init__(
        self,
        num_tasks: int | None = None,
        *,
        beta: float = 0.5,
        beta_sigma: float = 0.5,
        gamma: float = 0.1,
        gamma_sigma: float = 0.5,
        rho: float = 0.0,
        form: Literal["paper", "libmtl"] = "paper",
        **common: Unpack[GradientOptions],
    ) -> None:
        super().__init__(num_tasks, **common)
        for name, value in (("gamma", gamma), ("rho", rho), ("beta_sigma", beta_sigma), ("gamma_sigma", gamma_sigma)):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"`{name}` must be at least 0; found {value}.")
        if not 0 < beta <= 1:
            raise ValueError(f"`beta` must be above 0 and at most 1; found {beta}.")
        if form not in ("paper", "libmtl"):
            raise ValueError(f"`form` must be 'paper' or 'libmtl'; found {form!r}.")
        self.beta, self.beta_sigma = beta, beta_sigma
        self.gamma, self.gamma_sigma = gamma, gamma_sigma
        self.rho = rho
        self.form = form
        self.share: Tensor  # lambda
        self.register_buffer("share", torch.full((self.num_tasks,), 1.0 / self.num_tasks, dtype=torch.float64))

    def update(self, rows: Tensor, shared: Shared, game: Game) -> Update:
        batch = game.batch
        factors = torch.ones_like(game.losses)
        if self.form == "libmtl":
            factors = game.losses / (game.gram.diagonal().sqrt() + 1e-8)
        beta = decay(self.beta, self.beta_sigma, self.step)
        y, gram = self.run(rows, factors, shared, game, beta)
        share = self.share.to(gram)
        pull = gram @ batch.only(share) + self.rho * share
        moved = share - decay(self.gamma, self.gamma_sigma, self.step) * pull
        share = (
            _onto_simplex(moved, batch.present) if self.form == "paper" else batch.only(moved, -torch.inf).softmax(0)
        )
        if self.training:
            batch.keep(self.share, share.to(self.share), per_task=True)
        weights = batch.only(share)
        if y is not None:
            return Update(weights.to(y) @ y, weights, weights)
        applied = weights * factors
        return Update(applied.to(rows) @ rows, applied, weights)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, form={self.form!r}"


def _onto_simplex(point: Tensor, present: Tensor | None) -> Tensor:
    """The nearest point with entries at least 0 that sum to 1; absent entries take no part."""
    if present is not None:
        point = torch.where(present, point, -torch.inf)
    if may_look(point):  # a sixth of the time of the operators below
        return point.new_tensor(_nearest(point.tolist()))
    point = point - point.max()  # nothing changes, and 1 counts beside entries of any size
    ordered = point.sort(descending=True).values
    count = torch.arange(1, len(point) + 1, dtype=point.dtype, device=point.device)
    excess = (ordered.cumsum(0) - 1.0) / count
    # The threshold is that of the longest run of leading entries that all stay above it.
    threshold = torch.where(ordered > excess, excess, -torch.inf).max()
    return (point - threshold).clamp(min=0.0)


def _nearest(point: list[float]) -> list[float]:
    """The same in Python's own numbers."""
    most = max(point)
    total, threshold = -1.0, 0.0
    for count, entry in enumerate(sorted((entry - most for entry in point), reverse=True), 1):
        total += entry
        if entry <= total / count:
            break
        threshold = total / count
    return [max(entry - most - threshold, 0.0) for entry in point]
