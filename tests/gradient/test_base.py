"""What every gradient method inherits: both kinds of shared tensors, heads, memory, and what trainers do."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import equipoise as eq
from gradient.helpers import Fixed, close, gradients, inputs, net, step, weighted

WHERE = ["features", "parameters"]
SHARED, ONES, OWN = [1.0, 2.0, 3.0], [1.0, 1.0, 1.0], [10.0, 20.0, 30.0]


def run(balancer: eq.Balancer, model: Any, x: Tensor, where: str, form: Callable[[list[Tensor]], Any] = list) -> Tensor:
    features = model.trunk(x)
    shared = features if where == "features" else model.trunk.parameters()
    return balancer(form(model.losses(features)), shared)


@pytest.mark.parametrize("low_memory", [False, True])
@pytest.mark.parametrize("form", [list, torch.stack], ids=["list", "stacked"])
@pytest.mark.parametrize("heads", ["sum", "weighted"])
@pytest.mark.parametrize("where", WHERE)
def test_gradients_by_hand(where: str, heads: str, form: Callable[..., Any], low_memory: bool) -> None:
    model, x = net(), inputs()
    balancer = Fixed(3, heads=heads, low_memory=low_memory)
    scalar = run(balancer, model, x, where, form)
    scalar.backward()
    own = ONES if heads == "sum" else OWN
    close(gradients(model), weighted(model, x, SHARED, own))
    losses = model.losses(model.trunk(x))
    close([scalar], [sum(h * loss for h, loss in zip(own, losses, strict=True))])
    assert balancer.weights.tolist() == SHARED


@pytest.mark.parametrize("low_memory", [False, True])
def test_the_gram_matrix_is_of_the_joined_shared_tensors(low_memory: bool) -> None:
    """The same by parameters, by several features, in parts, and with linear layers left unformed (6 < 9 inputs)."""
    model, x = net(5), inputs()
    losses = model.losses(model.trunk(x))
    parameters = list(model.trunk.parameters())
    rows = torch.stack(
        [torch.cat([g.flatten() for g in torch.autograd.grad(x, parameters, retain_graph=True)]) for x in losses]
    )
    balancer = Fixed(5, low_memory=low_memory)
    balancer(losses, parameters)
    close([balancer.games[0].gram], [rows @ rows.T])
    low, high = model.trunk[:2](x), None
    high = model.trunk[2:](low)
    losses = [loss + low[k].square().sum() for k, loss in enumerate(model.losses(high))]
    rows = torch.stack(
        [
            torch.cat([g.flatten() for g in (2 * low[k] * (torch.arange(6) == k)[:, None], own)])
            for k, own in enumerate(torch.autograd.grad(loss, high, retain_graph=True)[0] for loss in losses)
        ]
    )
    balancer(losses, (low, high))
    close([balancer.games[1].gram], [rows @ rows.T])


@pytest.mark.parametrize("low_memory", [False, True])
def test_parameters_some_frozen_some_unused_by_some_tasks(low_memory: bool) -> None:
    model, x = net(), inputs()
    model.trunk[0].bias.requires_grad_(False)
    extra, idle = nn.Parameter(torch.ones(5, dtype=torch.float64)), nn.Parameter(torch.ones(2, 2))
    losses = model.losses(model.trunk(x))
    losses[1] = losses[1] + (model.trunk(x) * extra).sum()
    expected = torch.autograd.grad(
        losses[0] + 2 * losses[1] + 3 * losses[2], [model.trunk[0].weight, extra], retain_graph=True
    )
    Fixed(3, low_memory=low_memory)(losses, [*model.trunk.parameters(), extra, idle]).backward()
    close([model.trunk[0].weight.grad, extra.grad], expected)
    assert model.trunk[0].bias.grad is None
    assert idle.grad.abs().max() == 0


def test_a_weight_used_twice_is_not_taken_for_a_linear_layer() -> None:
    model, x = net(4, widths=(9, 9)), inputs(3, 9)
    features = model.trunk(torch.tanh(model.trunk(x)))
    losses = model.losses(features)
    parameters = list(model.trunk.parameters())
    expected = torch.autograd.grad(sum((k + 1) * x for k, x in enumerate(losses)), parameters, retain_graph=True)
    rows = [torch.cat([g.flatten() for g in torch.autograd.grad(x, parameters, retain_graph=True)]) for x in losses]
    balancer = Fixed(4)
    balancer(losses, parameters).backward()
    close([p.grad for p in parameters], expected)
    close([balancer.games[0].gram], [torch.stack(rows) @ torch.stack(rows).T])


def test_shared_module_given_once() -> None:
    model, x = net(), inputs()
    expected = weighted(model, x, SHARED, ONES)
    balancer = Fixed(3, shared=model.trunk)
    balancer(model.losses(model.trunk(x))).backward()
    close(gradients(model), expected)
    with pytest.raises(ValueError, match=r"needs `shared`.*did not run"):
        balancer(model.losses(torch.ones(2, 5, dtype=torch.float64)))


@pytest.mark.parametrize("where", WHERE)
def test_through_checkpoints(where: str) -> None:
    model, x = net(), inputs()
    features = checkpoint(model.trunk, x, use_reentrant=False)
    losses = [
        checkpoint(lambda f, k=k: (model.heads[k](f) - k - 1).square().mean(), features, use_reentrant=False)
        for k in range(3)
    ]
    Fixed(3)(losses, features if where == "features" else model.trunk.parameters()).backward()
    close(gradients(model), weighted(model, x, SHARED, ONES))


def test_reentrant_checkpoints() -> None:
    """Below the features they do no harm; between losses and parameters they cannot work, and that is said."""
    model, x = net(), inputs().requires_grad_()
    features = checkpoint(model.trunk, x, use_reentrant=True)
    Fixed(3)(model.losses(features), features).backward()
    close(gradients(model), weighted(model, x.detach(), SHARED, ONES))
    features = checkpoint(model.trunk, x, use_reentrant=True)
    with pytest.raises((RuntimeError, ValueError), match="use_reentrant=False"):
        Fixed(3)(model.losses(features), model.trunk.parameters())


@pytest.mark.filterwarnings("ignore")  # torch's own, about its compiler
@pytest.mark.parametrize("where", WHERE)
def test_compiled_trunk_and_heads(where: str) -> None:
    model, x = net(dtype=torch.float32), inputs(dtype=torch.float32)
    torch._dynamo.reset()
    trunk = torch.compile(model.trunk, backend="aot_eager")
    losses = torch.compile(model.losses, backend="aot_eager")
    for _ in range(2):
        features = trunk(x)
        Fixed(3)(losses(features), features if where == "features" else model.trunk.parameters()).backward()
        close(gradients(model), weighted(model, x, SHARED, ONES), 1e-5)
    whole = torch.compile(lambda x: (f := model.trunk(x), *model.losses(f)), backend="aot_eager")
    features, *beside = whole(x)
    with pytest.raises(ValueError, match="a compiled region"):
        Fixed(3)(beside, features)


@pytest.mark.filterwarnings("ignore")
def test_compiled_regions_that_give_up_their_buffers() -> None:
    model, x = net(dtype=torch.float32), inputs(dtype=torch.float32)

    def give_up(*_: Any) -> None:
        raise RuntimeError("This backward function was compiled with non-empty donated buffers which requires ...")

    features = model.trunk(x)
    handle = features.grad_fn.register_prehook(give_up)
    with pytest.raises(RuntimeError, match="donated_buffer = False before the model first runs"):
        Fixed(3)(model.losses(features), model.trunk.parameters())
    handle.remove()


def test_max_norm_clips_what_the_shared_tensors_get() -> None:
    jacobian = torch.tensor([[3.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    for limit, expected in ((1.0, [0.6, 0.8]), (100.0, [3.0, 4.0])):
        balancer = Fixed(2, max_norm=limit)
        found, heads = step(balancer, jacobian, torch.ones(2, dtype=torch.float64))
        close([found, heads], [torch.tensor(expected).double(), torch.ones(2).double()], 1e-6)
        close([balancer.weights], [torch.tensor(expected) / torch.tensor([3.0, 2.0])], 1e-6)


def test_tasks_without_gradient_leave_the_game() -> None:
    jacobian = torch.tensor([[1.0, 2.0], [0.0, 0.0], [1e-13, 0.0], [1e-11, 0.0]], dtype=torch.float64)
    balancer = Fixed(4, heads="weighted")
    found, heads = step(balancer, jacobian, torch.ones(4, dtype=torch.float64))
    game = balancer.games[0]
    assert game.active.tolist() == [True, False, False, True]
    assert game.gram[1:3].abs().max() == 0 and game.gram[3, 3] > 0
    assert balancer.weights.tolist() == [1.0, 0.0, 0.0, 4.0]
    assert heads.tolist() == [10.0, 1.0, 1.0, 40.0]
    close([found], [jacobian.T @ torch.tensor([1.0, 0.0, 0.0, 4.0]).double()])
    step(balancer, jacobian * 0, torch.ones(4, dtype=torch.float64))
    assert not balancer.games[1].active.any()


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("rule", ["raise", "skip"])
def test_gradients_that_are_not_finite(where: str, rule: str) -> None:
    """State stays; the scalar hands the bad gradient on, so that a scaler sees it, unless steps are to be skipped."""
    balancer = Fixed(2, on_nonfinite=rule)
    good, ones = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    step(balancer, good, ones, where)
    before = copy.deepcopy(balancer.state_dict())
    x = nn.Parameter(torch.zeros(2))
    at = x if where == "parameters" else x * 1.0
    balancer([at.sum() + 1.0, at[0].sqrt() + 1.0], [at]).backward()  # the second loss is finite, its slope is not
    found = x.grad
    assert all(torch.equal(before[n], t) for n, t in balancer.state_dict().items())
    assert torch.isfinite(balancer.games[1].gram).all()
    assert torch.isfinite(found).all() == (rule == "skip")
    assert balancer.skipped == (rule == "skip")
    step(balancer, good, ones, where)
    assert balancer.step == 2 and not balancer.skipped


def test_memory_is_one_jacobian_kept_between_steps() -> None:
    model, x = net(2), inputs()
    balancer = Fixed(2)
    run(balancer, model, x, "parameters")
    first = balancer._rows
    run(balancer, model, x, "parameters")
    assert balancer._rows is first and first.numel() == 2 * sum(p.numel() for p in model.trunk.parameters())
    streamed = Fixed(2, low_memory=True)
    run(streamed, model, x, "parameters")
    assert streamed._rows.numel() <= 0.6 * first.numel()
    kept = eq.MoCo(2)
    run(kept, model, x, "parameters")
    for twin in (copy.deepcopy(kept), pickle.loads(pickle.dumps(kept))):
        assert kept._rows is not None and twin._rows is None


def test_two_scalars_before_one_backward() -> None:
    """The second call uses the first one's memory; the first scalar's gradients are its own."""
    model, x = net(), inputs()
    balancer = Fixed(3)
    both = run(balancer, model, x, "parameters") + run(balancer, model, 2 * x, "parameters")
    both.backward()
    expected = [
        a + b for a, b in zip(weighted(model, x, SHARED, ONES), weighted(model, 2 * x, SHARED, ONES), strict=True)
    ]
    close(gradients(model), expected)


@pytest.mark.parametrize("where", WHERE)
def test_bfloat16(where: str) -> None:
    model, x = net(dtype=torch.bfloat16), inputs(dtype=torch.bfloat16)
    balancer = Fixed(3)
    run(balancer, model, x, where).backward()
    assert all(p.grad.dtype == torch.bfloat16 for p in model.parameters())
    assert balancer.games[0].gram.dtype == torch.float64
    exact = net()
    exact.load_state_dict(model.state_dict())
    close(gradients(model.double()), weighted(exact, x.double(), SHARED, ONES), 0.05)


def test_an_embedding_with_sparse_gradients() -> None:
    table = nn.Embedding(7, 3, sparse=True, dtype=torch.float64)
    rows = table(torch.tensor([1, 4, 1]))
    losses = [rows.square().sum(), rows.sum()]
    expected = torch.autograd.grad(losses[0] + 2 * losses[1], rows, retain_graph=True)[0]
    Fixed(2)(losses, table.parameters()).backward()
    by_hand = torch.zeros(7, 3, dtype=torch.float64).index_add_(0, torch.tensor([1, 4, 1]), expected)
    close([table.weight.grad], [by_hand])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": "all"}, "`heads` must be 'sum' or 'weighted'; found 'all'"),
        ({"low_memory": True}, "`low_memory` must be False for GradDrop"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        eq.GradDrop(2, **options)


def test_features_of_an_earlier_pass_are_left_alone() -> None:
    """A caught module may have run before, for something that has had its own backward."""
    model, x = net(), inputs()
    expected = weighted(model, x, SHARED, ONES)
    balancer = Fixed(3, shared=model.trunk)
    model.trunk(2 * x).sum().backward()
    model.zero_grad()
    balancer(model.losses(model.trunk(x))).backward()
    close(gradients(model), expected)
