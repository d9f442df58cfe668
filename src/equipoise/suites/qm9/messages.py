"""The fused messages (kernels.py) as an operator that autograd and torch.compile know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

TILE_ROWS = 64
_TWO_BYTE = {"half": torch.float16, "bf16": torch.bfloat16}


def make_tiles(groups: Sequence[tuple[int, int]]) -> list[tuple[int, int, int, int]]:
    """Molecules of a group, as many as fit into 64 rows: first row, rows, the capacity of each, and first pair.

    >>> make_tiles([(5, 20)])
    [(0, 60, 20, 0), (60, 40, 20, 1200)]
    """
    tiles = []
    row = pair = 0
    for count, capacity in groups:
        for start in range(0, count, TILE_ROWS // capacity):
            here = min(TILE_ROWS // capacity, count - start)
            tiles.append((row, here * capacity, capacity, pair))
            row += here * capacity
            pair += here * capacity * capacity
    return tiles


def spread(pairs: Tensor, tiles: Tensor) -> Tensor:
    """The pairs of a batch as the tiles that `fused_messages` works on, ``[R, T, 64, 64]``."""
    maps: Tensor = _spread(pairs, tiles)
    return maps


def fused_messages(
    state: Tensor, kernel: Tensor, edge: Tensor, maps: Tensor, inverse: Tensor, tiles: Tensor, precision: str
) -> Tensor:
    """The mean of the neighbours' messages, ``[R, rows, 64]``.

    state ``[R, rows, 64]``; kernel ``[R, 64, 132 * 64]``; edge ``[R, 6, 132]``; maps from `spread`; inverse
    ``[R, rows]``: 1 / neighbours; tiles ``[T, 4]`` from `make_tiles`.
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
    from . import kernels  # needs triton

    return kernels.spread(pairs, tiles)


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
    from . import kernels

    return kernels.forward(state, factors, edge, maps, inverse, tiles, precision)


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
    from . import kernels

    return kernels.backward(grad, state, factors, edge, maps, inverse, tiles, precision)


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
