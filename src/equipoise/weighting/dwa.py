"""Dynamic weight average."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Unpack

from equipoise.balancer import Balancer, CommonOptions
from equipoise.losses import LARGEST, Batch, alike


class DWA(Balancer):
    """Dynamic weight average: K softmax(r / T), with r the mean loss of the last epoch over that of the one before.

    A task that falls slowly gets more weight. Weights are ones for two epochs (and a task counts as r = 1 until
    two of its epochs are known); the scalar is the sum of w l. `start_epoch()` or `epoch_steps=` says where epochs
    begin. These are the paper's epochs; the nash-mtl line of code looks at windows of 25 steps, pads
    its history with ones, and takes the mean over tasks instead of the sum.

    temperature: T; larger means closer to equal weights.

    >>> import torch, equipoise as eq
    >>> balancer = eq.DWA(num_tasks=2, epoch_steps=1)
    >>> for step in range(3):
    ...     total = balancer(torch.tensor([1.0, 0.5**step], requires_grad=True))
    >>> balancer.weights
    tensor([1.1244, 0.8756])
    """

    uses_epochs = True

    def __init__(
        self, num_tasks: int | None = None, *, temperature: float = 2.0, **common: Unpack[CommonOptions]
    ) -> None:
        super().__init__(num_tasks, **common)
        if not temperature > 0:
            raise ValueError(f"`temperature` must be above 0; found {temperature}.")
        self.temperature = temperature
        self.current: Tensor
        self.seen: Tensor
        self.last: Tensor
        self.older: Tensor
        self.register_buffer("current", torch.zeros(self.num_tasks))  # mean loss of this epoch so far
        self.register_buffer("seen", torch.zeros(self.num_tasks))  # steps of this epoch in that mean
        self.register_buffer("last", torch.zeros(self.num_tasks))  # mean loss of the last epoch; 0: unknown
        self.register_buffer("older", torch.zeros(self.num_tasks))  # and of the one before

    def objective(self, batch: Batch, shared: list[Tensor] | None) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        last, older, seen = self.last, self.older, self.seen
        looking = batch.ok is None  # then what most steps need not do is left out
        if not looking or self._epoch_begins_here():
            begins = self._epoch_begins()
            ended = begins & (seen > 0)  # tasks with a finished epoch to pass on
            last, older = torch.where(ended, self.current, last), torch.where(ended, last, older)
            seen = torch.where(begins, 0.0, seen)
            if self.training:
                batch.keep(self.last, last)
                batch.keep(self.older, older)
        rate = last / older
        if not looking or not all(older.tolist()):
            rate = torch.where(older > 0, rate, 1.0)
        heights = (rate / self.temperature).clamp(max=LARGEST)  # of infinite ones there is no softmax
        shares = batch.only(heights, -torch.inf).softmax(0)
        weights = alike(shares * batch.num_present, batch.losses)
        if self.training:
            more = seen + 1.0
            share = batch.only(1.0 / more)
            batch.keep(self.current, torch.lerp(self.current, alike(batch.values, seen), share))
            batch.keep(self.seen, more if batch.present is None else torch.where(batch.present, more, seen))
        return torch.dot(weights, batch.losses), weights
