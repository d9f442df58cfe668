"""The carrier: one autograd node that hands stored gradients to the tensors they belong to.

What a trainer does with the scalar (scaling it, adding terms, accumulating, dropping it) is then ordinary
autograd: the node multiplies what it stores by the gradient it is given, and nothing else happens anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class _Carrier(torch.autograd.Function):
    """Value in, value out; backward gives target i the stored gradient i times the gradient of the value."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: Sequence[Tensor], *targets: Tensor) -> Tensor:
        ctx.save_for_backward(*gradients)
        ctx.dtypes = [target.dtype for target in targets]
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        scaled = torch._foreach_mul(ctx.saved_tensors, grad_output)
        return (None, None, *(g if g.dtype == d else g.to(d) for g, d in zip(scaled, ctx.dtypes, strict=True)))


def carry(value: Tensor, targets: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """A scalar that reads `value` and whose backward leaves `gradients` on `targets`.

    >>> import torch
    >>> from equipoise.gradient.carrier import carry
    >>> x = torch.zeros(2, requires_grad=True)
    >>> (3 * carry(torch.tensor(5.0), [x], [torch.tensor([1.0, 2.0])])).backward()
    >>> x.grad
    tensor([3., 6.])
    """
    scalar: Tensor = _Carrier.apply(value, gradients, *targets)  # type: ignore[no-untyped-call]
    return scalar
