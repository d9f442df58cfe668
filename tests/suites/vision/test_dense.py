import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.suites.nyuv2.suite import NYUv2
from equipoise.suites.vision.dense import distance_loss, normal_loss, segmentation_loss

SHAPE = (32, 64)


class Twin(NYUv2):
    """Six made-up images to train on and three to test on."""

    def load(self):
        rng = np.random.default_rng(0)
        count = 9
        label = np.repeat(np.repeat(rng.integers(-1, 13, (count, 4, 8)), 8, 1), 8, 2).astype(np.int8)
        noise = rng.integers(0, 30, (count, *SHAPE, 3))
        normal = rng.normal(size=(count, *SHAPE, 3))
        return {
            "image": (noise + 15 * (label[..., None] + 1)).astype(np.uint8),
            "part": np.arange(count, dtype=np.uint8) // 6,
            "segmentation": label,
            "depth": (0.5 + 0.3 * (label + 1)).astype(np.float16),
            "normal": (normal / np.linalg.norm(normal, axis=-1, keepdims=True)).astype(np.float16),
        }


@pytest.fixture(scope="module")
def suite():
    return Twin(seed=1, batch_size=4)


@pytest.fixture(scope="module")
def model(suite):
    return suite.model()


def test_losses_against_numpy():
    rng = np.random.default_rng(1)
    scores, labels = rng.normal(size=(2, 5, 3, 4)), rng.integers(-1, 5, (2, 3, 4))
    log = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    picked = np.take_along_axis(log, np.maximum(labels, 0)[:, None], 1)[:, 0]
    expected = -picked[labels >= 0].mean()
    assert segmentation_loss(torch.tensor(scores), torch.tensor(labels)).item() == pytest.approx(expected)
    for channels in (1, 2):
        prediction, target = rng.normal(size=(2, 2, channels, 3, 4))
        target[:, :, 0, :2] = 0.0
        valid = np.any(target != 0, axis=1)
        expected = np.abs(prediction - target).sum(1)[valid].mean()
        assert distance_loss(torch.tensor(prediction), torch.tensor(target)).item() == pytest.approx(expected)
    prediction, target = rng.normal(size=(2, 2, 3, 3, 4))
    target /= np.linalg.norm(target, axis=1, keepdims=True)
    target[0, :, 0] = 0.0
    target[1, :, 0, 0] = (2**-0.5, -(2**-0.5), 0.0)  # a valid normal whose entries add up to 0
    cosine = (prediction / np.linalg.norm(prediction, axis=1, keepdims=True) * target).sum(1)
    expected = 1 - cosine[np.any(target != 0, axis=1)].mean()
    assert normal_loss(torch.tensor(prediction), torch.tensor(target)).item() == pytest.approx(expected)


def test_a_batch_without_any_label_has_a_finite_loss():
    scores = torch.zeros(1, 3, 2, 2, requires_grad=True)
    loss = segmentation_loss(scores, torch.full((1, 2, 2), -1))
    loss.backward()
    assert loss == 0 and scores.grad.abs().sum() == 0
    assert distance_loss(torch.ones(1, 1, 2, 2), torch.zeros(1, 1, 2, 2)) == 0


def test_batches_follow_from_seed_and_epoch(suite):
    first, again, later = (list(suite.batches(epoch)) for epoch in (0, 0, 1))
    assert len(suite.batches(0)) == len(first) == 1
    for name in ("image", "segmentation", "depth", "normal"):
        assert torch.equal(first[0][name], again[0][name])
    assert not torch.equal(first[0]["image"], later[0]["image"])


def test_without_augmentation_the_rows_come_as_they_are():
    suite = Twin(seed=1, batch_size=6, augmentation=False)
    (batch,) = suite.batches(0)
    labels = torch.from_numpy(suite.arrays["segmentation"][:6]).long()
    assert sorted(batch["segmentation"].sum((1, 2)).tolist()) == sorted(labels.sum((1, 2)).tolist())
    assert batch["depth"].shape == (6, 1, *SHAPE) and batch["normal"].shape == (6, 3, *SHAPE)
    assert batch["image"].max() <= 1.0


def test_losses_are_attached_and_features_feed_the_published_router(suite, model):
    batch = next(iter(suite.batches(0)))
    losses, features = suite.losses(model, batch)
    assert losses.shape == (3,) and features.shape == (4, 3 * 64, *SHAPE)
    preset = suite.presets["ldc"]
    balancer = eq.make(preset.method, tasks=suite.tasks, **preset.options)
    balancer(losses, shared=features).backward()
    assert all(p.grad is not None for p in balancer.parameters())
    weights = balancer.weights
    assert ((weights >= 0.2 - 1e-6) & (weights <= 0.8 + 1e-6)).all()
    model.zero_grad(set_to_none=True)


def test_evaluate_has_every_metric_and_leaves_the_mode(suite, model):
    scores = suite.evaluate(model, "test")
    assert list(scores) == [metric.name for metric in suite.metrics] == list(suite.stl)
    assert all(np.isfinite(value) for value in scores.values())
    assert model.training
    with pytest.raises(ValueError, match="has no validation images"):
        suite.evaluate(model, "validation")


def test_training_lowers_every_loss():
    suite = Twin(seed=0, batch_size=6, augmentation=False, attention=False)
    model = suite.model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    balancer = eq.LS(tasks=suite.tasks)
    seen = []
    for epoch in range(5):
        for batch in suite.batches(epoch):
            losses, features = suite.losses(model, batch)
            optimizer.zero_grad()
            balancer(losses, shared=features).backward()
            optimizer.step()
            seen.append(losses.detach())
    assert (seen[-1][:2] < 0.95 * seen[0][:2]).all()
