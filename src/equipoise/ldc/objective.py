"""LDC's mathematics as pure functions: normalised losses n, the lower level g and the upper level f.

Every function is a fixed number of operators, whatever the number of tasks; `present` masks tasks without asking
the device, so all of them compile and can be captured in a CUDA graph.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

FEW = 64  # tasks whose gaps are counted in plain Python on a CPU


def rescale(losses: Tensor, first: Tensor) -> Tensor:
    """l / |l0|: each loss in units of its first value.

    >>> import torch
    >>> from equipoise.ldc.objective import rescale
    >>> rescale(torch.tensor([1.0, 50.0]), torch.tensor([2.0, 200.0]))
    tensor([0.5000, 0.2500])
    """
    return losses / first.abs()


def log_ratio(losses: Tensor, first: Tensor) -> Tensor:
    """log(l / l0): how far each loss has fallen, 0 at the start.

    >>> import torch
    >>> from equipoise.ldc.objective import log_ratio
    >>> log_ratio(torch.tensor([3.0, 7.0]), torch.tensor([3.0, 7.0]))
    tensor([0., 0.])
    """
    return torch.log(losses / first)


def ratio(losses: Tensor, first: Tensor, known: Tensor) -> Tensor:
    """l min(l0) / l0: every first loss brought down to the smallest, among the tasks whose l0 is `known`.

    >>> import torch
    >>> from equipoise.ldc.objective import ratio
    >>> ratio(torch.tensor([1.0, 50.0]), torch.tensor([2.0, 200.0]), torch.tensor([True, True]))
    tensor([1.0000, 0.5000])
    """
    return losses / (first / torch.where(known, first, torch.inf).min())


def lower(weights: Tensor, normalised: Tensor) -> Tensor:
    """g = sum of sigma_i n_i.

    >>> import torch
    >>> from equipoise.ldc.objective import lower
    >>> lower(torch.tensor([0.25, 0.75]), torch.tensor([2.0, 4.0]))
    tensor(3.5000)
    """
    return torch.dot(weights, normalised)


def chain_gap(u: Tensor, present: Tensor | None = None, smooth: float = 0.0) -> Tensor:
    """f of the paper: the sum of |u_i - u_(i+1)|, u = tau n, over neighbours in the order of the tasks.

    Absent tasks are passed over: the neighbours are those among the present ones.

    >>> import torch
    >>> from equipoise.ldc.objective import chain_gap
    >>> u = torch.tensor([1.0, 4.0, 2.0])
    >>> chain_gap(u), chain_gap(u, present=torch.tensor([True, False, True]))
    (tensor(5.), tensor(1.))
    """
    if present is not None:
        return ordered_gap(u, torch.arange(u.shape[0], device=u.device), present, smooth)
    if smooth > 0.0:
        return _total(u.diff(), None, smooth)
    # By how often each u counts, as in `every_gap`: the same sum, with a third of the operators backward.
    if u.is_cpu and u.shape[0] <= FEW and not torch.compiler.is_compiling():  # for a quarter of the time
        numbers = u.tolist()
        rises = [(b > a) - (b < a) for a, b in pairwise(numbers)]
        counts = u.new_tensor([a - b for a, b in pairwise([0, *rises, 0])])
    else:
        values = u.detach()
        counts = -values.diff(prepend=values[:1], append=values[-1:]).sign().diff()
    return torch.dot(counts, u)


def ordered_gap(u: Tensor, order: Tensor, present: Tensor | None = None, smooth: float = 0.0) -> Tensor:
    """The chain over the tasks in another order, a permutation of 0 to K - 1.

    >>> import torch
    >>> from equipoise.ldc.objective import ordered_gap
    >>> ordered_gap(torch.tensor([1.0, 4.0, 2.0]), torch.tensor([0, 2, 1]))
    tensor(3.)
    """
    if present is None:
        return chain_gap(u[order], None, smooth)
    absent_last = torch.argsort((~present)[order].to(torch.int8), stable=True)
    u = u[order[absent_last]]
    counts = torch.arange(1, u.shape[0], device=u.device) < present.sum()
    return _total(u.diff(), counts, smooth)


def listed_gap(u: Tensor, pairs: Tensor, present: Tensor | None = None, smooth: float = 0.0) -> Tensor:
    """The sum of |u_i - u_j| over the pairs (i, j) in the rows of `pairs`, [P, 2]; both must be present.

    >>> import torch
    >>> from equipoise.ldc.objective import listed_gap
    >>> listed_gap(torch.tensor([1.0, 4.0, 2.0]), torch.tensor([[0, 1], [0, 2]]))
    tensor(4.)
    """
    first, second = pairs.unbind(1)
    counts = None if present is None else present[first] & present[second]
    return _total(u[first] - u[second], counts, smooth)


def every_gap(u: Tensor, present: Tensor | None = None, smooth: float = 0.0) -> Tensor:
    """The sum of |u_i - u_j| over all pairs, times 2 / K, which makes K (K - 1) / 2 pairs count as the chain's K - 1.

    The order of the tasks does not matter. By sorting, in O(K log K): u_i counts as often as there are smaller
    entries, less the larger ones, which is also the gradient, 0 between equal ones. `smooth` has no such form and
    takes all K^2 differences.

    >>> import torch
    >>> from equipoise.ldc.objective import every_gap
    >>> every_gap(torch.tensor([1.0, 4.0, 2.0])), (3 + 1 + 2) * 2 / 3
    (tensor(4.), 4.0)
    """
    tasks = u.shape[0] if present is None else present.sum(dtype=u.dtype)
    if smooth > 0.0:
        gaps = u[:, None] - u[None, :]
        both = torch.ones_like(gaps, dtype=torch.bool) if present is None else present[:, None] & present[None, :]
        return _total(gaps, both.triu(1), smooth) * (2.0 / tasks)
    values = u.detach().contiguous() if present is None else torch.where(present, u.detach(), torch.inf)
    ordered = values.sort().values
    smaller = torch.searchsorted(ordered, values)
    not_larger = torch.searchsorted(ordered, values, right=True)
    counts = (smaller + not_larger - tasks).to(u.dtype)
    if present is not None:
        counts = torch.where(present, counts, 0.0)
    return torch.dot(counts, u - ordered[0]) * (2.0 / tasks)  # the shift is worth 0, and keeps the digits


def _total(gaps: Tensor, counts: Tensor | None, smooth: float) -> Tensor:
    """The sum of |v|, with slope 0 at 0, or of its smooth form sqrt(v^2 + smooth), over the gaps that count."""
    if smooth > 0.0:
        sizes = (gaps * gaps + smooth).sqrt()
        return (sizes if counts is None else torch.where(counts, sizes, 0.0)).sum()
    total: Tensor = torch.linalg.vector_norm(gaps if counts is None else torch.where(counts, gaps, 0.0), 1)
    return total
