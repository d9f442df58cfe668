import pytest
import torch
import torch.nn.functional as F

from equipoise.suites.vision.augment import ZOOMS, augment, draw_crops
from equipoise.suites.vision.batches import generator

HEIGHT, WIDTH = 36, 60


@pytest.fixture(scope="module")
def batch():
    rng = torch.Generator().manual_seed(0)
    normal = F.normalize(torch.randn(9, 3, HEIGHT, WIDTH, generator=rng), dim=1)
    normal[:, :, :5] = 0.0  # a strip without normals
    return {
        "image": torch.rand(9, 3, HEIGHT, WIDTH, generator=rng),
        "segmentation": torch.randint(-1, 13, (9, HEIGHT, WIDTH), generator=rng),
        "depth": torch.rand(9, 1, HEIGHT, WIDTH, generator=rng),
        "normal": normal,
        "offset": torch.randn(9, 2, HEIGHT, WIDTH, generator=rng),
    }


@pytest.fixture(scope="module")
def crops():
    return draw_crops(9, HEIGHT, WIDTH, torch.Generator().manual_seed(3))


def one_by_one(batch, crops):
    """The published augmentation, an image at a time: cut, interpolate, flip."""
    found = {name: [] for name in batch}
    for i, (zoom, top, left, height, width, mirrored) in enumerate(crops.tolist()):
        rows, columns = slice(int(top), int(top + height)), slice(int(left), int(left + width))
        for name, field in batch.items():
            cut = field[i : i + 1, ..., rows, columns]
            if name in ("image", "normal"):
                seen = F.interpolate(cut, size=(HEIGHT, WIDTH), mode="bilinear", align_corners=True)[0]
            else:
                cut = cut[None] if name == "segmentation" else cut
                # floor(position * cut / size) in whole numbers; torch computes it in float32 and is off by one at some
                y = torch.arange(HEIGHT) * cut.shape[-2] // HEIGHT
                x = torch.arange(WIDTH) * cut.shape[-1] // WIDTH
                seen = cut[..., y[:, None], x].flatten(0, 1) if name == "segmentation" else cut[0][..., y[:, None], x]
                seen = seen[0] if name == "segmentation" else seen
            seen = seen.flip(-1) if mirrored else seen
            if name in ("normal", "offset") and mirrored:
                seen = torch.cat([-seen[:1], seen[1:]])
            if name == "normal":
                seen = seen / seen.norm(dim=0).clamp(min=1e-12)
            seen = seen / zoom if name == "depth" else seen * zoom if name == "offset" else seen
            found[name].append(seen)
    return {name: torch.stack(rows) for name, rows in found.items()}


def test_equals_the_published_augmentation_image_by_image(batch, crops):
    assert len(set(crops[:, 0].tolist())) == 3 and 0 < crops[:, 5].sum() < 9  # every zoom, both directions
    found, expected = augment(batch, crops), one_by_one(batch, crops)
    assert torch.equal(found["segmentation"], expected["segmentation"])
    for name in ("image", "depth", "offset"):
        torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=2e-5)
    # Where neighbours nearly cancel, a unit vector magnifies rounding.
    assert (found["normal"] - expected["normal"]).abs().median() < 1e-5
    assert (found["normal"] - expected["normal"]).abs().max() < 1e-2


def test_nearest_is_torchs_nearest(batch):
    crops = torch.tensor([[1.5, 3.0, 7.0, 24.0, 40.0, 0.0]])
    expected = F.interpolate(batch["depth"][:1, :, 3:27, 7:47], size=(HEIGHT, WIDTH), mode="nearest") / 1.5
    found = augment({"depth": batch["depth"][:1]}, crops)["depth"]
    assert (found == expected).float().mean() > 0.95  # torch rounds some whole positions down by one


def test_no_zoom_and_no_mirror_changes_nothing(batch):
    crops = torch.tensor([[1.0, 0.0, 0.0, HEIGHT, WIDTH, 0.0]] * 9)
    found = augment(batch, crops)
    for name, field in batch.items():
        torch.testing.assert_close(found[name], field, rtol=0, atol=1e-5)


def test_normals_are_unit_or_absent(batch, crops):
    length = augment(batch, crops)["normal"].norm(dim=1)
    assert (((length - 1).abs() < 1e-5) | (length == 0)).all()
    assert (length == 0).any()


def test_mirroring_twice_is_nothing(batch):
    crops = torch.tensor([[1.0, 0.0, 0.0, HEIGHT, WIDTH, 1.0]] * 9)
    once = augment(batch, crops)
    torch.testing.assert_close(once["normal"][:, 0], -batch["normal"][:, 0].flip(-1), rtol=0, atol=1e-5)
    assert torch.equal(augment(once, crops)["segmentation"], batch["segmentation"])


def test_draws_are_seeded_fair_and_inside():
    crops = draw_crops(6000, HEIGHT, WIDTH, generator(5, 2))
    assert torch.equal(crops, draw_crops(6000, HEIGHT, WIDTH, generator(5, 2)))
    assert not torch.equal(crops, draw_crops(6000, HEIGHT, WIDTH, generator(5, 3)))
    zoom, top, left, height, width, mirrored = crops.unbind(1)
    for value in ZOOMS:
        assert (zoom - value).abs().lt(1e-6).float().mean() == pytest.approx(1 / 3, abs=0.03)
    assert mirrored.mean() == pytest.approx(0.5, abs=0.03)
    assert (top >= 0).all() and (top + height <= HEIGHT).all() and (left + width <= WIDTH).all()
    deepest = zoom > 1.4
    assert top[deepest].max() == HEIGHT - 24 and top[deepest].min() == 0  # every place is possible
