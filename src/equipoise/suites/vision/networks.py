"""SegNet, plain and with task attention (MTAN), from one convolution block, one backbone and one attention gate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTHS = (64, 128, 256, 512, 512)
_SECOND_CONVS = (1, 1, 2, 2, 2)  # at each level, after the convolution that changes the width
_LEVELS = range(len(WIDTHS))

Net = TypeVar("Net", bound=nn.Module)


def seeded(make: Callable[[], Net], seed: int) -> Net:
    """A network whose initial weights follow from the seed alone; torch's global generator is left as it was.

    >>> torch.equal(seeded(lambda: nn.Linear(2, 2), 1).weight, seeded(lambda: nn.Linear(2, 2), 1).weight)
    True
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def conv_block(width: int, out: int) -> nn.Sequential:
    """A 3 x 3 convolution, batch normalisation, ReLU."""
    return nn.Sequential(nn.Conv2d(width, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(inplace=True))


def conv_blocks(width: int, count: int) -> nn.Sequential:
    return nn.Sequential(*(conv_block(width, width) for _ in range(count)))


def gate(width: int, out: int) -> nn.Sequential:
    """An attention mask between 0 and 1 from two 1 x 1 convolutions."""
    return nn.Sequential(
        nn.Conv2d(width, out, 1), nn.BatchNorm2d(out), nn.ReLU(inplace=True),
        nn.Conv2d(out, out, 1), nn.BatchNorm2d(out), nn.Sigmoid(),
    )  # fmt: skip


def below(level: int) -> int:
    """The width the decoder comes out with at a level: that of the level above it in the picture."""
    return WIDTHS[max(level - 1, 0)]


class Head(nn.Module):
    """A task's prediction from the last features; its last layer stays in float32 under autocast."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.hidden = nn.Conv2d(WIDTHS[0], WIDTHS[0], 3, padding=1)
        self.out = nn.Conv2d(WIDTHS[0], channels, 1)

    def forward(self, features: Tensor) -> Tensor:
        hidden = self.hidden(features).float()
        with torch.autocast(hidden.device.type, enabled=False):
            return self.out(hidden)  # type: ignore[no-any-return]


def unpool(values: Tensor, indices: Tensor, shape: torch.Size) -> Tensor:
    """Zeros of `shape` with the values where pooling found its maxima; unlike torch's own, the same on every run.

    >>> pooled, index = F.max_pool2d(torch.tensor([[[[1.0, 4.0], [3.0, 2.0]]]]), 2, return_indices=True)
    >>> unpool(pooled, index, torch.Size([1, 1, 2, 2]))
    tensor([[[[0., 4.],
              [0., 0.]]]])
    """
    found = values.new_zeros(*shape[:2], shape[2] * shape[3])
    return found.scatter(2, indices.flatten(2), values.flatten(2)).view(shape)


class Level(NamedTuple):
    """What the backbone has at one level: coming in, and after its last convolution, on the way down or up."""

    entry: Tensor
    exit: Tensor


class Backbone(nn.Module):
    """SegNet's encoder and decoder: pooling remembers where the maxima were, unpooling puts values back there."""

    def __init__(self) -> None:
        super().__init__()
        ins = (3, *WIDTHS[:-1])
        self.down_first = nn.ModuleList(conv_block(ins[i], WIDTHS[i]) for i in _LEVELS)
        self.down_rest = nn.ModuleList(conv_blocks(WIDTHS[i], _SECOND_CONVS[i]) for i in _LEVELS)
        self.up_first = nn.ModuleList(conv_block(WIDTHS[i], below(i)) for i in _LEVELS)
        self.up_rest = nn.ModuleList(conv_blocks(below(i), _SECOND_CONVS[i]) for i in _LEVELS)

    def forward(self, x: Tensor) -> tuple[list[Level], list[Level]]:
        """The encoder's levels (entry: after the first convolution) and the decoder's (entry: unpooled)."""
        down, indices = [], []
        for i in _LEVELS:
            entry = self.down_first[i](x)
            exit = self.down_rest[i](entry)
            down.append(Level(entry, exit))
            x, index = F.max_pool2d(exit, 2, return_indices=True)
            indices.append(index)
        up = []
        for i in reversed(_LEVELS):
            entry = unpool(x, indices[i], down[i].exit.shape)
            x = self.up_rest[i](self.up_first[i](entry))
            up.append(Level(entry, x))
        return down, up[::-1]


class Plain(nn.Module):
    """The trunk of SegNet: what the decoder ends with, for every task."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = Backbone()

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.backbone(images)[1][0].exit
        return features


class TaskAttention(nn.Module):
    """One task's gates, on the way down and up, and the task's features they pick out of the backbone's."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(gate(WIDTHS[i] if i == 0 else 2 * WIDTHS[i], WIDTHS[i]) for i in _LEVELS)
        self.up = nn.ModuleList(gate(WIDTHS[i] + below(i), below(i)) for i in _LEVELS)

    def forward(self, down_step: nn.ModuleList, up_step: nn.ModuleList, down: list[Level], up: list[Level]) -> Tensor:
        """The task's last features; the steps from level to level are those of all tasks."""
        passed = down[0].entry[:, :0]  # nothing is passed on to the first level
        for i in _LEVELS:
            mask = self.down[i](torch.cat([down[i].entry, passed], dim=1))
            passed = F.max_pool2d(down_step[i](mask * down[i].exit), 2)
        for i in reversed(_LEVELS):
            passed = F.interpolate(passed, size=up[i].entry.shape[-2:], mode="bilinear", align_corners=True)
            mask = self.up[i](torch.cat([up[i].entry, up_step[i](passed)], dim=1))
            passed = mask * up[i].exit
        return passed


class Attended(nn.Module):
    """The trunk of MTAN: the backbone, and each task's way through it; the tasks' features side by side."""

    def __init__(self, num_tasks: int) -> None:
        super().__init__()
        self.backbone = Backbone()
        above = (*WIDTHS[1:], WIDTHS[-1])
        self.down_step = nn.ModuleList(conv_block(WIDTHS[i], above[i]) for i in _LEVELS)
        self.up_step = nn.ModuleList(conv_block(WIDTHS[i], below(i)) for i in _LEVELS)
        self.attention = nn.ModuleList(TaskAttention() for _ in range(num_tasks))

    def forward(self, images: Tensor) -> Tensor:
        down, up = self.backbone(images)
        return torch.cat([task(self.down_step, self.up_step, down, up) for task in self.attention], dim=1)


class SegNet(nn.Module):
    """SegNet, plain or with task attention (MTAN): the tasks' predictions, and the features they are read off.

    channels: of each task's prediction.
    attention: each task picks its own features, [B, 64 K, H, W] in all, of which task k's head reads channels 64 k
        to 64 k + 63. They are NOT shared, so gradient methods need the shared parameters here: the trunk's. Without
        attention every head reads the same 64.

    >>> net = SegNet((7, 1), attention=False)
    >>> predictions, features = net(torch.zeros(2, 3, 32, 32))
    >>> [tuple(p.shape) for p in predictions], tuple(features.shape)
    ([(2, 7, 32, 32), (2, 1, 32, 32)], (2, 64, 32, 32))
    >>> sum(p.numel() for p in SegNet((13, 1, 3)).parameters())
    44229073
    """

    def __init__(self, channels: Sequence[int], *, attention: bool = True) -> None:
        super().__init__()
        self.attention = attention
        self.trunk = Attended(len(channels)) if attention else Plain()
        self.heads = nn.ModuleList(Head(count) for count in channels)
        _initialise(self)

    def forward(self, images: Tensor) -> tuple[list[Tensor], Tensor]:
        features = self.trunk(images)
        parts = torch.split(features, WIDTHS[0], dim=1) if self.attention else [features] * len(self.heads)
        return [head(part) for head, part in zip(self.heads, parts, strict=True)], features


def _initialise(net: nn.Module) -> None:
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.xavier_normal_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
