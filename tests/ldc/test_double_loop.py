"""DoubleLoopLDC beyond the oracles: networks, buffers, copies, what it leaves behind, what it refuses."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call

import equipoise as eq
from ldc.helpers import close


class Net(nn.Module):
    def __init__(self, norm=True):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8) if norm else nn.Identity(), nn.Tanh())
        self.heads = nn.Linear(8, 2)

    def forward(self, x):
        features = self.trunk(x)
        return self.heads(features), features


def setup(norm=True, seed=0, **options):
    torch.manual_seed(seed)
    model = Net(norm).double()
    x, y = torch.randn(16, 3).double(), torch.randn(16, 2).double() * torch.tensor([1.0, 3.0])
    balancer = eq.DoubleLoopLDC(2, **{"inner_lr": 0.05, "inner_steps": 7, **options}).double()

    def closure(params):
        prediction, features = functional_call(model, params, x)
        losses = (prediction - y).square().mean(0)
        return (losses, features) if balancer.needs_shared else losses

    return model, balancer, closure


def by_hand(balancer, closure, params, of_g, of_f):
    """Algorithm 1 written out for the softmax router and of_g g + of_f f, losses as they are."""
    logits = balancer.router.logits.detach().clone().requires_grad_()
    x = {n: p.detach().clone().requires_grad_() for n, p in params.items()}
    losses = closure(x)

    def g_of(losses, logits):
        return (logits.softmax(0) * losses).sum()

    u = logits.softmax(0) * losses
    total = of_g * g_of(losses, logits) + of_f * (u[0] - u[1]).abs()
    grads = torch.autograd.grad(total, [*x.values(), logits], retain_graph=True)
    z = {n: p.detach().clone() for n, p in params.items()}
    for _ in range(balancer.inner_steps):
        z = {n: p.requires_grad_() for n, p in z.items()}
        down = torch.autograd.grad(g_of(closure(z), logits.detach()), list(z.values()))
        z = {n: (p - balancer.inner_lr * d).detach() for (n, p), d in zip(z.items(), down, strict=True)}
    (at_x,) = torch.autograd.grad(g_of(losses.detach(), logits), logits)
    (at_z,) = torch.autograd.grad(g_of(closure(z).detach(), logits), logits)
    return total.detach(), grads[:-1], grads[-1] - of_g * at_z, at_x.norm(), at_z.norm()


@pytest.mark.parametrize(
    ("factor", "of_g", "of_f"), [({}, 1.0, 0.1), ({"discrepancy": 0.5}, 1.0, 0.5), ({"penalty": 3.0}, 3.0, 1.0)]
)
def test_a_network_by_hand(factor, of_g, of_f):
    model, balancer, closure = setup(norm=False, normalize=None, **factor)
    with torch.no_grad():
        balancer.router.logits.copy_(torch.tensor([0.3, -0.4]))
    params = dict(model.named_parameters())
    total, expected, router, at_x, at_z = by_hand(balancer, closure, params, of_g, of_f)
    close(balancer.backward(closure, params), total, 1e-12)
    for param, gradient in zip(params.values(), expected, strict=True):
        close(param.grad, gradient, 1e-12)
    close(balancer.router.logits.grad, router, 1e-12)
    close(balancer.status["router_gradient"], at_x, 1e-12)
    close(balancer.status["inner_router_gradient"], at_z, 1e-12)
    close(balancer.status["ratio"], at_x / at_z, 1e-12)


@pytest.mark.parametrize("given", ["parameters", "parameters and buffers"])
def test_batchnorm_statistics_move_once(given):
    model, balancer, closure = setup()
    twin = copy.deepcopy(model)
    params = dict(model.named_parameters())
    if given == "parameters and buffers":
        params |= dict(model.named_buffers())
    inputs = []
    model.register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
    for _ in range(2):
        balancer.backward(closure, params)
    assert len(inputs) == 2 * (1 + balancer.inner_steps + 1)
    twin(inputs[0]), twin(inputs[0])
    assert model.trunk[1].num_batches_tracked == 2
    for name, buffer in twin.named_buffers():
        assert torch.equal(dict(model.named_buffers())[name], buffer), name


def test_inner_steps_see_their_own_statistics():
    """Buffers given in `params` are copied: the inner loop's moves are not the model's."""
    model, balancer, closure = setup()
    params = dict(model.named_parameters()) | dict(model.named_buffers())
    seen = []

    def watching(given):
        seen.append(given["trunk.1.running_mean"])
        return closure(given)

    balancer.backward(watching, params)
    assert seen[0] is params["trunk.1.running_mean"] and len(seen) == 1 + 7 + 1
    assert all(buffer is seen[1] and buffer is not seen[0] for buffer in seen[1:])
    assert not torch.equal(seen[1], seen[0])


def test_gradients_add_up_and_parameters_stay():
    model, balancer, closure = setup(norm=False)
    params = dict(model.named_parameters())
    before = {n: p.detach().clone() for n, p in params.items()}
    balancer.backward(closure, params)
    once = {n: p.grad.clone() for n, p in [*params.items(), ("logits", balancer.router.logits)]}
    balancer.backward(closure, params)
    for n, p in [*params.items(), ("logits", balancer.router.logits)]:
        close(p.grad, 2 * once[n], 1e-12)
    assert all(torch.equal(params[n], p) for n, p in before.items())


def test_frozen_parameters_stay_frozen():
    model, balancer, closure = setup(norm=False)
    model.trunk.requires_grad_(False)
    balancer.backward(closure, dict(model.named_parameters()))
    assert model.trunk[0].weight.grad is None and model.heads.weight.grad is not None


@pytest.mark.parametrize("detach", [True, False])
def test_feature_router(detach):
    model, balancer, closure = setup(router=eq.FeatureRouter(8, 2), detach_features=detach)
    balancer.backward(closure, dict(model.named_parameters()))
    assert all(p.grad.abs().max() > 0 for p in balancer.router.parameters())
    caught = eq.DoubleLoopLDC(2, router=eq.FeatureRouter(8, 2), inner_lr=0.1, inner_steps=2, shared=model.trunk)
    caught.double().backward(lambda params: closure(params)[0], dict(model.named_parameters()))
    assert all(p.grad.abs().max() > 0 for p in caught.router.parameters())


def test_losses_in_every_form():
    model, balancer, closure = setup(norm=False)
    params = dict(model.named_parameters())
    forms = [closure, lambda p: list(closure(p)), lambda p: tuple(closure(p)), lambda p: (tuple(closure(p)), None)]
    found = [copy.deepcopy(balancer).backward(form, params) for form in forms]
    assert len({value.item() for value in found}) == 1
    model.zero_grad()
    balancer.backward(lambda p: (None, closure(p)[1]), params)  # an absent first task
    assert model.heads.weight.grad[0].abs().max() == 0 and model.heads.weight.grad[1].abs().max() > 0
    assert balancer.weights.tolist() == [0.0, 1.0]


def test_called_like_any_balancer_is_the_single_loop():
    torch.manual_seed(0)
    double = eq.DoubleLoopLDC(3, inner_lr=0.1)
    single = eq.LDC(3, router_objective="both")
    leaves = [torch.tensor([1.0, 5.0, 2.0], requires_grad=True) for _ in range(2)]
    for balancer, leaf in zip((double, single), leaves, strict=True):
        balancer(leaf).backward()
    assert torch.equal(leaves[0].grad, leaves[1].grad)
    assert torch.equal(double.router.logits.grad, single.router.logits.grad)
    assert double.status == {}


def test_first_losses_are_those_at_the_model():
    model, balancer, closure = setup(norm=False)
    at_x = closure(dict(model.named_parameters())).detach()
    balancer.backward(closure, dict(model.named_parameters()))
    assert torch.equal(balancer.first_losses, at_x)
    assert balancer.step == 1


def test_bad_losses():
    for rule in ("raise", "skip"):
        model, balancer, closure = setup(norm=False, on_nonfinite=rule)
        before = copy.deepcopy(balancer.state_dict())
        bad = lambda p: closure(p) * torch.tensor([1.0, torch.nan])  # noqa: B023, E731
        if rule == "raise":
            with pytest.raises(ValueError, match="task '1' must be finite"):
                balancer.backward(bad, dict(model.named_parameters()))
        else:
            assert balancer.backward(bad, dict(model.named_parameters())) == 0 and balancer.skipped
        assert model.heads.weight.grad is None and balancer.router.logits.grad is None
        assert all(torch.equal(balancer.state_dict()[n], t) for n, t in before.items())


def test_inner_loop_that_diverges_is_told():
    model, balancer, closure = setup(norm=False, inner_lr=1e6, inner_steps=60)
    with pytest.raises(ValueError, match=r"`inner_lr` must be small enough for g to stay finite; found 1e\+06"):
        balancer.backward(closure, dict(model.named_parameters()))
    assert model.heads.weight.grad is None and balancer.router.logits.grad is None


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"inner_lr": 0.0}, "`inner_lr` must be a finite number above 0; found 0.0"),
        ({"inner_steps": 0}, "`inner_steps` must be a whole number of at least 1; found 0"),
        ({"router_objective": "upper"}, "router_objective='both'; found.*'upper'"),
        ({"router": None}, "needs a router"),
    ],
)
def test_bad_options(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        eq.DoubleLoopLDC(2, **{"inner_lr": 0.1, **options})


def test_inner_lr_has_no_default():
    with pytest.raises(TypeError, match="inner_lr"):
        eq.DoubleLoopLDC(2)


def test_params_must_be_leaves():
    _, balancer, closure = setup(norm=False)
    w = torch.ones(2, requires_grad=True)
    for params in ({"w": w * 2}, {"w": w.detach()}, {}):
        with pytest.raises(ValueError, match="`params` must map names to leaf tensors"):
            balancer.backward(closure, params)
