"""The published network: nine convolution and fully connected layers for everybody, one linear layer a task."""

from __future__ import annotations

import torch
from torch import Tensor, nn

FEATURES = 512
_STAGES = ((64,), (128, 128), (256, 256), (512, 512))


class FaceNet(nn.Module):
    """Images [B, 3, H, W] in [0, 1] to one logit a task [B, K], and the features [B, 512] they are read off.

    The K heads are one matrix product; task k's own parameters are row k of its weight and bias.

    >>> net = FaceNet(num_tasks=40)
    >>> sum(p.numel() for p in net.trunk.parameters()), sum(p.numel() for p in net.heads.parameters())
    (5176640, 20520)
    """

    def __init__(self, num_tasks: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = 3
        for stage in _STAGES:
            if layers:
                layers.append(nn.MaxPool2d(2))
            for out in stage:
                layers += [nn.Conv2d(width, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]
                width = out
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        for _ in range(2):
            layers += [nn.Linear(width, FEATURES, bias=False), nn.BatchNorm1d(FEATURES), nn.ReLU(inplace=True)]
            width = FEATURES
        self.trunk = nn.Sequential(*layers)
        self.heads = nn.Linear(FEATURES, num_tasks)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        # The heads stay in float32 under autocast: they cost nothing, and the tasks' gradients are taken here.
        features = self.trunk(images).float()
        with torch.autocast(features.device.type, enabled=False):
            return self.heads(features), features
