"""The walk from the losses down to the shared tensors, and where gradients stop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equipoise.gradient.shared import Shared, find_roots, walk
from gradient.helpers import Fixed, gradients, inputs, net


def leaves_of(losses: Any, shared: list[Tensor]) -> Any:
    return walk(find_roots(losses), Shared(shared))


def ids(leaves: Any) -> set[int]:
    return {id(leaf) for leaf in leaves}


def test_each_head_is_found_under_its_own_loss() -> None:
    model, x = net(), inputs()
    features = model.trunk(x)
    for losses in (tuple(model.losses(features)), torch.stack(model.losses(features))):
        found = leaves_of(losses, [features])
        assert [ids(own) for own in found.own] == [ids(head.parameters()) for head in model.heads]
        assert found.common == [] and not found.half


def test_leaves_of_several_tasks_are_common() -> None:
    model, x = net(), inputs()
    scale = nn.Parameter(torch.ones(5, dtype=torch.float64))
    features = model.trunk(x)
    found = leaves_of(tuple(model.losses(features * scale)), [features])
    assert ids(found.common) == {id(scale)}
    one_matrix = leaves_of(model.heads[0](features).expand(6, 3).mean(0), [features])
    assert ids(one_matrix.common) == ids(model.heads[0].parameters()) and one_matrix.own == [[], [], []]


def test_parameters_stop_the_walk() -> None:
    model, x = net(), inputs()
    trunk = list(model.trunk.parameters())
    found = leaves_of(tuple(model.losses(model.trunk(x))), trunk[1:])
    assert ids(found.common) == {id(trunk[0])}  # the one that was not named


def test_absent_tasks_and_losses_that_are_leaves() -> None:
    a, b = nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(()))
    found = leaves_of((a, None, a * b), [b])
    assert found.own == [[], [], []] and ids(found.common) == {id(a)}


def test_float16_on_the_way_is_seen() -> None:
    x = nn.Parameter(torch.ones(3))
    features = x * 2
    assert not leaves_of((features.sum(),), [features]).half
    assert leaves_of((features.half().sum().float(),), [features]).half
    assert not leaves_of((features.bfloat16().sum().float(),), [features]).half
    half = features.half()
    assert leaves_of((half.float().sum(),), [half]).half


class Counted(torch.autograd.Function):
    """The identity, counting how often a gradient comes through."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, counter: list[int]) -> Tensor:
        ctx.counter = counter
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.counter[0] += 1
        return gradient, None


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("where", ["features", "parameters"])
def test_no_gradient_travels_where_it_need_not(where: str, stacked: bool) -> None:
    """Each head once; the trunk once in all at the features, once a task with parameters."""
    model, x = net(), inputs()
    trunk, heads = [0], [[0] for _ in model.heads]
    features = Counted.apply(model.trunk(x), trunk)
    losses = [
        (head(Counted.apply(features, count)) - 1).square().mean()
        for head, count in zip(model.heads, heads, strict=True)
    ]
    balancer = Fixed(3)
    shared = features if where == "features" else list(model.trunk.parameters())
    scalar = balancer(torch.stack(losses) if stacked else losses, shared)
    assert heads == [[1], [1], [1]]
    assert trunk == [0 if where == "features" else 3]
    scalar.backward()
    assert heads == [[1], [1], [1]]
    assert trunk == [1 if where == "features" else 3]


def test_nested_features_get_their_own_part_each() -> None:
    """Two levels of one trunk: what goes through the upper one is not counted again at the lower."""
    model, x = net(), inputs()
    lower = model.trunk[:2](x)
    upper = model.trunk[2:](lower)
    losses = [(model.heads[k](upper) + lower[:, :1] * k).square().mean() for k in range(3)]
    expected = torch.autograd.grad(
        losses[0] + 2 * losses[1] + 3 * losses[2], list(model.trunk.parameters()), retain_graph=True
    )
    for order in ([lower, upper], [upper, lower]):
        Fixed(3)(losses, order).backward(retain_graph=True)
        for found, by_hand in zip(gradients(model), expected, strict=False):
            torch.testing.assert_close(found, by_hand, rtol=0, atol=1e-12)


def test_a_leaf_on_both_sides_of_the_features() -> None:
    """A tied weight gets the shared weights through the features, and the head's where the head uses it."""
    model, x = net(), inputs()
    tied = model.trunk[0].weight  # [9, 4]

    def losses() -> tuple[list[Tensor], Tensor]:
        features = model.trunk(x)
        return [((features[:, :4] @ tied[k]) - 1).square().mean() + features[:, k].mean() for k in range(3)], features

    values, features = losses()
    cut = features.detach().requires_grad_()
    direct = [((cut[:, :4] @ tied[k]) - 1).square().mean() for k in range(3)]
    for heads, weights in (("sum", (1, 1, 1)), ("weighted", (10, 20, 30))):
        per_task = [torch.autograd.grad(v, features, retain_graph=True)[0] for v in values]
        through = torch.autograd.grad(
            features, tied, sum((k + 1) * g for k, g in enumerate(per_task)), retain_graph=True
        )[0]
        own = torch.autograd.grad(sum(w * d for w, d in zip(weights, direct, strict=True)), tied, retain_graph=True)[0]
        Fixed(3, heads=heads)(values, features).backward(retain_graph=True)
        torch.testing.assert_close(gradients(model)[0], through + own, rtol=0, atol=1e-12)


def test_outputs_of_one_node_are_told_apart() -> None:
    """Only one half of a split is shared: the other half's path is a head's own."""
    model, x = net(1), inputs()
    left, right = model.trunk(x).split([2, 3], dim=1)
    loss = left.square().mean() + right.square().mean()
    expected = torch.autograd.grad(2 * left.square().mean() + right.square().mean(), model.trunk[0].weight)
    left, right = model.trunk(x).split([2, 3], dim=1)
    loss = left.square().mean() + right.square().mean()
    Fixed(1, torch.tensor([2.0]))([loss], left).backward()
    torch.testing.assert_close(model.trunk[0].weight.grad, expected[0], rtol=0, atol=1e-12)


def test_features_that_are_no_ancestor_are_named_with_the_remedy() -> None:
    model, x = net(), inputs()
    features = model.trunk(x)
    beside = features.view_as(features)  # as a wrapper hands it out
    with pytest.raises(ValueError, match=r"upstream of the losses.*shared=model.trunk"):
        Fixed(3)(model.losses(features), beside)
    before = torch.autograd.grad(beside.sum(), model.trunk[0].weight, retain_graph=True)[0]
    assert before.abs().max() > 0  # nothing was left that stops gradients


def test_everything_frozen_is_refused() -> None:
    model, x = net(), inputs()
    with pytest.raises(ValueError, match="requires a gradient; found none"):
        Fixed(3)(model.losses(model.trunk(x)), [p.detach() for p in model.trunk.parameters()])
