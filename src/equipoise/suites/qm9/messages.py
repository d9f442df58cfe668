"""The fused messages (kernels.py, launch.py) as an operator that autograd and torch.compile know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

TILE_ROWS = 64
_TWO_BYTE = {"half": torch.float16, "bf16": torch.bfloat16}


def make_tiles(groups: Sequence[tuple[int, int]]) -> npt.NDArray[np.int32]:
    """The molecules of a layout's groups, as many in a tile of 64 places as fit, ``[T, 3, 64]``.

    For each place its row of the batch (-1 if the place is empty), the place where its molecule begins, and where the
    row's pairs begin.

    >>> tiles = make_tiles([(2, 20), (1, 24)])
    >>> tiles.shape, tiles[0, 0, [0, 23, 24, 44, 63]].tolist(), tiles[0, 1, [0, 23, 24, 44, 63]].tolist()
    ((1, 3, 64), [40, 63, 0, 20, 39], [0, 0, 24, 44, 44])
    """
    left: dict[int, list[tuple[int, int]]] = {}  # by capacity, where the rows and the pairs of molecules begin
    row = pair = 0
    for count, capacity in groups:
        for _ in range(count):
            left.setdefault(capacity, []).append((row, pair))
            row, pair = row + capacity, pair + capacity**2
    tiles = []
    while any(left.values()):
        tile = np.full((3, TILE_ROWS), -1, dtype=np.int32)
        place = 0
        for capacity in _fullest({capacity: len(waiting) for capacity, waiting in left.items()}):
            row, pair = left[capacity].pop(0)
            atoms = np.arange(capacity)
            tile[:, place : place + capacity] = row + atoms, np.full(capacity, place), pair + atoms * capacity
            place += capacity
        tiles.append(tile)
    return np.stack(tiles)


def _fullest(waiting: dict[int, int]) -> list[int]:
    """The largest capacity that waits and those that leave the fewest of 64 places empty beside it."""
    largest = max(capacity for capacity, count in waiting.items() if count)
    rest = {**waiting, largest: waiting[largest] - 1}
    best: tuple[int, list[int]] = (TILE_ROWS + 1, [])

    def fill(room: int, chosen: list[int]) -> None:
        nonlocal best
        if room < best[0]:
            best = (room, chosen)
        for capacity, count in rest.items():
            if capacity <= min(room, chosen[-1]) and chosen[1:].count(capacity) < count:
                fill(room - capacity, [*chosen, capacity])

    fill(TILE_ROWS - largest, [largest])
    return best[1]


def spread(pairs: Tensor, tiles: Tensor) -> Tensor:
    """The pairs of a batch as the tiles that `fused_messages` works on, ``[R, T, 64, 64]``."""
    maps: Tensor = _spread(pairs, tiles)
    return maps


def fused_messages(
    state: Tensor, kernel: Tensor, edge: Tensor, maps: Tensor, inverse: Tensor, tiles: Tensor, precision: str
) -> Tensor:
    """The mean of the neighbours' messages, ``[R, rows, 64]``.

    state ``[R, rows, 64]``; kernel ``[R, 64, 132 * 64]``; edge ``[R, 6, 132]``; maps from `spread`; inverse
    ``[R, rows]``: 1 / neighbours; tiles ``[T, 3, 64]`` from `make_tiles`.
    """
    factors = kernel.detach().to(_TWO_BYTE.get(precision, torch.float32)).contiguous()
    out: Tensor = _messages(state, kernel, factors, _by_feature(edge), maps, inverse, tiles, precision)
    return out


def _by_feature(edge: Tensor) -> Tensor:
    """The edge weights of b, b^2, b^3, distance and one, ``[R, 5, 132]``.

    The polynomial in the bond's order b that is 0 without a bond and takes the classes' weights at 1, 2 and 3.
    """
    single, double, triple, _, distance, one = edge.unbind(1)
    second, third = double - 2 * single, triple - 3 * double + 3 * single
    linear = single - second / 2 + third / 3
    return torch.stack([linear, (second - third) / 2, third / 6, distance, one], dim=1)


@torch.library.custom_op("equipoise::qm9_spread", mutates_args=())
def _spread(pairs: Tensor, tiles: Tensor) -> Tensor:
    from . import launch  # needs triton

    return launch.spread(pairs, tiles)


@_spread.register_fake
def _(pairs: Tensor, tiles: Tensor) -> Tensor:
    return pairs.new_empty(len(pairs), len(tiles), TILE_ROWS, TILE_ROWS)


@torch.library.custom_op("equipoise::qm9_messages", mutates_args=())
def _messages(
    state: Tensor,
    kernel: Tensor,  # for its gradient  # noqa: ARG001
    factors: Tensor,  # the same in the type it is multiplied in
    edge: Tensor,
    maps: Tensor,
    inverse: Tensor,
    tiles: Tensor,
    precision: str,
) -> Tensor:
    from . import launch

    return launch.forward(state, factors, edge, maps, inverse, tiles, precision)


@_messages.register_fake
def _(state: Tensor, *_others: Any) -> Tensor:
    return torch.empty_like(state)


@torch.library.custom_op("equipoise::qm9_messages_backward", mutates_args=())
def _messages_backward(
    grad: Tensor,
    state: Tensor,
    factors: Tensor,
    edge: Tensor,
    maps: Tensor,
    inverse: Tensor,
    tiles: Tensor,
    precision: str,
) -> tuple[Tensor, Tensor, Tensor]:
    from . import launch

    return launch.backward(grad, state, factors, edge, maps, inverse, tiles, precision)


@_messages_backward.register_fake
def _(grad: Tensor, state: Tensor, factors: Tensor, edge: Tensor, *_others: Any) -> tuple[Tensor, Tensor, Tensor]:  # noqa: ARG001
    return torch.empty_like(state), torch.empty_like(factors, dtype=torch.float32), torch.empty_like(edge)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    state, _, factors, edge, maps, inverse, tiles, ctx.precision = inputs
    ctx.save_for_backward(state, factors, edge, maps, inverse, tiles)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    d_state, d_kernel, d_edge = _messages_backward(grad, *ctx.saved_tensors, ctx.precision)
    return d_state, d_kernel, None, d_edge, None, None, None, None


_messages.register_autograd(_backward, setup_context=_save)
