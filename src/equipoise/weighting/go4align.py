"""GO4Align: group the tasks, and give each its group's weight."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor
from typing_extensions import Unpack

from equipoise.balancer import Balancer, CommonOptions
from equipoise.losses import Batch, alike


class GO4Align(Balancer):
    """Grouped weights: x = p sum(l) / l clustered into groups, each task weighted by the mean x of its group.

    p starts uniform and is multiplied by exp(-step l) and renormalised at every step, as in the authors' code; the
    scalar is the sum of w l, not normalised. The groups are the exact optimum of one-dimensional k-means, found by
    dynamic programming: the reference runs an iterative k-means from random starts, which is often not optimal, and
    never returns when weights are tied. With `groups=1`, the reference's default, all weights are equal.

    groups: at most this many groups of tasks.
    step: the rate at which large losses lower p.

    >>> import torch, equipoise as eq
    >>> balancer = eq.GO4Align(num_tasks=3)
    >>> total = balancer(torch.tensor([1.0, 1.0, 10.0], requires_grad=True))
    >>> balancer.weights
    tensor([4.0012, 4.0012, 0.3998])
    """

    needs_positive = True

    def __init__(
        self, num_tasks: int | None = None, *, groups: int = 2, step: float = 1e-4, **common: Unpack[CommonOptions]
    ) -> None:
        super().__init__(num_tasks, **common)
        if isinstance(groups, bool) or not isinstance(groups, int) or groups < 1:
            raise ValueError(f"`groups` must be a whole number of at least 1; found {groups!r}.")
        if not step >= 0:
            raise ValueError(f"`step` must be at least 0; found {step}.")
        self.groups = min(groups, self.num_tasks)
        self.rate = step
        self.log_share: Tensor
        self.register_buffer("log_share", torch.full((self.num_tasks,), 1.0 / self.num_tasks).log())

    def objective(self, batch: Batch, shared: list[Tensor] | None) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        log_share = self._moved(batch)
        if self.training:
            batch.keep(self.log_share, alike(log_share, self.log_share), per_task=True)
        values = batch.values
        x = batch.only(values).sum() / values * log_share.exp()
        weights = batch.only(group_means(x, batch.present, self.groups))
        return torch.dot(weights, batch.losses), weights

    def _moved(self, batch: Batch) -> Tensor:
        """log p after this step's losses; the tasks present share out the mass they had."""
        log_share = alike(self.log_share, batch.losses)
        moved = log_share - self.rate * batch.values
        if batch.present is None:
            return moved.log_softmax(0)
        mass = batch.only(log_share, -torch.inf).logsumexp(0)
        return moved - batch.only(moved, -torch.inf).logsumexp(0) + mass


def group_means(x: Tensor, present: Tensor | None, groups: int) -> Tensor:
    """Each entry's group mean, under the split of `x` into at most `groups` groups with the least squared error.

    Optimal groups are runs of the sorted entries, so the best cuts follow from the best ones of shorter prefixes.
    Two groups cost O(K), more cost O(groups K^2), in a number of operations that does not grow with K. Ties fall in
    one group.
    """
    if groups == 1:
        mean = x.mean() if present is None else torch.where(present, x, 0.0).sum() / present.sum()
        return mean.expand_as(x)
    if groups == 2 and present is None and len(x) > 1 and x.device.type == "cpu" and not torch.compiler.is_compiling():
        return x.new_tensor(_two_means(x.tolist()))
    label = (x >= _group_bounds(x, present, groups)[:, None]).sum(0)
    member = (label == torch.arange(groups, device=x.device)[:, None]).to(x)
    if present is not None:
        member = member * present
    means = (member * x).sum(1) / member.sum(1).clamp(min=1.0)
    return means[label]


def _two_means(x: list[float]) -> list[float]:
    """`group_means` for two groups in plain Python: on few numbers in a step for a third of the time of operators."""
    ascending = sorted(x)
    count, mean, scale = len(x), sum(x) / len(x), max(abs(ascending[0]), abs(ascending[-1])) or 1.0
    total, least, best = 0.0, ascending[0], -1.0  # the second group's least entry, and what splitting there gains
    for size, (entry, following) in enumerate(pairwise(ascending), 1):
        total += (entry - mean) / scale
        gain = total * total / (size * (count - size))
        if gain > best:
            least, best = following, gain
    head, tail = [v for v in x if v < least], [v for v in x if not v < least]  # NaN, if there is any, is in the tail
    low, high = sum(head) / max(len(head), 1), sum(tail) / len(tail)
    return [low if v < least else high for v in x]


def _group_bounds(x: Tensor, present: Tensor | None, groups: int) -> Tensor:
    """The least entry of every group but the first."""
    position = torch.arange(len(x) + 1, device=x.device)
    ascending = (x if present is None else torch.where(present, x, torch.inf)).sort().values
    distance = ascending - ascending[0]
    if present is not None:  # absent entries are last and weigh nothing
        size = present.sum()
        distance = torch.where(position[:-1] < size, distance, 0.0)
        position = torch.minimum(position, size)
    distance = distance / distance.amax().clamp(min=torch.finfo(x.dtype).tiny)  # squares stay in range
    cut_before = []
    if groups == 2:
        head, tail = _two_run_errors(distance, position)
    else:
        error = _run_errors(distance, position)
        head, tail = error[0], error[:, -1]
        for _ in range(groups - 2):
            head, cut = (head[:, None] + error).min(0)
            cut_before.append(cut)
    cut = (head + tail).argmin(0, keepdim=True)
    cuts = [cut]
    for before in reversed(cut_before):
        cut = before[cut]
        cuts.append(cut)
    return torch.cat([ascending, ascending.new_full((1,), torch.inf)])[torch.cat(cuts)]


def _two_run_errors(x: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
    """The squared errors of the runs up to each position and from it, less what all cuts have in common."""
    centred = (x - x.sum() / position[-1]) * position.diff()
    total = torch.cat([x.new_zeros(1), centred.cumsum(0)])
    head = total.square() / position.clamp(min=1)
    tail = (total[-1] - total).square() / (position[-1] - position).clamp(min=1)
    return -head, -tail


def _run_errors(x: Tensor, position: Tensor) -> Tensor:
    """The squared error of the run between any two positions, infinite backwards.

    It is the sum of the squared differences of the run's pairs over its length: sums of positive terms only, so
    that groups of small entries are told apart beside large ones.
    """
    inside = position.diff()
    pairs = ((x - x[:, None]).square() * inside * inside[:, None]).triu()
    run = pairs.flip(0).cumsum(0).flip(0).cumsum(1)
    error = torch.nn.functional.pad(run, (1, 0, 0, 1))  # [start, end]: entries start, ..., end - 1
    length = position - position[:, None]
    index = torch.arange(len(position), device=x.device)
    return torch.where(index < index[:, None], torch.inf, error / length.clamp(min=1))
