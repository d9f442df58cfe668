"""A few made-up faces in CelebA's official layout and as a pack: for tests only."""

import io

import numpy as np
import pytest
from PIL import Image

from equipoise.suites.celeba.data import ATTRIBUTES


def _rows(count):
    """Attribute k of an image is written into one block of its pixels."""
    rng = np.random.default_rng(0)
    attributes = (rng.random((count, 40)) < 0.4).astype(np.uint8)
    blocks = np.zeros((count, 64), np.uint8)
    blocks[:, :40] = 60 + 150 * attributes
    images = np.kron(blocks.reshape(count, 8, 8, 1), np.ones((1, 8, 8, 3), np.uint8))
    part = np.arange(count) % 4  # two quarters train, one validation, one test
    return images.astype(np.uint8), attributes, np.where(part == 3, 0, part).astype(np.uint8)


def _png(image):
    file = io.BytesIO()
    Image.fromarray(image).save(file, "png")
    return file.getvalue()


@pytest.fixture(scope="session")
def write_pack():
    def write(path, count=32):
        images, attributes, part = _rows(count)
        files = [_png(image) for image in images]
        np.savez(
            path,
            img=np.frombuffer(b"".join(files), np.uint8),
            off=np.cumsum([0, *map(len, files)]),
            attr=np.packbits(attributes, axis=1),
            names=np.array(ATTRIBUTES),
            split=part,
        )
        return images, attributes, part

    return write


@pytest.fixture(scope="session")
def write_official():
    def write(folder, count=12):
        images, attributes, part = _rows(count)
        for name in ("Img/img_align_celeba", "Anno", "Eval"):
            (folder / name).mkdir(parents=True)
        names = [f"{i + 1:06d}.jpg" for i in range(count)]
        for name, image in zip(names, images, strict=True):
            picture = Image.fromarray(image).resize((178, 218), Image.Resampling.NEAREST)
            picture.save(folder / "Img/img_align_celeba" / name, quality=95)
        rows = [f"{n} " + " ".join("1" if v else "-1" for v in row) for n, row in zip(names, attributes, strict=True)]
        (folder / "Anno/list_attr_celeba.txt").write_text("\n".join([str(count), " ".join(ATTRIBUTES), *rows]) + "\n")
        parts = [f"{name} {value}" for name, value in zip(names, part, strict=True)]
        (folder / "Eval/list_eval_partition.txt").write_text("\n".join(parts) + "\n")
        return images, attributes, part

    return write
