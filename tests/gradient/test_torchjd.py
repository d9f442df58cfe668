"""TorchJD's own methods behind one scalar."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
import torchjd.aggregation as peer

import equipoise as eq
from gradient.helpers import close, gradients, inputs, net, step, weighted

JACOBIAN = torch.tensor([[2.0, 1.0, 0.0], [-1.0, 1.0, 1.0], [0.5, -1.0, 2.0]], dtype=torch.float64)
VALUES = torch.ones(3, dtype=torch.float64)
METHODS = {
    "weighting": (peer.MGDAWeighting(), peer.MGDA()),
    "aggregator of the Gram matrix": (peer.PCGrad(), None),
    "aggregator of the rows": (peer.ConFIG(), peer.ConFIG()),
    "weights that are none of the Gram's": (peer.Sum(), peer.Sum()),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("where", ["parameters", "features"])
def test_gives_what_torchjd_gives(name: str, where: str) -> None:
    method, aggregator = METHODS[name]
    balancer = eq.TorchJD(num_tasks=3, method=method).double()
    torch.manual_seed(0)
    found, heads = step(balancer, JACOBIAN, VALUES, where)
    torch.manual_seed(0)
    close([found], [(aggregator or method)(JACOBIAN)])
    assert torch.equal(heads, torch.ones_like(heads))


def test_a_zero_gradient_is_left_out() -> None:
    jacobian = torch.cat([JACOBIAN, torch.zeros(1, 3, dtype=torch.float64)])
    for method in (peer.MGDAWeighting(), peer.ConFIG()):
        found, _ = step(eq.TorchJD(num_tasks=4, method=method).double(), jacobian, torch.ones(4).double())
        alone, _ = step(eq.TorchJD(num_tasks=3, method=method).double(), JACOBIAN, VALUES)
        close([found], [alone])
        nothing, _ = step(eq.TorchJD(num_tasks=4, method=method).double(), jacobian * 0, torch.ones(4).double())
        assert nothing.abs().max() == 0


def test_absent_tasks_and_a_network() -> None:
    model, x = net(), inputs()
    balancer = eq.TorchJD(num_tasks=3, method=peer.MeanWeighting()).double()
    features = model.trunk(x)
    losses: list[Any] = model.losses(features)
    losses[1] = None
    balancer(losses, features).backward()
    expected = weighted(model, x, [0.5, 0.0, 0.5], [1.0, 0.0, 1.0])
    found = [torch.zeros_like(p) if g is None else g for p, g in zip(model.parameters(), gradients(model), strict=True)]
    close(found, expected)
    assert balancer.weights.tolist() == [0.5, 0.0, 0.5]


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match=r"`method` must be a Weighting or an Aggregator .*; found Linear"):
        eq.TorchJD(num_tasks=2, method=torch.nn.Linear(1, 1))
    with pytest.raises(ValueError, match="`low_memory` must be False for ConFIG"):
        eq.TorchJD(num_tasks=2, method=peer.ConFIG(), low_memory=True)
    eq.TorchJD(num_tasks=2, method=peer.MGDAWeighting(), low_memory=True)
    monkeypatch.setitem(sys.modules, "torchjd.aggregation", None)
    with pytest.raises(ImportError, match="pip install torchjd"):
        eq.TorchJD(num_tasks=2, method=peer.ConFIG())
