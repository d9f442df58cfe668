from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

ORACLES = Path(__file__).parents[1] / "oracles"


@cache
def _load(name):
    with np.load(ORACLES / f"{name}.npz") as file:
        return {key: file[key] for key in file.files}


@pytest.fixture(scope="session")
def oracle():
    """The arrays of an oracle file by name."""
    return _load


@pytest.fixture(scope="session")
def apply():
    """One step of a balancer on losses given as numbers: the scalar and its gradient with respect to them."""

    def step(balancer, losses, **kwargs):
        leaf = torch.tensor(losses, dtype=torch.float64, requires_grad=True)
        scalar = balancer(leaf, **kwargs)
        scalar.backward()
        return scalar.item(), leaf.grad.numpy()

    return step
