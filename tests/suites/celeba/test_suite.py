import numpy as np
import pytest
import torch
import torch.nn.functional as F

import equipoise as eq
from equipoise.suites.celeba.suite import CelebA, CelebAPack


@pytest.fixture(scope="module")
def twin(tmp_path_factory, write_pack):
    folder = tmp_path_factory.mktemp("celeba")
    write_pack(folder / "celeba.npz")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EQUIPOISE_CACHE", str(folder / "cache"))
        yield lambda **options: CelebAPack(data=folder / "celeba.npz", **{"batch_size": 6, **options})


def test_published_sizes_and_constants():
    suite = CelebA()
    model = suite.model()
    assert sum(p.numel() for p in suite.shared_parameters(model)) == 5_176_640
    assert sum(p.numel() for p in model.heads.parameters()) == 20_520
    assert len(suite.metrics) == len(suite.tasks) == len(suite.stl) == 40
    assert np.mean(list(suite.stl.values())) == pytest.approx(0.69713, abs=1e-5)


def test_batches_follow_from_seed_and_epoch(twin):
    suite = twin(seed=3)
    epochs = [torch.cat([b.attributes for b in suite.batches(epoch)]) for epoch in (0, 1, 0)]
    assert len(suite.batches(0)) == 2  # 16 training images, batches of 6, always full
    assert torch.equal(epochs[0], epochs[2])
    assert not torch.equal(epochs[0], epochs[1])
    other = torch.cat([b.attributes for b in twin(seed=4).batches(0)])
    assert not torch.equal(epochs[0], other)


def test_batches_hold_training_images_only_with_their_own_labels(twin):
    suite = twin(batch_size=16)
    (batch,) = suite.batches(0)
    assert batch.images.shape == (16, 3, 64, 64)
    assert batch.images.is_contiguous(memory_format=torch.channels_last)
    written = (batch.images[:, 0, 3::8, 3::8].flatten(1)[:, :40] > 130).to(torch.uint8)
    assert torch.equal(written, batch.attributes)
    train = suite.faces.attributes[suite.faces.part == 0]
    assert sorted(map(bytes, batch.attributes.numpy())) == sorted(map(bytes, train))


def test_losses_are_the_mean_cross_entropy_of_each_task(twin):
    suite = twin()
    model = suite.model()
    batch = next(iter(suite.batches(0)))
    losses, features = suite.losses(model, batch)
    logits = F.linear(features, model.heads.weight, model.heads.bias)
    for task in (0, 7, 39):
        expected = F.binary_cross_entropy(logits[:, task].sigmoid(), batch.attributes[:, task].float())
        torch.testing.assert_close(losses[task], expected)


def test_each_head_has_a_gradient_of_its_own(twin):
    suite = twin()
    model = suite.model()
    losses, features = suite.losses(model, next(iter(suite.batches(0))))
    row, at_features = torch.autograd.grad(losses[5], [model.heads.weight, features])
    assert row[5].abs().sum() > 0 and row[torch.arange(40) != 5].abs().sum() == 0
    assert at_features.abs().sum() > 0


def test_a_model_follows_from_the_seed_and_leaves_the_generator_alone(twin):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, again, other = twin(seed=1).model(), twin(seed=1).model(), twin(seed=2).model()
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(first.heads.weight, again.heads.weight)
    assert not torch.equal(first.heads.weight, other.heads.weight)


def test_features_and_losses_stay_float32_under_autocast(twin):
    suite = twin()
    with torch.autocast("cpu", torch.bfloat16):
        losses, features = suite.losses(suite.model(), next(iter(suite.batches(0))))
    assert losses.dtype == features.dtype == torch.float32


def test_training_learns_what_the_twin_writes_into_its_pixels(twin):
    suite = twin(batch_size=16, seed=0)
    model = suite.model()
    balancer = eq.LS(tasks=suite.tasks)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    means = []
    for epoch in range(6):
        for batch in suite.batches(epoch):
            losses, features = suite.losses(model, batch)
            optimizer.zero_grad()
            balancer(losses, shared=features).backward()
            optimizer.step()
            means.append(losses.mean().item())
    assert means[-1] < 0.6 * means[0]


def test_evaluate_reads_every_image_of_the_part_once(twin):
    suite = twin()
    model = suite.model()
    scores = suite.evaluate(model, "test")
    assert model.training  # as it was found
    test = suite.faces.part == 2
    model.eval()
    with torch.no_grad():
        images = torch.from_numpy(suite.faces.images[test]).permute(0, 3, 1, 2).float() / 255
        predicted = (model(images)[0] > 0).numpy()
    true = suite.faces.attributes[test] > 0
    hits, marked = (predicted & true).sum(0), predicted.sum(0) + true.sum(0)
    expected = np.where(marked > 0, 2 * hits / np.maximum(marked, 1), 0.0)
    np.testing.assert_allclose([scores[name] for name in suite.tasks], expected, rtol=1e-6)
