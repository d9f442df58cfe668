import numpy as np
import pytest
import torch

from equipoise.metrics.depth import DepthErrors


def reference(prediction, depth):
    valid = depth != 0
    error = np.abs(prediction - depth)[valid]
    return {"absolute": error.mean(), "relative": (error / depth[valid]).mean()}


def run(batches, average="pixels"):
    metric = DepthErrors(average)
    for batch in batches:
        metric.update(batch["depth_prediction"], batch["depth"])
    return {name: value.item() for name, value in metric.compute().items()}


def test_equals_the_definition_over_the_set(batches, joined):
    assert run(batches) == pytest.approx(reference(joined["depth_prediction"], joined["depth"]), rel=1e-6)


def test_the_published_form_averages_batches(batches, joined):
    each = [reference(b["depth_prediction"].double().numpy(), b["depth"].double().numpy()) for b in batches]
    expected = {name: np.mean([row[name] for row in each]) for name in each[0]}
    found = run(batches, "batches")
    assert found == pytest.approx(expected, rel=1e-6)
    assert found["absolute"] != pytest.approx(run(batches)["absolute"], rel=1e-3)


@pytest.mark.parametrize(("name", "average"), [("depth", "pixels"), ("depth by batches", "batches")])
def test_ranks_add_up(batches, on_two_ranks, name, average):
    for found in on_two_ranks:
        assert {k: v.item() for k, v in found[name].items()} == pytest.approx(run(batches, average), rel=1e-6)


def test_a_batch_without_depth_is_no_batch():
    metric = DepthErrors("batches")
    metric.update(torch.ones(1, 2), torch.zeros(1, 2))
    metric.update(torch.ones(1, 2), torch.full((1, 2), 2.0))
    assert metric.compute() == {"absolute": 1.0, "relative": 0.5}


def test_bad_input_is_named():
    with pytest.raises(ValueError, match=r"should be 'pixels' or 'batches'\. Found 'images'"):
        DepthErrors("images")
    with pytest.raises(ValueError, match=r"Found \[2\] and \[3\]"):
        DepthErrors().update(torch.zeros(2), torch.zeros(3))
