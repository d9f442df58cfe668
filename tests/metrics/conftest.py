import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

REDUCE = Path(__file__).with_name("reduce_on_ranks.py")


@pytest.fixture(scope="session")
def batches():
    """Four uneven batches of predictions and targets for every metric, some pixels without a label."""
    rng = np.random.default_rng(0)
    found = []
    for size in (3, 2, 1, 2):
        shape = (size, 6, 8)
        labels = rng.integers(-1, 5, shape)
        labels[labels == 3] = 2  # a class that never occurs
        depth = np.where(rng.random((size, 1, 6, 8)) < 0.2, 0.0, rng.uniform(0.5, 9, (size, 1, 6, 8)))
        normals = rng.normal(size=(size, 3, 6, 8))
        normals *= (rng.random((size, 1, 6, 8)) > 0.3) / np.linalg.norm(normals, axis=1, keepdims=True)
        normals[0, :, 0, 0] = (0.6, -0.8, 0.2)  # not of unit length
        normals[0, :, 0, 1] = (2**-0.5, -(2**-0.5), 0.0)  # a normal whose entries add up to 0
        offsets = rng.normal(size=(size, 2, 6, 8)) * (rng.random((size, 1, 6, 8)) > 0.5)
        batch = {
            "scores": rng.normal(size=(size, 5, 6, 8)) - 9 * (np.arange(5) == 3)[:, None, None],
            "labels": labels,
            "depth_prediction": depth + rng.normal(size=depth.shape),
            "depth": depth,
            "normal_prediction": 3 * (normals + 0.4 * rng.normal(size=normals.shape)),
            "normals": normals,
            "offset_prediction": offsets + rng.normal(size=offsets.shape),
            "offsets": offsets,
            "logits": rng.normal(size=(size * 5, 7)),
            "attributes": (rng.random((size * 5, 7)) < 0.4).astype(np.uint8),
        }
        found.append({name: torch.from_numpy(v if v.dtype != float else v.astype("f4")) for name, v in batch.items()})
    return found


@pytest.fixture(scope="session")
def on_two_ranks(batches, tmp_path_factory):
    """What every metric computes on each of two processes that saw two of the four batches."""
    folder = tmp_path_factory.mktemp("ranks")
    torch.save(batches, folder / "batches.pt")
    ranks = [subprocess.Popen([sys.executable, str(REDUCE), str(folder), str(rank)]) for rank in range(2)]
    assert [process.wait(120) for process in ranks] == [0, 0]
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.fixture(scope="session")
def joined(batches):
    """All batches as one, in float64."""
    return {name: np.concatenate([batch[name].numpy() for batch in batches]).astype(np.float64) for name in batches[0]}
