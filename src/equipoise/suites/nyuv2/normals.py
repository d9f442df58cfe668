"""Surface normals from a depth map, for packs that have no measured ones: a plane fitted around every pixel.

On a plane, inverse depth is linear in the viewing ray: 1 / z = a u + b v + c for the ray (u, v, 1), and the normal is
along (a, b, c). The fit weighs neighbours by nearness in the image and in depth, so that it does not reach over edges.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# The intrinsics of NYU-v2's colour camera, for images 640 wide.
_WIDTH = 640
_FOCAL = (518.8579, 519.4696)
_CENTRE = (325.5824, 253.7362)
_NEAREST = 0.3  # metres; the sensor sees nothing nearer
_DEPTH_REACH = (0.12, 0.05)  # the width of the window in depth, relative and absolute


def normals_from_depth(depth: Tensor, radius: int = 14) -> Tensor:
    """Unit normals [B, 3, H, W] of depth maps [B, H, W] in metres: x right, y up, z to the viewer; 0 without depth.

    >>> [round(entry) for entry in normals_from_depth(torch.full((1, 9, 12), 2.0), radius=3)[0, :, 4, 6].tolist()]
    [0, 0, 1]
    """
    u, v = _rays(depth)
    known = (depth > _NEAREST).to(depth.dtype)
    inverse = known / depth.clamp(min=_NEAREST)
    fields = torch.stack([depth, known, inverse, u.expand_as(depth), v.expand_as(depth)], dim=1)
    padded = F.pad(fields, [radius] * 4)
    height, width = depth.shape[-2:]
    sums = depth.new_zeros(9, *depth.shape)
    reach = _DEPTH_REACH[0] * depth + _DEPTH_REACH[1]
    for dy in range(-radius, radius + 1):
        for dx in range(-radius, radius + 1):
            if dx * dx + dy * dy > radius * radius:
                continue
            there = padded[:, :, radius + dy : radius + dy + height, radius + dx : radius + dx + width]
            near = (dx * dx + dy * dy) / (0.6 * radius) ** 2
            weight = there[:, 1] * torch.exp(-0.5 * (((there[:, 0] - depth) / reach) ** 2 + near))
            du, dv, value = there[:, 3] - u, there[:, 4] - v, there[:, 2]
            wu, wv = weight * du, weight * dv
            terms = (weight, wu, wv, wu * du, wu * dv, wv * dv, weight * value, wu * value, wv * value)
            for total, term in zip(sums, terms, strict=True):
                total += term
    return _normals(sums, u, v) * known[:, None]


def _rays(depth: Tensor) -> tuple[Tensor, Tensor]:
    """Where each pixel's ray meets the plane one metre away; pixel centres of a resized image."""
    height, width = depth.shape[-2:]
    scale = width / _WIDTH
    columns = torch.arange(width, device=depth.device, dtype=depth.dtype)
    rows = torch.arange(height, device=depth.device, dtype=depth.dtype)
    u = ((columns + 0.5) / scale - 0.5 - _CENTRE[0]) / _FOCAL[0]
    v = ((rows + 0.5) / scale - 0.5 - _CENTRE[1]) / _FOCAL[1]
    return u.expand(height, width), v[:, None].expand(height, width)


def _normals(sums: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """The plane of each pixel's weighted least squares, from its sums about that pixel, as a unit normal."""
    mean = sums[1:] / sums[0].clamp(min=1e-6)
    mu, mv, muu, muv, mvv, mean_value, mu_value, mv_value = mean
    cuu, cuv, cvv = muu - mu * mu, muv - mu * mv, mvv - mv * mv
    cu, cv = mu_value - mu * mean_value, mv_value - mv * mean_value
    determinant = cuu * cvv - cuv * cuv + 1e-18
    a = (cu * cvv - cv * cuv) / determinant
    b = (cv * cuu - cu * cuv) / determinant
    c = mean_value - a * (mu + u) - b * (mv + v)
    return F.normalize(torch.stack([-a, b, c], dim=1), dim=1, eps=1e-9)  # image rows go down, normals' y goes up
