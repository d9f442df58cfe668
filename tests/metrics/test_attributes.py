import numpy as np
import pytest
import torch

from equipoise.metrics.attributes import AttributeF1


def run(batches):
    metric = AttributeF1(7)
    for batch in batches:
        metric.update(batch["logits"], batch["attributes"])
    return metric.compute()


def test_equals_precision_and_recall_over_the_set(batches, joined):
    predicted, true = 1 / (1 + np.exp(-joined["logits"])) > 0.5, joined["attributes"] > 0
    hits = (predicted & true).sum(0)
    precision, recall = hits / predicted.sum(0), hits / true.sum(0)
    np.testing.assert_allclose(run(batches), 2 * precision * recall / (precision + recall), rtol=1e-6)


def test_ranks_add_up(batches, on_two_ranks):
    for found in on_two_ranks:
        assert torch.equal(found["attributes"], run(batches))


def test_an_attribute_nobody_has_or_predicts_is_zero():
    metric = AttributeF1(2)
    metric.update(torch.tensor([[-1.0, 1.0]]), torch.tensor([[0, 1]]))
    assert metric.compute().tolist() == [0.0, 1.0]


def test_shapes_are_checked():
    with pytest.raises(ValueError, match=r"both be \[B, 3\]\. Found \[1, 2\] and \[1, 2\]"):
        AttributeF1(3).update(torch.zeros(1, 2), torch.zeros(1, 2))
