import numpy as np
import pytest
import torch

from equipoise.metrics.offsets import OffsetError


def run(batches):
    metric = OffsetError()
    for batch in batches:
        metric.update(batch["offset_prediction"], batch["offsets"])
    return metric.compute().item()


def test_equals_the_definition_in_pixels(batches, joined):
    error = np.linalg.norm(joined["offset_prediction"] - joined["offsets"], axis=1) * 8
    inside = np.any(joined["offsets"] != 0, axis=1)
    assert run(batches) == pytest.approx(error[inside].mean(), rel=1e-6)


def test_ranks_add_up(batches, on_two_ranks):
    for found in on_two_ranks:
        assert found["offsets"].item() == pytest.approx(run(batches), rel=1e-6)


def test_shapes_are_checked():
    with pytest.raises(ValueError, match=r"Found \[2, 3\] and \[2, 3\]"):
        OffsetError().update(torch.zeros(2, 3), torch.zeros(2, 3))
