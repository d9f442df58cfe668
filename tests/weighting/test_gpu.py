"""On a GPU: no loss-only method asks the device anything in a step, and each can be captured in a CUDA graph."""

import copy
import warnings
from contextlib import contextmanager

import pytest
import torch

import equipoise as eq

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

METHODS = {
    "ls": {},
    "ldc": {},
    "si": {},
    "rlw": {"seed": 5},
    "dwa": {"epoch_steps": 2},
    "uw": {"init": 0.1},
    "famo": {},
    "go4align": {"groups": 3},
    "stl": {},
    "gls": {},
    "stch": {"epoch_steps": 2, "warmup": 0},
}
STEPS = 6


@contextmanager
def no_sync():
    """Raise at any operation that waits for the device."""
    torch.cuda.synchronize()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own: the mode is a prototype
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def rows(num_tasks=5):
    generator = torch.Generator().manual_seed(0)
    return torch.rand(2 * STEPS, num_tasks, generator=generator) + 0.1


def step(balancer, losses, after):
    """One step on stacked losses: what it leaves on them."""
    losses.grad = None
    for parameter in balancer.parameters():
        parameter.grad = None
    balancer(losses).backward()
    if balancer.needs_after_step:
        balancer.after_step(after)


@pytest.mark.parametrize("name", METHODS)
def test_no_sync_and_the_numbers_of_the_cpu(name):
    cpu = eq.make(name, 5, **METHODS[name])
    gpu = copy.deepcopy(cpu).cuda()
    present = torch.tensor([True, True, False, True, True])
    for number, (before, after) in enumerate(rows().view(STEPS, 2, 5)):
        ours, theirs = before.cuda().requires_grad_(), before.clone().requires_grad_()
        mask = present if number == 3 else None
        on_gpu, later = None if mask is None else mask.cuda(), after.cuda()
        with no_sync():
            gpu(ours, present=on_gpu).backward()
            if gpu.needs_after_step:
                gpu.after_step(later, present=on_gpu)
        cpu(theirs, present=mask).backward()
        if cpu.needs_after_step:
            cpu.after_step(after, present=mask)
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(gpu.weights.cpu(), cpu.weights, rtol=1e-4, atol=1e-6)
    gpu.check()


@pytest.mark.parametrize("name", METHODS)
def test_cuda_graph(name):
    eager = eq.make(name, 5, **METHODS[name]).cuda()
    replayed = copy.deepcopy(eager)
    losses, after = torch.ones(5, device="cuda", requires_grad=True), torch.ones(5, device="cuda")
    fresh = copy.deepcopy(replayed.state_dict())
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(replayed, losses, after)
    torch.cuda.current_stream().wait_stream(stream)
    losses.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(replayed, losses, after)
    replayed.load_state_dict(fresh)
    for now, later in rows().view(STEPS, 2, 5).cuda():
        with torch.no_grad():
            losses.copy_(now)
            after.copy_(later)
        graph.replay()
        leaf = now.clone().requires_grad_()
        step(eager, leaf, later)
        torch.testing.assert_close(losses.grad, leaf.grad)
        torch.testing.assert_close(replayed.weights, eager.weights)
    for key, value in eager.state_dict().items():
        torch.testing.assert_close(replayed.state_dict()[key], value)


@pytest.mark.parametrize("name", METHODS)
def test_bad_losses_are_latched(name):
    balancer = eq.make(name, tasks=tuple("abcde"), **METHODS[name]).cuda()
    balancer(torch.ones(5, device="cuda", requires_grad=True)).backward()
    before = copy.deepcopy(balancer.state_dict())
    losses = torch.tensor([1.0, torch.nan, 1.0, 1.0, 1.0], device="cuda", requires_grad=True)
    balancer(losses).backward()
    assert all(torch.equal(value, before[key]) for key, value in balancer.state_dict().items())
    assert not losses.grad.any()
    with pytest.raises(ValueError, match="task 'b'"):
        balancer.check()


def test_draws_are_those_of_the_cpu():
    from equipoise.random import normal, permutation, uniform

    pair = torch.tensor(2**40 + 7), torch.tensor(123)
    there = tuple(x.cuda() for x in pair)
    assert torch.equal(uniform(*there, (10_000,)).cpu(), uniform(*pair, (10_000,)))
    assert torch.equal(permutation(*there, (50, 20)).cpu(), permutation(*pair, (50, 20)))
    torch.testing.assert_close(normal(*there, (10_000,)).cpu(), normal(*pair, (10_000,)))
