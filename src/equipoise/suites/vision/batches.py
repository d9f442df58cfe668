"""Batches by index: the rows stay packed, on the device where they fit, and an epoch is a seeded order of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Made = TypeVar("Made")

_SHARE_OF_MEMORY = 0.4  # of a GPU's free memory that data may take


class Rows:
    """Arrays with one row an example: on the GPU if they fit there, else mapped from disk and sent a batch at a time.

    >>> rows = Rows({"x": np.arange(6, dtype=np.uint8).reshape(3, 2)}, torch.device("cpu"))
    >>> rows.take(torch.tensor([2, 0]))["x"].tolist()
    [[4, 5], [0, 1]]
    """

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]], device: torch.device) -> None:
        self.device = device
        self.tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        size = sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())
        self.resident = device.type == "cuda" and size < _SHARE_OF_MEMORY * torch.cuda.mem_get_info(device)[0]
        if self.resident:
            self.tensors = {name: tensor.to(device) for name, tensor in self.tensors.items()}

    def place(self, order: Tensor) -> Tensor:
        """An epoch's order where the rows are, so that it is sent once and not a batch at a time."""
        return order.to(self.device) if self.resident else order

    def take(self, index: Tensor) -> dict[str, Tensor]:
        """The rows at `index`, which lies where `place` puts it; the rows are on the device."""
        found = {name: tensor.index_select(0, index) for name, tensor in self.tensors.items()}
        if self.resident or self.device.type == "cpu":
            return found
        if self.device.type == "cuda":
            found = {name: tensor.pin_memory() for name, tensor in found.items()}
        return {name: tensor.to(self.device, non_blocking=True) for name, tensor in found.items()}


class Batches(Generic[Made]):
    """The batches of one pass, made as they are asked for; has a length.

    >>> batches = Batches(torch.arange(5), 2, lambda index: index.tolist(), whole=True)
    >>> len(batches), list(batches)
    (2, [[0, 1], [2, 3]])
    """

    def __init__(self, order: Tensor, size: int, make: Callable[[Tensor], Made], *, whole: bool) -> None:
        """`whole` drops a last batch of fewer than `size` rows, unless it is the only one."""
        self.chunks = list(torch.split(order, size))
        if whole and len(self.chunks) > 1 and len(self.chunks[-1]) < size:
            self.chunks.pop()
        self.make = make

    def __len__(self) -> int:
        return len(self.chunks)

    def __iter__(self) -> Iterator[Made]:
        for chunk in self.chunks:
            yield self.make(chunk)


def generator(*numbers: int) -> torch.Generator:
    """A random generator that follows from whole numbers, such as a seed and an epoch.

    >>> torch.equal(torch.rand(3, generator=generator(1, 2)), torch.rand(3, generator=generator(1, 2)))
    True
    """
    state = np.random.SeedSequence(numbers).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0] >> 1))


def shuffled(index: Tensor, seed: int, epoch: int) -> Tensor:
    """The order of an epoch: the same for the same seed and epoch, whatever ran before."""
    return index[torch.randperm(len(index), generator=generator(seed, epoch))]
