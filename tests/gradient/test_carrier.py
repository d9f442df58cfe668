"""The carrier node: what it hands over, and what a trainer may do to its scalar."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from equipoise.gradient.carrier import carry


def leaf(*values: float, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values, dtype=dtype))


def test_hands_over_what_it_stores() -> None:
    x, y = leaf(0.0, 0.0), leaf(0.0)
    scalar = carry(torch.tensor(7.0), [x, y], [torch.tensor([1.0, -2.0]), torch.tensor([3.0])])
    assert scalar.item() == 7.0 and scalar.shape == ()
    (scalar / 4).backward()
    assert x.grad.tolist() == [0.25, -0.5] and y.grad.tolist() == [0.75]


def test_adds_to_what_other_terms_give() -> None:
    x = leaf(2.0)
    features = x * 3
    scalar = carry(torch.tensor(1.0), [features], [torch.tensor([5.0])])
    (scalar + carry(torch.tensor(1.0), [features], [torch.tensor([1.0])]) + features.sum()).backward()
    assert x.grad.item() == 3 * (5 + 1 + 1)


def test_half_targets_get_half_gradients_scaled_before_they_are_rounded() -> None:
    x = leaf(0.0, dtype=torch.float16)
    scalar = carry(torch.tensor(1.0), [x], [torch.tensor([2.0**-30])])  # below float16's range until scaled
    (scalar * 65536).backward()
    assert x.grad.dtype == torch.float16 and x.grad.item() == 2.0**-14


def test_backward_again_needs_retain_graph_like_any_other() -> None:
    x = leaf(0.0)
    scalar = carry(torch.tensor(1.0), [x], [torch.tensor([2.0])])
    scalar.backward(retain_graph=True)
    scalar.backward()
    assert x.grad.item() == 4.0
    with pytest.raises(RuntimeError, match="second time"):
        scalar.backward()


def test_leaves_no_trace_when_dropped() -> None:
    x = leaf(1.0)
    features = x * 2
    carry(torch.tensor(1.0), [features], [torch.tensor([100.0])])
    features.sum().backward()
    assert x.grad.item() == 2.0 and not features._backward_hooks
