"""Linear layers whose tasks' weight gradients are not formed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from equipoise.gradient.linear import Linear
from equipoise.gradient.shared import Shared
from equipoise.gradient.tasks import TaskGradients, gram
from equipoise.losses import Batch, read
from gradient.helpers import Fixed, close, inputs, net


def tasks_of(losses: list[Tensor], shared: list[Tensor], whole: bool = False) -> TaskGradients:
    values, mask, given = read(losses, tuple(map(str, range(len(losses)))), False, None)
    return TaskGradients(Batch(values, mask, None, given, None), Shared(shared), torch.ones(()), None, whole=whole)


def narrow(losses: list[Tensor], shared: list[Tensor]) -> list[int]:
    return [part.tensor for part in tasks_of(losses, shared).parts if part.narrow]


def test_layers_with_fewer_samples_than_inputs_are_left_unformed() -> None:
    model, x = net(5), inputs(6)  # inputs of the layers: 4, 9, 7
    losses = model.losses(model.trunk(x))
    parameters = list(model.trunk.parameters())
    assert narrow(losses, parameters) == [2, 4]
    assert narrow(losses[:3], parameters) == []  # too few tasks to gain
    assert [part.tensor for part in tasks_of(losses, parameters, whole=True).parts if part.narrow] == []
    few = tasks_of(losses, parameters)
    assert few.width == sum(p.numel() for p in parameters) - (9 - 6) * 7 - (7 - 6) * 5


@pytest.mark.parametrize("bias", [True, False])
def test_the_gram_matrix_and_the_sum_are_those_of_whole_rows(bias: bool) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(40, 30, bias=bias).double()
    x = torch.randn(7, 40, dtype=torch.float64)
    x[3] = x[2]  # of lower rank than samples
    output = torch.tanh(layer(x))
    losses = [(output[:, k : k + 6] - k).square().mean() for k in range(24)]
    parameters = list(layer.parameters())
    whole, few = tasks_of(losses, parameters, whole=True), tasks_of(losses, parameters)
    assert few.width < whole.width
    rows = [t.rows(torch.empty(24, t.width, dtype=torch.float64), t.parts) for t in (whole, few)]
    close([few.gram(rows[1], few.parts)], [whole.gram(rows[0], whole.parts)], 1e-12)
    weights = torch.randn(24, dtype=torch.float64)
    close(few.combined(weights, rows[1]), whole.combined(weights, rows[0]), 1e-12)


def test_digits_survive_samples_that_cancel() -> None:
    """Output gradients nearly orthogonal to the inputs: A A^T would lose the answer in float32."""
    torch.manual_seed(0)
    a = torch.rand(32, 64, dtype=torch.float64)
    outputs = torch.randn(4, 32, 16, dtype=torch.float64)
    outputs -= a @ torch.linalg.pinv(a) @ outputs * (1 - 1e-3)
    node = (a.float().requires_grad_() @ torch.zeros(64, 16)).grad_fn
    layer = Linear(0, torch.autograd.graph.GradientEdge(node, 0), a.float())
    exact = gram(torch.stack([(g.T @ a.float().double()).flatten() for g in outputs.float().double()]))
    rows = outputs.float().flatten(1)
    formed = gram(torch.stack([(g.T @ a.float()).flatten() for g in outputs.float()]))
    error = ((layer.gram(rows) - exact).abs().max() / exact.abs().max()).item()
    assert error < 10 * ((formed - exact).abs().max() / exact.abs().max()).item() + 1e-6


def test_scaled_products_and_other_uses_are_left_alone() -> None:
    weight, offset = nn.Parameter(torch.randn(5, 9)), torch.zeros(5)
    x = torch.randn(3, 9)
    for output in (
        torch.addmm(offset, x, weight.T, alpha=2.0),  # not a plain layer
        x @ weight.T + (weight.sum() * 0),  # used elsewhere
        x @ weight[:, :].T,  # through a view
    ):
        losses = [output[:, k % 5].square().sum() for k in range(4)]
        assert narrow(losses, [weight]) == []
        balancer = Fixed(4)
        balancer(losses, [weight]).backward(retain_graph=True)
        expected = torch.autograd.grad(sum((k + 1) * loss for k, loss in enumerate(losses)), weight)
        close([weight.grad], expected, 1e-5)
        weight.grad = None
