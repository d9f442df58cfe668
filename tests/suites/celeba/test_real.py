"""On real images, by hand: EQUIPOISE_CELEBA=<CelebA's folder, or a pack> pytest -m slow tests/suites/celeba"""

import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.suites.celeba.data import Faces
from equipoise.suites.celeba.suite import CelebA, CelebAPack

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data():
    if "EQUIPOISE_CELEBA" not in os.environ:
        pytest.skip("EQUIPOISE_CELEBA does not say where the images are")
    return Path(os.environ["EQUIPOISE_CELEBA"])


@pytest.fixture(scope="module")
def suite(data):
    official = data.is_dir() and (data / "Anno").exists()
    return (CelebA if official else CelebAPack)(data=data, batch_size=64)


def test_the_cache_feeds_20_000_images_a_second(suite):
    suite.rows.take(torch.arange(10))
    start, count = time.perf_counter(), 0
    for batch in suite.batches(0):
        count += len(batch.images)
    assert count / (time.perf_counter() - start) > 20_000


def test_one_epoch_on_a_few_hundred_images_learns(data, suite):
    train, test = (np.flatnonzero(suite.faces.part == part) for part in (0, 2))
    rows = np.concatenate([train[:640], test[:300]])
    few = type(suite)(data=data, batch_size=64)
    few.faces = Faces(*(field[rows] for field in suite.faces))
    model = few.model()
    balancer = eq.make("ldc", tasks=few.tasks, **few.presets["ldc"].options)
    optimizer = torch.optim.Adam([*model.parameters(), *balancer.parameters()], lr=1e-3)
    means = []
    for batch in few.batches(0):
        losses, features = few.losses(model, batch)
        optimizer.zero_grad()
        balancer(losses, shared=features).backward()
        optimizer.step()
        means.append(losses.mean().item())
    assert len(means) == 10
    assert np.mean(means[-3:]) < 0.9 * means[0]
    scores = few.evaluate(model, "test")
    assert scores["Male"] >= 0 and all(np.isfinite(value) for value in scores.values())
