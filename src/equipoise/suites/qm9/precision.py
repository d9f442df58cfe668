"""Batched matrix products at a chosen precision: where nearly all of the network's arithmetic happens."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor

Precision = Literal["float32", "tf32", "split", "half", "bf16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


def product(left: Tensor, right: Tensor, precision: Precision = "float32") -> Tensor:
    """``left [b, m, k] @ right [b, k, n]`` in float32 storage, its arithmetic (and its gradients') as asked for.

    "float32": as written. "tf32": factors of 11 bits, on the tensor cores. "split": each factor as the sum of two
    of 11 bits, three products on the tensor cores, about as exact as float32. "half" and "bf16": factors of 11 and
    8 bits in two bytes, "half" with its gradients brought into range by a power of two.
    On a CPU, which has no tf32, "tf32" and "split" round the factors the same way and multiply in float32.
    """
    if precision == "float32":
        return torch.bmm(left, right)
    out: Tensor = _product(left, right, precision)
    return out


@torch.library.custom_op("equipoise::product", mutates_args=())
def _product(left: Tensor, right: Tensor, precision: str) -> Tensor:
    return _rounded_product(left, right, precision)


@_product.register_fake
def _(left: Tensor, right: Tensor, precision: str) -> Tensor:  # noqa: ARG001
    return left.new_empty(left.shape[0], left.shape[1], right.shape[2])


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, str], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs[:2])
    ctx.precision = inputs[2]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    left, right = ctx.saved_tensors
    need_left, need_right = ctx.needs_input_grad[:2]
    return (
        _product(grad, right.mT, ctx.precision) if need_left else None,
        _product(left.mT, grad, ctx.precision) if need_right else None,
        None,
    )


_product.register_autograd(_backward, setup_context=_save)


def _rounded_product(left: Tensor, right: Tensor, precision: str) -> Tensor:
    if precision == "tf32":
        return _tf32(left, right)
    if precision == "split":
        # (a + a')(b + b') without a'b', which is below float32's own rounding.
        coarse_left, coarse_right = round_tf32(left), round_tf32(right)
        out = _tf32(left - coarse_left, coarse_right)
        out += _tf32(coarse_left, right - coarse_right)
        out += _tf32(coarse_left, coarse_right)
        return out
    if precision == "half":
        left, unit_left = _into_range(left)
        right, unit_right = _into_range(right)
        return _two_byte(left.half(), right.half()) * (unit_left * unit_right)
    return _two_byte(left.bfloat16(), right.bfloat16())


def _tf32(left: Tensor, right: Tensor) -> Tensor:
    if not left.is_cuda:
        return torch.bmm(round_tf32(left), round_tf32(right))
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return torch.bmm(left, right)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def round_tf32(x: Tensor) -> Tensor:
    """The nearest number with 10 bits after the leading one, as the tensor cores take it.

    >>> import torch
    >>> round_tf32(torch.tensor([1.0, 1.0 + 2**-10, 1.0 + 2**-12])).tolist()
    [1.0, 1.0009765625, 1.0]
    """
    return ((x.view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)


def _into_range(x: Tensor) -> tuple[Tensor, Tensor]:
    """`x` over the power of two above its largest entry, and that power, one for each matrix of the batch."""
    largest = x.abs().amax(dim=(1, 2), keepdim=True).clamp(min=1e-30)
    unit = torch.exp2(largest.log2().ceil())
    return x / unit, unit


def _two_byte(left: Tensor, right: Tensor) -> Tensor:
    """The product of two-byte factors, summed and returned in float32."""
    if left.is_cuda:
        return torch.bmm(left, right, out_dtype=torch.float32)
    return torch.bmm(left.float(), right.float())
