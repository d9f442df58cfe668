# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-call"
"""The Triton kernels of a round's messages, launched: how sums are split, and in which arithmetic."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import kernels

TILE = 64
FEATURES = 5  # b, b^2, b^3, distance, one
_KINDS = 132  # of the kernel's columns; the last three are zeros and are left out
_USED = 129
_TYPES = {
    "float32": (tl.float32, "ieee", torch.float32),
    "split": (tl.float32, "tf32x3", torch.float32),
    "tf32": (tl.float32, "tf32", torch.float32),
    "half": (tl.float16, "ieee", torch.float16),
    "bf16": (tl.bfloat16, "ieee", torch.bfloat16),
}


class Tuning(NamedTuple):
    """What changes the speed and not the function (but the order of sums)."""

    programs: int = 264  # how many programs to aim for, by splitting sums
    forward_warps: int = 4
    forward_stages: int = 2
    backward_warps: int = 4
    backward_stages: int = 2
    kernel_warps: int = 8
    kernel_stages: int = 2


tuning = Tuning()  # in force; the benchmarks try others


def spread(pairs: Tensor, tiles: Tensor) -> Tensor:
    """The pairs ``[R, P]`` (distances whose last two bits are the bond's order) as tiles ``[R, T, 64, 64]``."""
    runs, num_pairs = pairs.shape
    maps = pairs.new_empty(runs, len(tiles), TILE, TILE)
    kernels.spread[(len(tiles), runs)](pairs.contiguous(), tiles, maps, num_pairs, len(tiles), TILE=TILE)
    return maps


def forward(
    state: Tensor, kernel: Tensor, edge: Tensor, maps: Tensor, inverse: Tensor, tiles: Tensor, precision: str
) -> Tensor:
    """The mean of the neighbours' messages, ``[R, rows, 64]``.

    state ``[R, rows, 64]``; kernel ``[R, 64, 132 * 64]``, of two bytes an entry if the precision is; edge
    ``[R, 5, 132]``, the weights of each of the features; inverse ``[R, rows]``: 1 / neighbours; tiles ``[T, 3, 64]``.
    """
    type_, input_, dtype = _TYPES[precision]
    edge, inverse = edge.contiguous(), inverse.contiguous()
    runs, rows, _ = state.shape
    splits = _splits(len(tiles) * runs, _USED)
    out = torch.empty(splits, runs, rows, TILE, device=state.device)
    kernels.forward[(len(tiles), splits, runs)](
        state.to(dtype).contiguous(), kernel, edge, maps, inverse, tiles, out, rows, len(tiles), runs,
        triton.cdiv(_USED, splits), TYPE=type_, INPUT=input_, KINDS=_KINDS, USED=_USED, TILE=TILE,
        num_warps=tuning.forward_warps, num_stages=tuning.forward_stages,
    )  # fmt: skip
    return out[0] if splits == 1 else out.sum(0)


def backward(
    grad: Tensor, state: Tensor, kernel: Tensor, edge: Tensor, maps: Tensor, inverse: Tensor, tiles: Tensor,
    precision: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of state, kernel and edge weights."""
    type_, input_, dtype = _TYPES[precision]
    edge = edge.contiguous()
    runs, rows, _ = state.shape
    num_tiles = len(tiles)
    low = state.to(dtype).contiguous()
    dm, units = torch.empty_like(low), state.new_empty(runs, num_tiles)
    kernels.prepare[(num_tiles, runs)](
        grad.contiguous(), inverse.contiguous(), tiles, dm, units, rows, num_tiles, TYPE=type_, TILE=TILE
    )
    common = {"TYPE": type_, "INPUT": input_, "KINDS": _KINDS, "TILE": TILE}
    splits = _splits(num_tiles * runs, _USED)
    out = torch.empty(splits, runs, rows, TILE, device=state.device)
    out_edge = edge.new_zeros(runs, num_tiles, FEATURES, _KINDS)
    kernels.backward[(num_tiles, splits, runs)](
        dm, units, low, kernel, edge, maps, tiles, out, out_edge, rows, num_tiles, runs,
        triton.cdiv(_USED, splits), **common, USED=_USED,
        num_warps=tuning.backward_warps, num_stages=tuning.backward_stages,
    )  # fmt: skip
    chunks = triton.cdiv(_USED, 4)
    kernel_splits = _splits(chunks * runs, num_tiles)
    out_kernel = torch.empty(kernel_splits, *kernel.shape, device=state.device)
    kernels.kernel_gradient[(chunks, kernel_splits, runs)](
        dm, units, low, edge, maps, tiles, out_kernel, rows, num_tiles, runs,
        triton.cdiv(num_tiles, kernel_splits), **common,
        num_warps=tuning.kernel_warps, num_stages=tuning.kernel_stages,
    )  # fmt: skip
    return (
        out[0] if splits == 1 else out.sum(0),
        out_kernel[0] if kernel_splits == 1 else out_kernel.sum(0),
        out_edge.sum(1),
    )


def _splits(programs: int, most: int) -> int:
    """In how many parts to sum, so that there are programs enough to fill the chip."""
    return max(1, min(most, tuning.programs // programs))
