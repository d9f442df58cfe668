"""Building an LDC in float64 and reading what one step of it leaves."""

from __future__ import annotations

import warnings

import numpy as np
import torch

import equipoise as eq

#: LDC in its forms, for three tasks.
FORMS = {
    "default": {},
    "both": {"router_objective": "both"},
    "qm9": {"router": "sigmoid", "router_objective": "both", "normalize": "log"},
    "celeba": {"router": "sigmoid-free", "router_objective": "both", "normalize": None},
    "nyuv2-code": {
        "router": "softmax-clamped",
        "router_objective": "both",
        "normalize": "ratio",
        "divide": "attached",
    },
    "no-router": {"router": None, "tau": "ones"},
    "shuffle": {"pairs": "shuffle"},
    "all": {"pairs": "all", "floor": 0.1},
    "all-smooth": {"pairs": "all", "smooth": 0.01, "tau": "ones", "router_objective": "both", "penalty": 2.0},
    "listed": {"pairs": [(0, 2), (1, 0)], "normalize": (1.0, 2.0, 3.0), "min_losses": (0.0, -1.0, 0.1)},
}


def make(num_tasks, logits=None, cls=eq.LDC, **options):
    """An LDC in float64 with the given logits; the oracles' penalties below 1 are meant."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="penalty=")
        balancer = cls(num_tasks, **options).double()
    if logits is not None:
        with torch.no_grad():
            balancer.router.logits.copy_(torch.as_tensor(np.asarray(logits)))
    return balancer


def step(balancer, losses, **kwargs):
    """The scalar and its gradients with respect to the losses and the logits (zeros where none)."""
    leaf = torch.tensor(np.asarray(losses), dtype=torch.float64, requires_grad=True)
    scalar = balancer(leaf, **kwargs)
    balancer.zero_grad()
    scalar.backward()
    logits = getattr(balancer.router, "logits", None)
    dw = np.zeros(len(losses)) if logits is None or logits.grad is None else logits.grad.numpy().copy()
    return scalar.item(), leaf.grad.numpy(), dw


def close(found, expected, rtol=1e-6):
    """Relative to the largest entry."""
    expected = np.asarray(expected)
    scale = max(np.abs(expected).max(), 1e-10) if expected.size else 1.0
    np.testing.assert_allclose(np.asarray(found), expected, rtol=0, atol=rtol * scale)


def losses_at(t, scales=(1.0, 10.0, 100.0)):
    rng = np.random.default_rng(t)
    return np.asarray(scales) * np.exp(0.3 * rng.normal(size=len(scales)))
