"""The published augmentation, for a whole batch at once and on its device: a random zoom and a mirror.

The zoom cuts out 1, 1/1.2 or 1/1.5 of the height and width and stretches it to the full size; images and normals
bilinearly (aligned corners), everything else by the nearest pixel. A zoom of s divides depths by s, as published,
also where the "depth" is an inverse one. Normals are made unit length again after interpolation; the reference
leaves them short.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

ZOOMS = (1.0, 1.2, 1.5)
SMOOTH = ("image", "normal")  # interpolated; the others take the nearest pixel
_VECTORS = ("normal", "offset")  # their first entry points along the width


def draw_crops(count: int, height: int, width: int, generator: torch.Generator) -> Tensor:
    """What happens to each of `count` images: zoom, top, left, height and width of the cut, mirrored (0 or 1).

    >>> draw_crops(2, 30, 60, torch.Generator().manual_seed(0)).shape
    torch.Size([2, 6])
    """
    draws = torch.rand(4, count, generator=generator, dtype=torch.float64)
    zoom = torch.tensor(ZOOMS, dtype=torch.float64)[(draws[0] * len(ZOOMS)).long()]
    cut_height, cut_width = (height / zoom).floor(), (width / zoom).floor()
    top = (draws[1] * (height - cut_height + 1)).floor()
    left = (draws[2] * (width - cut_width + 1)).floor()
    return torch.stack([zoom, top, left, cut_height, cut_width, (draws[3] < 0.5).double()], dim=1).float()


def augment(batch: Mapping[str, Tensor], crops: Tensor) -> dict[str, Tensor]:
    """The batch seen through what `draw_crops` drew.

    Fields are [B, C, H, W], or [B, H, W] for labels; their names say how they are treated.

    >>> batch = {"depth": torch.full((1, 1, 4, 4), 3.0)}
    >>> augment(batch, torch.tensor([[1.5, 1.0, 2.0, 2.0, 2.0, 0.0]]))["depth"].unique()
    tensor([2.])
    """
    zoom, top, left, cut_height, cut_width, mirrored = crops.unbind(1)
    height, width = next(iter(batch.values())).shape[-2:]
    mirror = mirrored[:, None] > 0
    y = torch.arange(height, device=zoom.device).expand(len(zoom), -1)
    x = torch.arange(width, device=zoom.device).expand(len(zoom), -1)
    x = torch.where(mirror, width - 1 - x, x)
    nearest = (_nearest(y, top, cut_height), _nearest(x, left, cut_width))
    smooth = _smooth_grid(y, x, top, left, cut_height, cut_width)
    found = {}
    for name, field in batch.items():
        if name in SMOOTH:
            seen = F.grid_sample(field, smooth, mode="bilinear", align_corners=True)
        else:
            seen = _take(field, *nearest)
        if name in _VECTORS:
            sign = torch.where(mirror, -1.0, 1.0)[:, :, None, None]
            seen = torch.cat([sign * seen[:, :1], seen[:, 1:]], dim=1)
        if name == "normal":
            seen = F.normalize(seen, dim=1)
        elif name == "depth":
            seen = seen / zoom[:, None, None, None]
        elif name == "offset":
            seen = seen * zoom[:, None, None, None]
        found[name] = seen
    return found


def _nearest(position: Tensor, start: Tensor, cut: Tensor) -> Tensor:
    """Which row (or column) of the original each one shows: floor(position * cut / size) into the cut."""
    size = position.shape[1]
    return start[:, None].long() + position * cut[:, None].long() // size


def _take(field: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """field[b, ..., y[b, i], x[b, j]] at [b, ..., i, j]."""
    batch = torch.arange(len(field), device=field.device)[:, None, None]
    if field.ndim == 3:
        return field[batch, y[:, :, None], x[:, None, :]]
    return field[batch, :, y[:, :, None], x[:, None, :]].permute(0, 3, 1, 2)


def _smooth_grid(y: Tensor, x: Tensor, top: Tensor, left: Tensor, cut_height: Tensor, cut_width: Tensor) -> Tensor:
    """Where each pixel looks, from -1 to 1 over the original, corners on corners."""
    height, width = y.shape[1], x.shape[1]
    at_y = top[:, None] + y * (cut_height[:, None] - 1) / (height - 1)
    at_x = left[:, None] + x * (cut_width[:, None] - 1) / (width - 1)
    grid_y = (2 * at_y / (height - 1) - 1)[:, :, None].expand(-1, -1, width)
    grid_x = (2 * at_x / (width - 1) - 1)[:, None, :].expand(-1, height, -1)
    return torch.stack([grid_x, grid_y], dim=-1)
