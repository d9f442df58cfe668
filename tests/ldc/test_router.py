"""Routers that read features: pooling, masks, what is detached, and two ranks like one."""

import socket
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from torch import nn
from torch.nn.functional import softmax

import equipoise as eq
from ldc.helpers import close
from ldc.ranks import KINDS, run, work


def test_pools_over_everything_but_channels():
    router = eq.FeatureRouter(in_features=7, num_tasks=3, hidden=5).double()
    maps, vectors = torch.randn(4, 3, 5, 6, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64)
    pooled = torch.cat([maps.mean((0, 2, 3)), vectors.mean(0)])
    close(router(maps, vectors).detach(), softmax(router.network(pooled), 0).detach(), 1e-12)


def test_channels_last_for_transformers():
    router = eq.FeatureRouter(4, 2, channel_dim=-1).double()
    tokens = torch.randn(3, 9, 4, dtype=torch.float64)
    close(router(tokens).detach(), softmax(router.network(tokens.mean((0, 1))), 0).detach(), 1e-12)


def test_weights_are_exact_inside_autocast():
    router, features = eq.FeatureRouter(4, 3, hidden=8), torch.randn(6, 4)
    outside = router(features)
    with torch.autocast("cpu", torch.bfloat16):
        inside = router(features)
    assert inside.dtype == torch.float32 and torch.equal(inside, outside)


def test_output_bounds_and_masks():
    features = torch.randn(6, 4)
    here = torch.tensor([True, False, True])
    weights = eq.FeatureRouter(4, 3)(features, present=here).detach()
    assert weights[1] == 0
    close(weights.sum(), 1.0)
    sharp = eq.FeatureRouter(4, 3, bounds=(0.2, 0.8))
    with torch.no_grad():
        sharp.network.bias.copy_(torch.tensor([50.0, 0.0, 0.0]))
    close(sharp(features).detach(), [0.8, 0.2, 0.2])
    balancer = eq.LDC(3, router=sharp)
    leaves = torch.ones(3, requires_grad=True)
    balancer(leaves, features, present=here)
    close(balancer.weights, [0.8, 0.0, 0.2])  # the bounds are of present tasks
    sigmoid = eq.FeatureRouter(4, 3, output="sigmoid")
    close(sigmoid(features).detach(), sigmoid.network(features.mean(0)).sigmoid().detach())
    assert eq.LDC(3, router=sigmoid).divide == "detached" and eq.LDC(3, router=sharp).divide is None


def test_low_precision_features():
    balancer = eq.LDC(2, router=eq.FeatureRouter(4, 2)).bfloat16()
    features = torch.randn(6, 4, dtype=torch.bfloat16)
    balancer(torch.ones(2, requires_grad=True), features).backward()
    assert all(p.dtype == torch.float32 and p.grad is not None for p in balancer.router.parameters())


@pytest.mark.parametrize("objective", ["upper", "both"])
def test_features_are_detached_unless_asked(objective):
    torch.manual_seed(0)
    through = {}
    for detach in (True, False):
        router = eq.FeatureRouter(4, 2)
        balancer = eq.LDC(2, router=router, detach_features=detach, router_objective=objective, normalize=None)
        features = torch.randn(6, 4, requires_grad=True)
        balancer(torch.tensor([1.0, 3.0], requires_grad=True), features).backward()
        through[detach] = features.grad
        assert router.network.weight.grad.abs().max() > 0
    assert through[True] is None and through[False].abs().max() > 0


def test_wrong_features_are_told():
    balancer = eq.LDC(2, router=eq.FeatureRouter(4, 2))
    losses = torch.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match=r"in_features=4 channels.*found 5, in shapes \[\(6, 5\)\]"):
        balancer(losses, torch.randn(6, 5))
    with pytest.raises(ValueError, match=r"must be \[batch, ...\].*found shape \(4,\)"):
        balancer(losses, torch.randn(4))
    with pytest.raises(ValueError, match="LDC needs `shared`"):
        balancer(losses)
    with pytest.raises(ValueError, match=r"`router` must return 2 weights; found shape \(6, 3\)"):
        eq.LDC(2, router=nn.Linear(4, 3))(losses, torch.randn(6, 4))


def test_features_caught_from_a_module():
    trunk = nn.Linear(3, 4)
    balancer = eq.LDC(2, router=eq.FeatureRouter(4, 2), shared=trunk)
    features = trunk(torch.randn(5, 3))
    balancer(list(features.square().mean(0)[:2])).backward()
    assert trunk.weight.grad is not None and balancer.router.network.weight.grad is not None


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(work, (port, str(folder)), nprocs=2)
    return [torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_are_one(kind, on_two_ranks):
    """Each rank has the one-process gradient on the router, without DDP around the balancer."""
    expected = run(kind, None)
    for found in on_two_ranks:
        for name, value in expected.items():
            close(found[kind][name], value, 1e-10)
