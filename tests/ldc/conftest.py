from functools import cache
from pathlib import Path

import numpy as np
import pytest

ORACLES = Path(__file__).parents[1] / "oracles"


@cache
def _load(name):
    with np.load(ORACLES / f"{name}.npz") as file:
        return {key: file[key] for key in file.files}


@pytest.fixture(scope="session")
def oracle():
    """The arrays of an oracle file by name."""
    return _load
