"""Reading what a caller hands over as losses: a sequence, a tensor or a mapping, some tasks perhaps absent."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

Losses: TypeAlias = "Sequence[Tensor | None] | Tensor | Mapping[str, Tensor | None]"

ABSENT = 1.0  # what an absent task's loss reads as: finite, positive, and masked out of every result


class Batch(NamedTuple):
    """One step's losses, read, checked and joined over the ranks.

    losses: [K], at least float32; an absent task holds 1. Attached to the graph.
    present: bool [K], or None when no task is absent.
    ok: bool scalar on the device when bad losses could not raise here, else None (known to be good).
    given: the caller's own scalars (None where absent), or the stacked tensor they came in.
    factor: [K], by how much the local gradient of each task counts in the joined loss; None means 1.
    """

    losses: Tensor
    present: Tensor | None
    ok: Tensor | None
    given: tuple[Tensor | None, ...] | Tensor
    factor: Tensor | None

    @property
    def values(self) -> Tensor:
        """The losses as numbers, out of the graph."""
        return self.losses.detach()

    @property
    def num_present(self) -> Tensor | int:
        """How many tasks are present."""
        return self.losses.shape[0] if self.present is None else self.present.sum()

    def only(self, x: Tensor, absent: float = 0.0) -> Tensor:
        """`x` with `absent` in the places of absent tasks."""
        return x if self.present is None else torch.where(self.present, x, absent)

    def keep(self, old: Tensor, new: Tensor, *, per_task: bool = False) -> None:
        """Write `new` into the state `old`, unless this step is bad; `per_task` leaves absent tasks' entries."""
        if per_task and self.present is not None:
            new = torch.where(self.present, new, old)
        if self.ok is not None:
            new = torch.where(self.ok, new, old)
        old.copy_(new)


def read(
    losses: Losses, tasks: tuple[str, ...], named: bool, present: Tensor | Sequence[bool] | None
) -> tuple[Tensor, Tensor | None, tuple[Tensor | None, ...] | Tensor]:
    """The stacked losses, the mask of present tasks (None: all) and the losses as given."""
    given: tuple[Tensor | None, ...] | Tensor
    mask: Tensor | None = None
    if isinstance(losses, Tensor):
        _check_stacked(losses, tasks)
        given = values = losses
    else:
        given = in_order = _in_order(losses, tasks, named)
        for name, loss in zip(tasks, in_order, strict=True):
            if loss is not None:
                _check_scalar(loss, name)
        values = torch.stack(_filled(in_order))
        if any(loss is None for loss in in_order):
            mask = torch.tensor([loss is not None for loss in in_order], device=values.device)
    if present is not None:
        asked = _mask(present, len(tasks), values.device)
        mask = asked if mask is None else asked & mask
        given = _drop(given, present)
    if values.dtype in (torch.float16, torch.bfloat16):
        values = values.float()
    if mask is not None:
        values = torch.where(mask, values, ABSENT)
    return values, mask, given


def _check_stacked(losses: Tensor, tasks: tuple[str, ...]) -> None:
    if losses.ndim != 1 or losses.shape[0] != len(tasks):
        raise ValueError(
            f"`losses` as one tensor must have shape [{len(tasks)}], one entry for each of the tasks "
            f"{_names(tasks)}; found shape {list(losses.shape)}."
        )
    if not losses.is_floating_point():
        raise TypeError(f"`losses` must hold floating-point numbers; found {losses.dtype}.")
    if torch.is_grad_enabled() and not losses.requires_grad:
        raise ValueError("`losses` must be attached to the model's graph; found a tensor that requires no gradient.")


def _in_order(losses: object, tasks: tuple[str, ...], named: bool) -> tuple[Tensor | None, ...]:
    if isinstance(losses, Mapping):
        if not named:
            raise ValueError(
                "`losses` given as a mapping needs the task names: build the balancer with "
                f"tasks={tuple(losses)!r} instead of num_tasks={len(tasks)}."
            )
        for name in losses:
            if name not in tasks:
                raise ValueError(f"`losses` has the unknown task {name!r}; {nearest(str(name), tasks)}")
        return tuple(losses.get(name) for name in tasks)
    if not isinstance(losses, Sequence) or isinstance(losses, (str, bytes)):
        raise TypeError(
            "`losses` must be a sequence of scalar tensors, a 1-D tensor or a mapping from task names to "
            f"scalar tensors; found {type(losses).__name__}."
        )
    if len(losses) != len(tasks):
        raise ValueError(
            f"`losses` must hold {len(tasks)} losses, one for each of the tasks {_names(tasks)}; found {len(losses)}."
        )
    return tuple(losses)


def _check_scalar(loss: object, name: str) -> None:
    if not isinstance(loss, Tensor):
        raise TypeError(
            f"the loss of task {name!r} must be a 0-dim tensor, or None if absent; found {type(loss).__name__}."
        )
    if loss.ndim != 0:
        raise ValueError(
            f"the loss of task {name!r} must be a scalar (0-dim tensor); found shape {list(loss.shape)}: "
            "reduce it, for instance with .mean()."
        )
    if not loss.is_floating_point():
        raise TypeError(f"the loss of task {name!r} must be a floating-point number; found {loss.dtype}.")
    if torch.is_grad_enabled() and not loss.requires_grad:
        raise ValueError(
            f"the loss of task {name!r} must be attached to the model's graph; found a tensor that requires "
            "no gradient (was it detached, or turned into a number?)."
        )


def _filled(given: tuple[Tensor | None, ...]) -> list[Tensor]:
    here = [loss for loss in given if loss is not None]
    if not here:
        raise ValueError("`losses` must have at least one task present; found every task absent.")
    dtype = here[0].dtype
    for loss in here[1:]:
        if loss.dtype != dtype:
            dtype = torch.promote_types(dtype, loss.dtype)
    hole = torch.full((), ABSENT, dtype=dtype, device=here[0].device)
    return [hole if loss is None else loss.to(dtype) for loss in given]


def _mask(present: Tensor | Sequence[bool], num_tasks: int, device: torch.device) -> Tensor:
    mask = torch.as_tensor(present, device=device)
    if mask.dtype != torch.bool or mask.shape != (num_tasks,):
        raise ValueError(
            f"`present` must be {num_tasks} booleans, one a task; found {mask.dtype} of shape {list(mask.shape)}."
        )
    return mask


def _drop(
    given: tuple[Tensor | None, ...] | Tensor, present: Tensor | Sequence[bool]
) -> tuple[Tensor | None, ...] | Tensor:
    """Forget the losses of tasks that `present` rules out, where that is known without asking the device."""
    if isinstance(given, Tensor) or isinstance(present, Tensor):
        return given
    return tuple(loss if here else None for loss, here in zip(given, present, strict=True))


def all_finite(values: Tensor) -> bool:
    """Whether every entry is finite, with one small reduction in the usual case."""
    return math.isfinite(values.sum().item()) or bool(torch.isfinite(values).all())


def nearest(name: str, known: Sequence[str]) -> str:
    """A closing sentence that names the nearest known name, or all of them."""
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known are {_names(known)}."


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:12])
    return shown if len(names) <= 12 else f"{shown}, ... ({len(names)} in all)"
