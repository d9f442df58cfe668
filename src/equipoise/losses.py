"""Reading what a caller hands over as losses: a sequence, a tensor or a mapping, some tasks perhaps absent."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeAlias

import torch
from torch import Tensor

Losses: TypeAlias = "Sequence[Tensor | None] | Tensor | Mapping[str, Tensor | None]"

SMALLEST = 1e-30  # a loss below it has no logarithm or quotient to learn from: 1 / l is near what float32 holds
FLOAT32_MAX = torch.finfo(torch.float32).max
LARGEST = 1e30  # of an option that multiplies losses
ABSENT = 1.0  # what an absent task's loss reads as: finite, positive, and masked out of every result


class OutOfRange(ValueError):
    """Finite losses and gradients whose result is not: `on_nonfinite="skip"` drops the step."""


class Batch(NamedTuple):
    """One step's losses, read, checked and joined over the ranks.

    losses: [K], at least float32; an absent task holds 1. Attached to the graph.
    present: bool [K], or None when no task is absent.
    ok: bool scalar on the device when bad losses could not raise here, else None (known to be good).
    given: the caller's own scalars (None where absent), or the stacked tensor they came in.
    factor: [K], by how much the local gradient of each task counts in the joined loss; None means 1.
    pending: state that `keep` was given, written by `commit` when the step has come to its end; None: at once.
    """

    losses: Tensor
    present: Tensor | None
    ok: Tensor | None
    given: tuple[Tensor | None, ...] | Tensor
    factor: Tensor | None
    pending: list[tuple[Tensor, Tensor]] | None = None

    @property
    def values(self) -> Tensor:
        """The losses as numbers, out of the graph."""
        return self.losses.detach()

    @property
    def num_present(self) -> Tensor | int:
        """How many tasks are present."""
        return self.losses.shape[-1] if self.present is None else self.present.sum()

    def only(self, x: Tensor, absent: float = 0.0) -> Tensor:
        """`x` with `absent` in the places of absent tasks."""
        return x if self.present is None else torch.where(self.present, x, absent)

    def keep(self, old: Tensor, new: Tensor, *, per_task: bool = False) -> None:
        """Write `new` into the state `old`, unless this step is bad; `per_task` leaves absent tasks' entries."""
        if per_task and self.present is not None:
            new = torch.where(self.present, new, old)
        if self.ok is not None:
            new = torch.where(self.ok, new, old)
        if new.requires_grad:  # the state belongs to no graph
            new = new.detach()
        if self.pending is None:
            old.copy_(new)
        else:
            self.pending.append((old, new))

    def commit(self) -> None:
        """Write what is pending, all at once; a step that fails before leaves the state as it was."""
        if self.pending:
            for old, new in self.pending:
                old.copy_(new)
            self.pending.clear()


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
        in_order = _in_order(losses, tasks, named)
        given = tuple(in_order)
        values, absent = _stack(in_order, tasks)
        if absent:
            mask = _flags([loss is not None for loss in in_order], values.device)
    if present is not None:
        asked = _mask(present, len(tasks), values.device)
        mask = asked if mask is None else asked & mask
    if values.dtype in (torch.float16, torch.bfloat16):
        values = values.float()
    if mask is not None:
        values = torch.where(mask, values, ABSENT)
    return values, mask, given


def read_any(
    losses: Losses, present: Tensor | Sequence[bool] | None = None
) -> tuple[tuple[str, ...], Tensor, Tensor | None, tuple[Tensor | None, ...] | Tensor]:
    """The tasks' names as the losses themselves tell them, and what `read` returns."""
    if isinstance(losses, Mapping):
        names, named = task_names(None, list(losses))
    else:
        count = losses.numel() if isinstance(losses, Tensor) else len(losses) if isinstance(losses, Sequence) else 1
        names, named = task_names(max(1, count), None)
    return names, *read(losses, names, named, present)


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


def _in_order(losses: object, tasks: tuple[str, ...], named: bool) -> Sequence[Tensor | None]:
    if isinstance(losses, (list, tuple)) and len(losses) == len(tasks):
        return losses  # the usual case, before questions that cost more
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


def _stack(given: Sequence[Tensor | None], tasks: tuple[str, ...]) -> tuple[Tensor, bool]:
    """The losses as one tensor, holes filled, and whether there are any; one cheap look at each loss."""
    here = []
    free = not torch.is_grad_enabled()
    for i, loss in enumerate(given):
        if loss is None:
            continue
        if not (
            isinstance(loss, Tensor) and loss.ndim == 0 and (free or loss.requires_grad) and loss.is_floating_point()
        ):
            _explain(loss, tasks[i])
        here.append(loss)
    if not here:
        raise ValueError("`losses` must have at least one task present; found every task absent.")
    if len(here) == len(given):
        return torch.stack(here), False
    hole = torch.full_like(here[0].detach(), ABSENT)
    return torch.stack([hole if loss is None else loss for loss in given]), True


def _explain(loss: Any, name: str) -> NoReturn:
    """Say what is wrong with a loss that did not pass."""
    subject = f"the loss of task {name!r} must be"
    if not isinstance(loss, Tensor):
        raise TypeError(f"{subject} a 0-dim tensor, or None if absent; found {type(loss).__name__}.")
    if loss.ndim != 0:
        raise ValueError(
            f"{subject} a scalar (0-dim tensor); found shape {list(loss.shape)}: reduce it, for instance with .mean()."
        )
    if not loss.is_floating_point():
        raise TypeError(f"{subject} a floating-point number; found {loss.dtype}.")
    raise ValueError(
        f"{subject} attached to the model's graph; found a tensor that requires no gradient "
        "(was it detached, or turned into a number?)."
    )


def _flags(flags: Sequence[bool], device: torch.device) -> Tensor:
    """Booleans on the device without a copy from the host, which a GPU would wait for."""
    yes = torch.ones((), dtype=torch.bool, device=device)
    no = torch.zeros((), dtype=torch.bool, device=device)
    return torch.stack([yes if flag else no for flag in flags])


def _mask(present: Tensor | Sequence[bool], num_tasks: int, device: torch.device) -> Tensor:
    if not isinstance(present, Tensor) and all(isinstance(flag, bool) for flag in present) and len(present):
        mask = _flags(present, device)
    else:
        mask = torch.as_tensor(present, device=device)
    if mask.dtype != torch.bool or mask.shape != (num_tasks,):
        raise ValueError(
            f"`present` must be {num_tasks} booleans, one a task; found {mask.dtype} of shape {list(mask.shape)}."
        )
    return mask


def label_counts(counts: Tensor | Sequence[float] | None, values: Tensor) -> Tensor | None:
    """`counts` as a tensor like the losses."""
    if counts is None:
        return None
    labels = torch.as_tensor(counts, device=values.device, dtype=values.dtype)
    if labels.shape != values.shape:
        raise ValueError(
            f"`counts` must hold {values.shape[0]} numbers, the labels of each task; found shape {list(labels.shape)}."
        )
    return labels


def all_finite(values: Tensor) -> bool:
    """Whether every entry is finite, with one small reduction in the usual case."""
    return math.isfinite(values.sum().item()) or bool(torch.isfinite(values).all())


def alike(x: Tensor, other: Tensor) -> Tensor:
    """`x` in the type of `other`, on one device; the question costs less than `.to`, whose answer is mostly `x`."""
    return x if x.dtype == other.dtype else x.to(other.dtype)


def within_range(numbers: list[float]) -> bool:
    """Whether float32 surely holds every number, and their sum; not where one is NaN.

    In plain Python: between the matrix products of a step the first call of each further operator of torch costs
    ten times what it costs in a loop of nothing else (15 us instead of 1.5), since its code left the caches.
    """
    return sum(map(abs, numbers)) <= FLOAT32_MAX


def nearest(name: str, known: Sequence[str]) -> str:
    """A closing sentence that names the nearest known name, or all of them."""
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known are {_names(known)}."


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:12])
    return shown if len(names) <= 12 else f"{shown}, ... ({len(names)} in all)"


def task_names(num_tasks: int | None, tasks: Sequence[str] | None) -> tuple[tuple[str, ...], bool]:
    """The tasks' names, and whether the caller gave them."""
    if tasks is None:
        if isinstance(num_tasks, bool) or not isinstance(num_tasks, int) or num_tasks < 1:
            raise ValueError(
                f"`num_tasks` must be a whole number of at least 1 (or give `tasks`); found {num_tasks!r}."
            )
        return tuple(str(i) for i in range(num_tasks)), False
    names = tuple(tasks)
    if isinstance(tasks, str) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"`tasks` must be a sequence of at least one name; found {tasks!r}.")
    if len(set(names)) != len(names):
        raise ValueError(f"`tasks` must be distinct names; found {names!r}.")
    if num_tasks is not None and num_tasks != len(names):
        raise ValueError(f"`num_tasks` must agree with `tasks`; found {num_tasks} and {len(names)} names.")
    return names, True
