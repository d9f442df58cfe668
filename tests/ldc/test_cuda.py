"""On a GPU: no host sync in a step, the same numbers, and a whole step inside a CUDA graph."""

import copy

import pytest
import torch

import equipoise as eq
from ldc.helpers import FORMS, close, losses_at, make

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
]
FEATURES = {"features": {"router": eq.FeatureRouter(4, 3, hidden=8)}}
every_form = pytest.mark.parametrize("form", [*FORMS, *FEATURES])


def build(form):
    options = copy.deepcopy({**FORMS, **FEATURES}[form])
    on_cpu = make(3, **options)
    return on_cpu, copy.deepcopy(on_cpu).cuda()


@every_form
def test_steps_ask_nothing_of_the_device(form):
    on_cpu, balancer = build(form)
    features = torch.randn(5, 4, dtype=torch.float64)
    masks = [torch.tensor(m) for m in ([True] * 3, [True, False, True], [False, True, True], [True] * 3)]
    for t, mask in enumerate(masks):
        losses = torch.tensor(losses_at(t), requires_grad=True)
        given = losses.detach().cuda().requires_grad_()
        here, shared = mask.cuda(), features.cuda()
        torch.cuda.set_sync_debug_mode("error")
        try:
            scalar = balancer(given, shared, present=None if t == 0 else here)
            scalar.backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        expected = on_cpu(losses, features, present=None if t == 0 else mask)
        expected.backward()
        close(scalar.item(), expected.item(), 1e-12)
        close(given.grad.cpu(), losses.grad, 1e-12)
        for p, q in zip(balancer.parameters(), on_cpu.parameters(), strict=True):
            close(p.grad.cpu(), q.grad, 1e-12)
    for name, value in on_cpu.state_dict().items():
        close(balancer.state_dict()[name].cpu().double(), value.double(), 1e-12)


@every_form
def test_step_in_a_cuda_graph(form):
    """Capture forward, backward and the optimizer's step once; replays train as eager does."""
    _, balancer = build(form)
    twin = copy.deepcopy(balancer)
    batches = [torch.tensor(losses_at(t)).cuda() for t in range(8)]
    shared = torch.randn(5, 4, dtype=torch.float64).cuda()
    static = batches[0].clone().requires_grad_()
    before = copy.deepcopy(balancer.state_dict())

    def step(balancer, losses, optimizer):
        scalar = balancer(losses, shared)
        scalar.backward()
        if optimizer is not None:
            optimizer.step()
        return scalar

    def optimizer_of(balancer):
        params = list(balancer.parameters())
        return torch.optim.SGD(params, lr=0.1) if params else None

    optimizer = optimizer_of(balancer)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(balancer, static, optimizer)
            balancer.zero_grad(set_to_none=True)
            static.grad = None
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scalar = step(balancer, static, optimizer)
    balancer.load_state_dict(before)
    other = optimizer_of(twin)
    for losses in batches:
        with torch.no_grad():
            static.copy_(losses)
            static.grad.zero_()
            for p in balancer.parameters():
                p.grad.zero_()
        graph.replay()
        leaf = losses.clone().requires_grad_()
        twin.zero_grad()
        expected = step(twin, leaf, other)
        close(scalar.item(), expected.item(), 1e-12)
        close(static.grad.cpu(), leaf.grad.cpu(), 1e-12)
        close(balancer.weights.cpu(), twin.weights.cpu(), 1e-12)


def test_bad_losses_are_latched():
    balancer = eq.LDC(tasks=("seg", "depth")).cuda()
    scalar = balancer(torch.tensor([1.0, 0.0], device="cuda", requires_grad=True))
    assert scalar.item() == 0 and balancer.first_losses.tolist() == [0, 0]
    with pytest.raises(ValueError, match="task 'depth' must be at least 1e-12 in size at first"):
        balancer.check()
    logs = eq.LDC(2, normalize="log", min_losses=(0.0, 1.0)).cuda()
    logs(torch.tensor([1.0, 0.5], device="cuda", requires_grad=True))
    with pytest.raises(ValueError, match="task '1' must be above its `min_losses`"):
        logs.start_epoch()
