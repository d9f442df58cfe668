import numpy as np
import pytest
import torch

from equipoise.metrics.segmentation import SegmentationScores


def reference(scores, labels):
    """Class by class from the definition, over the classes that occur."""
    predicted, ious = scores.argmax(1), []
    known = labels >= 0
    for c in range(5):
        both = np.sum(known & (predicted == c) & (labels == c))
        either = np.sum(known & ((predicted == c) | (labels == c)))
        if either:
            ious.append(both / either)
    return {"miou": np.mean(ious), "pixel_accuracy": np.mean(predicted[known] == labels[known])}


def run(batches):
    metric = SegmentationScores(5)
    for batch in batches:
        metric.update(batch["scores"], batch["labels"])
    return metric.compute()


def test_equals_the_definition_over_the_set(batches, joined):
    expected = reference(joined["scores"], joined["labels"])
    found = run(batches)
    assert {name: value.item() for name, value in found.items()} == pytest.approx(expected, rel=1e-6)


def test_ranks_add_up(batches, on_two_ranks):
    for found in on_two_ranks:
        assert found["segmentation"] == run(batches)


def test_a_class_nobody_sees_does_not_spoil_the_mean():
    metric = SegmentationScores(4)
    metric.update(torch.tensor([[[0, 1]]]), torch.tensor([[[0, 1]]]))
    assert metric.compute()["miou"] == 1.0


def test_pixels_without_a_label_count_nowhere():
    metric = SegmentationScores(2)
    metric.update(torch.tensor([[[0, 1, 1]]]), torch.tensor([[[0, -1, 255]]]))
    assert metric.confusion.tolist() == [[1, 0], [0, 0]]


def test_shapes_are_checked():
    with pytest.raises(ValueError, match=r"Found \[1, 2, 2\] and \[1, 2, 3\]"):
        SegmentationScores(2).update(torch.zeros(1, 2, 2), torch.zeros(1, 2, 3))
