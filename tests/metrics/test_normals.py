import numpy as np
import pytest
import torch

from equipoise.metrics.normals import NormalErrors


def angles(prediction, target):
    """By the arc cosine, in float64."""
    prediction, target = (np.moveaxis(x, 1, -1).reshape(-1, 3).astype(np.float64) for x in (prediction, target))
    valid = np.any(target != 0, axis=1)
    p, t = prediction[valid], target[valid]
    cosine = (p * t).sum(1) / np.linalg.norm(p, axis=1) / np.linalg.norm(t, axis=1)
    return np.degrees(np.arccos(np.clip(cosine, -1, 1)))


def reference(prediction, target):
    found = angles(prediction, target)
    lower_median = np.sort(found)[(len(found) - 1) // 2]
    within = {f"within_{limit:g}": np.mean(found < limit) for limit in (11.25, 22.5, 30)}
    return {"mean": found.mean(), "median": lower_median, **within}


def run(batches, average="pixels"):
    metric = NormalErrors(average)
    for batch in batches:
        metric.update(batch["normal_prediction"], batch["normals"])
    return {name: value.item() for name, value in metric.compute().items()}


def test_equals_the_definition_over_all_pixels(batches, joined):
    expected = reference(joined["normal_prediction"], joined["normals"])
    found = run(batches)
    assert found.pop("median") == pytest.approx(expected.pop("median"), abs=0.003)
    assert found == pytest.approx(expected, rel=1e-5)


def test_the_median_of_many_pixels():
    rng = torch.Generator().manual_seed(1)
    prediction, target = torch.randn(2, 4, 3, 50, 50, generator=rng).unbind(0)
    metric = NormalErrors()
    metric.update(prediction, target)
    expected = reference(prediction.numpy(), target.numpy())["median"]
    assert metric.compute()["median"].item() == pytest.approx(expected, abs=0.003)


def test_the_published_form_averages_batches(batches):
    each = [reference(b["normal_prediction"].numpy(), b["normals"].numpy()) for b in batches]
    expected = {name: np.mean([row[name] for row in each]) for name in each[0]}
    found = run(batches, "batches")
    assert found == pytest.approx(expected, rel=1e-5)
    assert abs(found["median"] - run(batches)["median"]) > 0.1  # a mean of medians is another number


@pytest.mark.parametrize(("name", "average"), [("normals", "pixels"), ("normals by batches", "batches")])
def test_ranks_add_up(batches, on_two_ranks, name, average):
    for found in on_two_ranks:
        assert {k: v.item() for k, v in found[name].items()} == pytest.approx(run(batches, average), rel=1e-6)


def test_a_normal_whose_entries_add_up_to_zero_counts():
    target = torch.tensor([2**-0.5, -(2**-0.5), 0.0]).view(1, 3, 1, 1)
    metric = NormalErrors()
    metric.update(-target, target)
    assert metric.compute()["mean"] == 180


def test_tiny_angles_are_not_lost():
    target = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)
    metric = NormalErrors("batches")
    metric.update(target + torch.tensor([0.0, 1e-5, 0.0]).view(1, 3, 1, 1), target)
    assert metric.compute()["mean"].item() == pytest.approx(np.degrees(1e-5), rel=1e-4)


def test_shapes_are_checked():
    with pytest.raises(ValueError, match=r"Found \[1, 2, 1, 1\] and \[1, 2, 1, 1\]"):
        NormalErrors().update(torch.zeros(1, 2, 1, 1), torch.zeros(1, 2, 1, 1))
