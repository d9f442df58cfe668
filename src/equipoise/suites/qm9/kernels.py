# ruff: noqa: ANN001, ANN202 (what Triton compiles is typed by Triton)
# mypy: disable-error-code="no-untyped-def, untyped-decorator, import-not-found, import-untyped"
"""The messages of a round as three Triton kernels, which keep everything between state and message on the chip.

A tile holds the molecules of one group that fit into 64 rows of atoms. With A_k the matrix of r_ijk over a tile
(symmetric, 0 between molecules), V_k the kernel's matrices, h the state and a the factor 1 / neighbours of a row:

    forward          m = a sum_k A_k (h V_k)
    backward         dh = sum_k A_k Q_k with Q_k = (a dm) V_k^T,   dA_k = Q_k h^T, summed at once to the edge weights
    kernel gradient  dV_k = sum over tiles (A_k h)^T (a dm)

A_k is made anew from distances and bonds wherever it is needed: two operations an entry are cheaper than reading it.
Sums have a fixed order, so that the same input gives the same bits.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 64
_KINDS = 132  # the layout of the kernel's columns; the last three are zeros and are left out
_USED = 129
_EDGE_ROWS = 5  # bonds of order 1 to 3, distance, constant: where each stands in the edge weights
_TYPES = {
    "float32": (tl.float32, "ieee"),
    "split": (tl.float32, "tf32x3"),
    "tf32": (tl.float32, "tf32"),
    "half": (tl.float16, "ieee"),
    "bf16": (tl.bfloat16, "ieee"),
}


class Tuning(NamedTuple):
    """What changes the speed and not the function (but the order of sums): programs, warps, stages, chunk."""

    programs: int = 264  # how many programs to aim for, by splitting sums
    forward_warps: int = 4
    forward_stages: int = 2
    backward_warps: int = 4
    backward_stages: int = 2
    kernel_warps: int = 4
    kernel_stages: int = 1


TUNING = Tuning()


@triton.jit
def _maps(pairs, tiles, tile, run, num_pairs, TILE: tl.constexpr):
    """Where a tile's rows are, its distances (0 where there is no edge) and its bonds, ``[64, 64]`` each."""
    first_row = tl.load(tiles + tile * 4)
    rows = tl.load(tiles + tile * 4 + 1)
    capacity = tl.load(tiles + tile * 4 + 2)
    first_pair = tl.load(tiles + tile * 4 + 3)
    i = tl.arange(0, TILE)[:, None]
    j = tl.arange(0, TILE)[None, :]
    owner = i // capacity
    same = (owner == j // capacity) & (i < rows) & (j < rows)
    place = first_pair + owner * capacity * capacity + (i - owner * capacity) * capacity + j % capacity
    packed = tl.load(pairs + run.to(tl.int64) * num_pairs + place, mask=same, other=0.0)
    bits = packed.to(tl.int32, bitcast=True)
    bond = bits & 3
    distance = (bits & -4).to(tl.float32, bitcast=True)
    return first_row, rows, distance, bond


@triton.jit
def _coefficients(edge, k, distance, bond, KINDS: tl.constexpr):
    """A_k of a tile: relu(U e + b) for every edge, 0 elsewhere."""
    single = tl.load(edge + k)
    double = tl.load(edge + KINDS + k)
    triple = tl.load(edge + 2 * KINDS + k)
    slope = tl.load(edge + 4 * KINDS + k)
    constant = tl.load(edge + 5 * KINDS + k)
    kind = tl.where(bond == 1, single, tl.where(bond == 2, double, tl.where(bond == 3, triple, 0.0)))
    value = kind + constant + distance * slope
    return tl.where(distance > 0, tl.maximum(value, 0.0), 0.0)


@triton.jit
def _forward(
    state, kernel, edge, pairs, inverse, tiles, out, num_rows, num_pairs, runs, per_split,
    TYPE: tl.constexpr, INPUT: tl.constexpr, KINDS: tl.constexpr, USED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    tile, split, run = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_row, rows, distance, bond = _maps(pairs, tiles, tile, run, num_pairs, TILE)
    i = tl.arange(0, TILE)
    c = tl.arange(0, TILE)
    there = (i < rows)[:, None]
    at = (run.to(tl.int64) * num_rows + first_row + i)[:, None] * TILE + c[None, :]
    h = tl.load(state + at, mask=there, other=0.0).to(TYPE)
    edge += run * 6 * KINDS
    kernel += run.to(tl.int64) * TILE * KINDS * TILE
    message = tl.zeros((TILE, TILE), tl.float32)  # transposed: [output, atom]
    matrix = i[:, None] * (KINDS * TILE) + c[None, :]
    for k in range(split * per_split, tl.minimum((split + 1) * per_split, USED)):
        v = tl.load(kernel + matrix + k * TILE).to(TYPE)
        projected = tl.dot(tl.trans(v), tl.trans(h), input_precision=INPUT).to(TYPE)
        a = _coefficients(edge, k, distance, bond, KINDS).to(TYPE)
        message = tl.dot(projected, a, message, input_precision=INPUT)
    share = tl.load(inverse + run.to(tl.int64) * num_rows + first_row + i, mask=i < rows, other=0.0)
    out += split.to(tl.int64) * runs * num_rows * TILE
    tl.store(out + at, tl.trans(message) * share[:, None], mask=there)


@triton.jit
def _gradient(grad, inverse, at, rows, first_row, run, num_rows, TILE: tl.constexpr):
    """The messages' gradient with the factor of the mean, brought into [-1, 1], and the unit it is measured in."""
    i = tl.arange(0, TILE)
    share = tl.load(inverse + run.to(tl.int64) * num_rows + first_row + i, mask=i < rows, other=0.0)
    dm = tl.load(grad + at, mask=(i < rows)[:, None], other=0.0) * share[:, None]
    unit = tl.max(tl.max(tl.abs(dm), 1), 0)
    unit = tl.where(unit > 0, unit, 1.0)
    return dm / unit, unit


@triton.jit
def _backward(
    grad, state, kernel, edge, pairs, inverse, tiles, out, out_edge, num_rows, num_pairs, runs, num_tiles, per_split,
    TYPE: tl.constexpr, INPUT: tl.constexpr, KINDS: tl.constexpr, USED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    tile, split, run = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_row, rows, distance, bond = _maps(pairs, tiles, tile, run, num_pairs, TILE)
    i = tl.arange(0, TILE)
    c = tl.arange(0, TILE)
    there = (i < rows)[:, None]
    at = (run.to(tl.int64) * num_rows + first_row + i)[:, None] * TILE + c[None, :]
    h = tl.load(state + at, mask=there, other=0.0).to(TYPE)
    dm, unit = _gradient(grad, inverse, at, rows, first_row, run, num_rows, TILE)
    dm = dm.to(TYPE)
    edge += run * 6 * KINDS
    kernel += run.to(tl.int64) * TILE * KINDS * TILE
    out_edge += (run * num_tiles + tile) * 5 * KINDS
    dh = tl.zeros((TILE, TILE), tl.float32)  # transposed: [input, atom]
    matrix = i[:, None] * (KINDS * TILE) + c[None, :]
    for k in range(split * per_split, tl.minimum((split + 1) * per_split, USED)):
        v = tl.load(kernel + matrix + k * TILE).to(TYPE)
        q = tl.dot(v, tl.trans(dm), input_precision=INPUT).to(TYPE)
        a = _coefficients(edge, k, distance, bond, KINDS)
        dh = tl.dot(q, a.to(TYPE), dh, input_precision=INPUT)
        da = tl.where(a > 0, tl.dot(h, q, input_precision=INPUT), 0.0)
        tl.store(out_edge + k, unit * tl.sum(tl.sum(tl.where(bond == 1, da, 0.0), 1), 0))
        tl.store(out_edge + KINDS + k, unit * tl.sum(tl.sum(tl.where(bond == 2, da, 0.0), 1), 0))
        tl.store(out_edge + 2 * KINDS + k, unit * tl.sum(tl.sum(tl.where(bond == 3, da, 0.0), 1), 0))
        tl.store(out_edge + 3 * KINDS + k, unit * tl.sum(tl.sum(da * distance, 1), 0))
        tl.store(out_edge + 4 * KINDS + k, unit * tl.sum(tl.sum(da, 1), 0))
    out += split.to(tl.int64) * runs * num_rows * TILE
    tl.store(out + at, tl.trans(dh) * unit, mask=there)


@triton.jit
def _add(
    dv, k, unit, h, dm, edge, distance, bond, TYPE: tl.constexpr, INPUT: tl.constexpr, KINDS: tl.constexpr
):
    """One tile's part of the gradient of V_k, ``[input, output]``."""
    a = _coefficients(edge, k, distance, bond, KINDS).to(TYPE)
    gathered = tl.dot(tl.trans(h), a, input_precision=INPUT).to(TYPE)  # (A_k h), transposed
    return dv + unit * tl.dot(gathered, dm, input_precision=INPUT)


@triton.jit
def _kernel_gradient(
    grad, state, edge, pairs, inverse, tiles, out, num_rows, num_pairs, runs, num_tiles, per_split,
    TYPE: tl.constexpr, INPUT: tl.constexpr, KINDS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    chunk, split, run = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i = tl.arange(0, TILE)
    c = tl.arange(0, TILE)
    edge += run * 6 * KINDS
    k = chunk * 4
    dv0 = tl.zeros((TILE, TILE), tl.float32)
    dv1 = tl.zeros((TILE, TILE), tl.float32)
    dv2 = tl.zeros((TILE, TILE), tl.float32)
    dv3 = tl.zeros((TILE, TILE), tl.float32)
    for tile in range(split * per_split, tl.minimum((split + 1) * per_split, num_tiles)):
        first_row, rows, distance, bond = _maps(pairs, tiles, tile, run, num_pairs, TILE)
        at = (run.to(tl.int64) * num_rows + first_row + i)[:, None] * TILE + c[None, :]
        h = tl.load(state + at, mask=(i < rows)[:, None], other=0.0).to(TYPE)
        dm, unit = _gradient(grad, inverse, at, rows, first_row, run, num_rows, TILE)
        dm = dm.to(TYPE)
        dv0 = _add(dv0, k, unit, h, dm, edge, distance, bond, TYPE, INPUT, KINDS)
        dv1 = _add(dv1, k + 1, unit, h, dm, edge, distance, bond, TYPE, INPUT, KINDS)
        dv2 = _add(dv2, k + 2, unit, h, dm, edge, distance, bond, TYPE, INPUT, KINDS)
        dv3 = _add(dv3, k + 3, unit, h, dm, edge, distance, bond, TYPE, INPUT, KINDS)
    out += (split * runs + run).to(tl.int64) * TILE * KINDS * TILE
    matrix = out + i[:, None] * (KINDS * TILE) + c[None, :] + k * TILE
    tl.store(matrix, dv0)
    tl.store(matrix + TILE, dv1)
    tl.store(matrix + 2 * TILE, dv2)
    tl.store(matrix + 3 * TILE, dv3)


def forward(
    state: Tensor, kernel: Tensor, edge: Tensor, pairs: Tensor, inverse: Tensor, tiles: Tensor, precision: str,
    tuning: Tuning = TUNING,
) -> Tensor:  # fmt: skip
    """The mean of the neighbours' messages, ``[R, rows, 64]``.

    state ``[R, rows, 64]``; kernel ``[R, 64, 132 * 64]``, of two bytes an entry if the precision is; edge
    ``[R, 6, 132]``; pairs ``[R, P]``: distances whose last two bits are the bond's order; inverse ``[R, rows]``:
    1 / neighbours; tiles ``[T, 4]``.
    """
    runs, rows, _ = state.shape
    splits = _splits(len(tiles) * runs, _USED, tuning)
    per_split = triton.cdiv(_USED, splits)
    out = state.new_empty(splits, runs, rows, TILE)
    type_, input_ = _TYPES[precision]
    _forward[(len(tiles), splits, runs)](
        state, kernel, edge, pairs, inverse, tiles, out, rows, pairs.shape[1], runs, per_split,
        TYPE=type_, INPUT=input_, KINDS=_KINDS, USED=_USED, TILE=TILE,
        num_warps=tuning.forward_warps, num_stages=tuning.forward_stages,
    )  # fmt: skip
    return out[0] if splits == 1 else out.sum(0)


def backward(
    grad: Tensor, state: Tensor, kernel: Tensor, edge: Tensor, pairs: Tensor, inverse: Tensor, tiles: Tensor,
    precision: str, tuning: Tuning = TUNING,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of state, kernel and edge weights."""
    runs, rows, _ = state.shape
    num_tiles, num_pairs = len(tiles), pairs.shape[1]
    type_, input_ = _TYPES[precision]
    common = {"TYPE": type_, "INPUT": input_, "KINDS": _KINDS, "TILE": TILE}
    splits = _splits(num_tiles * runs, _USED, tuning)
    out = state.new_empty(splits, runs, rows, TILE)
    out_edge = state.new_zeros(runs, num_tiles, _EDGE_ROWS, _KINDS)
    _backward[(num_tiles, splits, runs)](
        grad, state, kernel, edge, pairs, inverse, tiles, out, out_edge, rows, num_pairs, runs, num_tiles,
        triton.cdiv(_USED, splits), **common, USED=_USED,
        num_warps=tuning.backward_warps, num_stages=tuning.backward_stages,
    )  # fmt: skip
    chunks = triton.cdiv(_USED, 4)
    kernel_splits = _splits(chunks * runs, num_tiles, tuning)
    out_kernel = state.new_empty(kernel_splits, *kernel.shape)
    _kernel_gradient[(chunks, kernel_splits, runs)](
        grad, state, edge, pairs, inverse, tiles, out_kernel, rows, num_pairs, runs, num_tiles,
        triton.cdiv(num_tiles, kernel_splits), **common,
        num_warps=tuning.kernel_warps, num_stages=tuning.kernel_stages,
    )  # fmt: skip
    edge_sum = out_edge.sum(1)
    d_edge = torch.cat([edge_sum[:, :3], torch.zeros_like(edge_sum[:, :1]), edge_sum[:, 3:]], dim=1)
    return (
        out[0] if splits == 1 else out.sum(0),
        out_kernel[0] if kernel_splits == 1 else out_kernel.sum(0),
        d_edge,
    )


def _splits(programs: int, most: int, tuning: Tuning) -> int:
    """In how many parts to sum, so that there are programs enough to fill the chip."""
    return max(1, min(most, tuning.programs // programs))
