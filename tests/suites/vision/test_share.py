"""Ranks' shares of a batch of images: labelled pixels are counted, so that joined losses are the whole batch's."""

import torch

from equipoise.suites.vision.dense import DenseSuite, dense_protocol, depth, normal, segmentation


class Indoors(DenseSuite):
    name = "indoors"
    dense = (segmentation(3), depth(), normal())
    tasks = ("segmentation", "depth", "normal")
    protocol = dense_protocol(5)

    def load(self):
        raise AssertionError("no data are needed to share a batch")


def test_joined_losses_are_those_of_the_whole_batch():
    torch.manual_seed(0)
    holes = (torch.rand(5, 1, 4, 4) < 0.4).float() * torch.tensor([1.0, 0.2, 1, 1, 0]).view(5, 1, 1, 1).ceil()
    batch = {
        "image": torch.rand(5, 3, 4, 4),
        "segmentation": torch.randint(-1, 3, (5, 4, 4)),
        "depth": torch.rand(5, 1, 4, 4) * holes,
        "normal": torch.nn.functional.normalize(torch.randn(5, 3, 4, 4), dim=1) * holes,
    }
    guesses = {
        "segmentation": torch.randn(5, 3, 4, 4),
        "depth": torch.rand(5, 1, 4, 4),
        "normal": torch.randn(5, 3, 4, 4),
    }
    suite = Indoors()

    def losses(labels, mine):
        return torch.stack([task.loss(guesses[task.name][mine], labels[task.name]) for task in suite.dense])

    parts = [suite.share(batch, rank, 3) for rank in range(3)]
    counts = torch.stack([counts for _, counts in parts])
    joined = sum(
        losses(labels, slice(rank, None, 3)) * counts[rank] for rank, (labels, _) in enumerate(parts)
    ) / counts.sum(0)
    torch.testing.assert_close(joined, losses(batch, slice(None)))
    assert suite.share(batch, 5, 6)[1].tolist() == [0, 0, 0]  # one image too few for everybody
