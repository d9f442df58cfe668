"""docs/ldc-double.md on real molecules: the paper's ratio of norms, where it holds and where it does not."""

import runpy
from pathlib import Path

import numpy as np
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "double_loop.py"


@pytest.fixture(scope="module")
def ratio():
    norms = runpy.run_path(str(EXAMPLE))["norms"]

    def median(batch, **options):
        at_x, at_z = norms(batch, steps=40, **options).T
        return np.median(at_x[at_x > 0] / at_z[at_x > 0])

    return median


def test_small_batches_are_learnt_by_heart(ratio):
    assert ratio(3, normalize=None) > 100


def test_larger_batches_are_not(ratio):
    assert 0.5 < ratio(128, normalize=None) < 2


def test_log_losses_reverse_it(ratio):
    assert ratio(128, router="sigmoid", normalize="log") < 1
