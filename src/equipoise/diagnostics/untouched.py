"""Running a model once more without leaving a trace on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

T = TypeVar("T")


@contextmanager
def untouched() -> Iterator[None]:
    """Undoes what modules that run inside do to their buffers (BatchNorm's statistics)."""
    seen: set[nn.Module] = set()
    before: list[tuple[Tensor, Tensor]] = []

    def keep(module: nn.Module, inputs: object) -> None:  # noqa: ARG001 (hook signature)
        if module not in seen:
            seen.add(module)
            before.extend((buffer, buffer.clone()) for buffer in module.buffers(recurse=False))

    handle = register_module_forward_pre_hook(keep)
    try:
        yield
    finally:
        handle.remove()
        for buffer, value in before:
            buffer.data.copy_(value)  # unseen by autograd: a graph that holds the buffer stays usable


def same_draws(call: Callable[[], T]) -> T:
    """Call with the random numbers that come next, which then still do: twice in a row draws the same."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=devices):
        return call()
