"""Smooth Tchebycheff scalarisation."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Unpack

from equipoise.balancer import Balancer, CommonOptions
from equipoise.losses import LARGEST, SMALLEST, Batch, alike


class STCH(Balancer):
    """Smooth Tchebycheff: mu K log sum exp(y / mu), with y = log(l / nadir), a soft maximum of the log losses.

    In epochs 0 to `warmup` the scalar is the sum of log l; the nadir is each task's mean loss in epoch `warmup`.
    `start_epoch()` or `epoch_steps=` says where epochs begin. The value is the whole soft maximum: the reference
    reports one lower by K max y, with the same gradient.

    mu: how soft the maximum is; towards 0 it becomes the largest y alone.
    warmup: the epoch, counted from 0, that sets the nadir.

    >>> import torch, equipoise as eq
    >>> balancer = eq.STCH(num_tasks=2, mu=0.5, warmup=0, epoch_steps=1)
    >>> for losses in ([2.0, 4.0], [2.0, 2.0]):
    ...     total = balancer(torch.tensor(losses, requires_grad=True))
    >>> balancer.weights
    tensor([0.8000, 0.2000])
    """

    scale_invariant = True
    needs_positive = True
    uses_epochs = True

    def __init__(
        self, num_tasks: int | None = None, *, mu: float = 1.0, warmup: int = 4, **common: Unpack[CommonOptions]
    ) -> None:
        super().__init__(num_tasks, **common)
        if not SMALLEST <= mu <= LARGEST:
            raise ValueError(f"`mu` must be from {SMALLEST:g} to {LARGEST:g}; found {mu}.")
        if isinstance(warmup, bool) or not isinstance(warmup, int) or warmup < 0:
            raise ValueError(f"`warmup` must be a whole number of at least 0; found {warmup!r}.")
        self.mu = mu
        self.warmup = warmup
        self.epoch: Tensor
        self.nadir: Tensor
        self.seen: Tensor
        self.register_buffer("epoch", torch.full((), -1))
        self.register_buffer("nadir", torch.ones(self.num_tasks))
        self.register_buffer("seen", torch.zeros(self.num_tasks))  # losses in the nadir so far

    def objective(self, batch: Batch, shared: list[Tensor] | None) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        if batch.ok is None:  # the epoch may be looked at: what this step does not need is left out
            epoch = self.epoch + self._epoch_begins_here()
            now = epoch.item()
            measures = now == self.warmup or (now > self.warmup and not all(self.seen.tolist()))
            nadir = self._measured(batch, epoch) if measures else self.nadir
            value, weights = self._logarithms(batch) if now <= self.warmup else self._soft_maximum(batch, nadir)
        else:
            epoch = self.epoch + self._epoch_begins()
            two = self._logarithms(batch), self._soft_maximum(batch, self._measured(batch, epoch))
            value, weights = (torch.where(epoch <= self.warmup, *parts) for parts in zip(*two, strict=True))
        if self.training:
            batch.keep(self.epoch, epoch)
        linear = torch.dot(weights, batch.losses)  # the gradient, which is known: nothing else is differentiated
        return value + (linear - linear.detach()), weights

    def _measured(self, batch: Batch, epoch: Tensor) -> Tensor:
        """The nadir with this step's losses, kept."""
        # A task that was absent for the whole of epoch `warmup` takes its first loss after it.
        counts = (epoch == self.warmup) | ((epoch > self.warmup) & (self.seen == 0))
        seen = self.seen + counts
        mean = torch.lerp(self.nadir, batch.values.to(seen), 1.0 / seen.clamp(min=1.0))
        nadir = torch.where(counts, mean, self.nadir)
        if self.training:
            batch.keep(self.nadir, nadir, per_task=True)
            batch.keep(self.seen, seen, per_task=True)
        return nadir

    def _logarithms(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The sum of log l, and the weights that are its gradient."""
        values = batch.values
        return batch.only(values.log()).sum(), batch.only(values.reciprocal())

    def _soft_maximum(self, batch: Batch, nadir: Tensor) -> tuple[Tensor, Tensor]:
        """mu K log sum exp(y / mu), and the weights that are its gradient."""
        values = batch.values
        y = batch.only((values / alike(nadir, values)).log() / self.mu, -torch.inf)
        shares = y.softmax(0)
        maximum = y.max() - shares.max().log()  # log sum exp(y): the largest share is exp(max y) over that sum
        return self.mu * batch.num_present * maximum, batch.only(batch.num_present * shares / values)
