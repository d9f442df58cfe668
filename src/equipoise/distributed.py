"""What several ranks must agree on: the value of each loss, and the state a balancer starts from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor


def world_size(group: dist.ProcessGroup | None = None) -> int:
    """Ranks in `group`, or 1 outside an initialised process group; a rank that is no member of it is alone too."""
    if not (dist.is_available() and dist.is_initialized()):
        return 1
    return max(1, dist.get_world_size(group))


def alone() -> dist.ProcessGroup | None:
    """The group for what concerns this rank only and must not wait for others."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    return cast("dist.ProcessGroup", dist.GroupMember.NON_GROUP_MEMBER)


def join_losses(
    losses: Tensor, present: Tensor | None, counts: Tensor | None, group: dist.ProcessGroup | None
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Give each loss its value on the joined batch while its gradient stays local.

    The joined loss of a task is the mean over the ranks that have it, weighted by `counts` where given.
    Returns the joined losses, the tasks present on any rank, and the factor of each local gradient:
    ranks x own share, so that a mean over ranks (what DDP takes of gradients) is the joined gradient.
    """
    if counts is not None:
        share = counts.to(losses)
        if present is not None:
            share = torch.where(present, share, 0.0)
    else:
        share = torch.ones_like(losses) if present is None else present.to(losses.dtype)
    with torch.no_grad():
        local = torch.where(share > 0, losses * share, 0.0)
        total = torch.stack([local, share])
        dist.all_reduce(total, group=group)
        anywhere = total[1] > 0
        whole = torch.where(anywhere, total[1], 1.0)
        mean = torch.where(anywhere, total[0] / whole, 1.0)
        factor = share * world_size(group) / whole
    return mean + factor * (losses - losses.detach()), anywhere, factor


@torch.no_grad()
def broadcast_from_first(tensors: Iterable[Tensor], group: dist.ProcessGroup | None) -> None:
    """Overwrite every tensor with rank 0's, so that ranks seeded differently agree."""
    source = 0 if group is None else dist.get_global_rank(group, 0)
    for tensor in tensors:
        dist.broadcast(tensor, src=source, group=group)
