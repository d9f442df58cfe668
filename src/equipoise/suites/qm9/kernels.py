# ruff: noqa: ANN001, ANN201, ANN202 (what Triton compiles is typed by Triton)
# mypy: disable-error-code="no-untyped-def, untyped-decorator, import-not-found, import-untyped"
"""The messages of a round as Triton kernels, which keep everything between state and message on the chip.

A tile has 64 places for atoms, taken by whole molecules; its table says which row of the batch is at each place. With
A_k the matrix of r_ijk over a tile (symmetric, 0 between molecules), V_k the kernel's matrices, h the state and dm the
message's gradient, both as the mean's factor 1 / neighbours makes them:

    forward          m = sum_k A_k (h V_k)
    backward         dh = sum_k A_k Q_k with Q_k = dm V_k^T,   dA_k = Q_k h^T, summed at once to the edge weights
    kernel gradient  dV_k = sum over tiles (A_k h)^T dm

A_k is made anew from distances and bonds wherever it is needed: five operations an entry, which is cheaper than
reading it. The order b of the bond counts by a polynomial through its three values, so that no branch is needed.
Sums have a fixed order: the same input gives the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _rows(tiles, tile, run, num_rows, TILE: tl.constexpr):
    """The rows at a tile's places, over all runs, and whether there is one."""
    row = tl.load(tiles + tile * 3 * TILE + tl.arange(0, TILE))
    return run.to(tl.int64) * num_rows + row, row >= 0


@triton.jit
def spread(pairs, tiles, maps, num_pairs, num_tiles, TILE: tl.constexpr):
    """A tile's distances with the bonds in their last two bits, ``[64, 64]``; NaN where there is no edge."""
    tile, run = tl.program_id(0), tl.program_id(1)
    i = tl.arange(0, TILE)[:, None]
    j = tl.arange(0, TILE)[None, :]
    molecule = tiles + tile * 3 * TILE + TILE
    begins = tl.load(molecule + i)
    same = (begins == tl.load(molecule + j)) & (begins >= 0)
    place = tl.load(molecule + TILE + i) + j - begins
    packed = tl.load(pairs + run.to(tl.int64) * num_pairs + place, mask=same, other=0.0)
    packed = tl.where(packed > 0, packed, float("nan"))
    tl.store(maps + (run * num_tiles + tile).to(tl.int64) * TILE * TILE + i * TILE + j, packed)


@triton.jit
def prepare(grad, inverse, tiles, out, units, num_rows, num_tiles, TYPE: tl.constexpr, TILE: tl.constexpr):
    """A tile's message gradients with the factor of the mean, in units of their largest, and that unit."""
    tile, run = tl.program_id(0), tl.program_id(1)
    row, taken = _rows(tiles, tile, run, num_rows, TILE)
    at = row[:, None] * TILE + tl.arange(0, TILE)[None, :]
    there = taken[:, None]
    dm = tl.load(grad + at, mask=there, other=0.0) * tl.load(inverse + row, mask=taken, other=0.0)[:, None]
    unit = tl.max(tl.max(tl.abs(dm), 1), 0)
    unit = tl.where(unit > 0, unit, 1.0)
    tl.store(out + at, (dm / unit).to(TYPE), mask=there)
    tl.store(units + run * num_tiles + tile, unit)


@triton.jit
def _edges(maps, tile, run, num_tiles, TILE: tl.constexpr):
    """Distance and order of the bond of every entry of a tile; the distance is NaN where there is no edge."""
    i = tl.arange(0, TILE)[:, None]
    j = tl.arange(0, TILE)[None, :]
    distance = tl.load(maps + (run * num_tiles + tile).to(tl.int64) * TILE * TILE + i * TILE + j)
    return distance, _order(distance)


@triton.jit
def _order(distance):
    return (distance.to(tl.int32, bitcast=True) & 3).to(tl.float32)


@triton.jit
def _coefficients(edge, k, distance, order, KINDS: tl.constexpr):
    """A_k of a tile. Where there is no edge the value is NaN, and the larger of NaN and 0 is 0."""
    c1 = tl.load(edge + k)
    c2 = tl.load(edge + KINDS + k)
    c3 = tl.load(edge + 2 * KINDS + k)
    slope = tl.load(edge + 3 * KINDS + k)
    constant = tl.load(edge + 4 * KINDS + k)
    return tl.maximum(order * (order * (order * c3 + c2) + c1) + (distance * slope + constant), 0.0)


@triton.jit
def forward(
    state, kernel, edge, maps, inverse, tiles, out, num_rows, num_tiles, runs, per_split,
    TYPE: tl.constexpr, INPUT: tl.constexpr, KINDS: tl.constexpr, USED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    tile, split, run = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i = tl.arange(0, TILE)
    c = tl.arange(0, TILE)
    row, taken = _rows(tiles, tile, run, num_rows, TILE)
    at = row[:, None] * TILE + c[None, :]
    there = taken[:, None]
    distance, order = _edges(maps, tile, run, num_tiles, TILE)
    h = tl.load(state + at, mask=there, other=0.0)
    edge += run * 5 * KINDS
    matrix = kernel + run.to(tl.int64) * TILE * KINDS * TILE + i[:, None] * (KINDS * TILE) + c[None, :]
    message = tl.zeros((TILE, TILE), tl.float32)  # transposed: [output, atom]
    for k in range(split * per_split, tl.minimum((split + 1) * per_split, USED)):
        v = tl.load(matrix + k * TILE)
        projected = tl.dot(tl.trans(v), tl.trans(h), input_precision=INPUT).to(TYPE)
        a = _coefficients(edge, k, distance, order, KINDS).to(TYPE)
        message = tl.dot(projected, a, message, input_precision=INPUT)
    share = tl.load(inverse + row, mask=taken, other=0.0)
    out += split.to(tl.int64) * runs * num_rows * TILE
    tl.store(out + at, tl.trans(message) * share[:, None], mask=there)


@triton.jit
def _sum5(a0, a1, a2, a3, a4, b0, b1, b2, b3, b4):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, a4 + b4


@triton.jit
def _flat(matrix, TILE: tl.constexpr):
    """All entries, in whatever order costs nothing."""
    return tl.reshape(matrix, [TILE * TILE], can_reorder=True)


@triton.jit
def backward(
    dm, units, state, kernel, edge, maps, tiles, out, out_edge, num_rows, num_tiles, runs, per_split,
    TYPE: tl.constexpr, INPUT: tl.constexpr, KINDS: tl.constexpr, USED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    tile, split, run = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i = tl.arange(0, TILE)
    c = tl.arange(0, TILE)
    row, taken = _rows(tiles, tile, run, num_rows, TILE)
    at = row[:, None] * TILE + c[None, :]
    there = taken[:, None]
    distance, _ = _edges(maps, tile, run, num_tiles, TILE)
    h = tl.load(state + at, mask=there, other=0.0)
    g = tl.load(dm + at, mask=there, other=0.0)
    unit = tl.load(units + run * num_tiles + tile)
    edge += run * 5 * KINDS
    out_edge += (run * num_tiles + tile) * 5 * KINDS
    matrix = kernel + run.to(tl.int64) * TILE * KINDS * TILE + i[:, None] * (KINDS * TILE) + c[None, :]
    # Adding nothing of a product puts an entry's distance on the thread that will hold its gradient.
    distance += 0.0 * tl.dot(h, tl.trans(g), input_precision=INPUT)
    order = _order(distance)
    length = tl.maximum(distance, 0.0)
    dh = tl.zeros((TILE, TILE), tl.float32)  # transposed: [input, atom]
    for k in range(split * per_split, tl.minimum((split + 1) * per_split, USED)):
        v = tl.load(matrix + k * TILE)
        q = tl.dot(v, tl.trans(g), input_precision=INPUT).to(TYPE)
        a = _coefficients(edge, k, distance, order, KINDS)
        dh = tl.dot(q, a.to(TYPE), dh, input_precision=INPUT)
        da = tl.where(a > 0, tl.dot(h, q, input_precision=INPUT), 0.0)
        d1 = da * order
        d2 = d1 * order
        d4 = da * length
        parts = (_flat(d1, TILE), _flat(d2, TILE), _flat(d2 * order, TILE), _flat(d4, TILE), _flat(da, TILE))
        s1, s2, s3, s4, s5 = tl.reduce(parts, 0, _sum5)
        tl.store(out_edge + k, unit * s1)
        tl.store(out_edge + KINDS + k, unit * s2)
        tl.store(out_edge + 2 * KINDS + k, unit * s3)
        tl.store(out_edge + 3 * KINDS + k, unit * s4)
        tl.store(out_edge + 4 * KINDS + k, unit * s5)
    out += split.to(tl.int64) * runs * num_rows * TILE
    tl.store(out + at, tl.trans(dh) * unit, mask=there)


@triton.jit
def _add(dv, k, unit, h, g, edge, distance, order, TYPE: tl.constexpr, INPUT: tl.constexpr, KINDS: tl.constexpr):
    """One tile's part of the gradient of V_k, ``[input, output]``."""
    a = _coefficients(edge, k, distance, order, KINDS).to(TYPE)
    gathered = tl.dot(tl.trans(h), a, input_precision=INPUT).to(TYPE)  # (A_k h), transposed
    return dv + unit * tl.dot(gathered, g, input_precision=INPUT)


@triton.jit
def kernel_gradient(
    dm, units, state, edge, maps, tiles, out, num_rows, num_tiles, runs, per_split,
    TYPE: tl.constexpr, INPUT: tl.constexpr, KINDS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    chunk, split, run = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i = tl.arange(0, TILE)
    c = tl.arange(0, TILE)
    edge += run * 5 * KINDS
    k = chunk * 4
    dv0 = tl.zeros((TILE, TILE), tl.float32)
    dv1 = tl.zeros((TILE, TILE), tl.float32)
    dv2 = tl.zeros((TILE, TILE), tl.float32)
    dv3 = tl.zeros((TILE, TILE), tl.float32)
    for tile in range(split * per_split, tl.minimum((split + 1) * per_split, num_tiles)):
        row, taken = _rows(tiles, tile, run, num_rows, TILE)
        at = row[:, None] * TILE + c[None, :]
        there = taken[:, None]
        distance, order = _edges(maps, tile, run, num_tiles, TILE)
        h = tl.load(state + at, mask=there, other=0.0)
        g = tl.load(dm + at, mask=there, other=0.0)
        unit = tl.load(units + run * num_tiles + tile)
        dv0 = _add(dv0, k, unit, h, g, edge, distance, order, TYPE, INPUT, KINDS)
        dv1 = _add(dv1, k + 1, unit, h, g, edge, distance, order, TYPE, INPUT, KINDS)
        dv2 = _add(dv2, k + 2, unit, h, g, edge, distance, order, TYPE, INPUT, KINDS)
        dv3 = _add(dv3, k + 3, unit, h, g, edge, distance, order, TYPE, INPUT, KINDS)
    out += (split * runs + run).to(tl.int64) * TILE * KINDS * TILE
    matrix = out + i[:, None] * (KINDS * TILE) + c[None, :] + k * TILE
    tl.store(matrix, dv0)
    tl.store(matrix + TILE, dv1)
    tl.store(matrix + 2 * TILE, dv2)
    tl.store(matrix + 3 * TILE, dv3)
