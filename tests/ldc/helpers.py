"""Building an LDC in float64 and reading what one step of it leaves."""

from __future__ import annotations

import warnings

import numpy as np
import torch

import equipoise as eq


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
