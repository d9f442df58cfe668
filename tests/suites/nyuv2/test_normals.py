import numpy as np
import pytest
import torch

from equipoise.suites.nyuv2.normals import normals_from_depth


def plane_depth(normal, distance, height, width):
    """The depth of a plane seen by the camera; x right, y up, z to the viewer."""
    scale = width / 640
    x = ((np.arange(width) + 0.5) / scale - 0.5 - 325.5824) / 518.8579
    y = ((np.arange(height) + 0.5) / scale - 0.5 - 253.7362) / 519.4696
    ray = np.stack(np.broadcast_arrays(x, -y[:, None], -1.0), axis=-1)  # the point one metre away along each ray
    return torch.from_numpy(-distance / (ray @ normal))[None]


@pytest.mark.parametrize("normal", [(0.0, 0.0, 1.0), (0.6, 0.0, 0.8), (0.0, -0.6, 0.8), (0.3, 0.5, 0.8124038)])
def test_a_plane_has_its_normal_everywhere(normal):
    depth = plane_depth(np.array(normal), 2.0, 18, 24)
    assert (depth > 0.5).all()
    found = normals_from_depth(depth, radius=3)[0]
    cosine = (found * torch.tensor(normal)[:, None, None]).sum(0)
    assert cosine.min() > 0.99999


def test_the_fit_does_not_reach_over_an_edge():
    near, far = plane_depth(np.array((0.6, 0.0, 0.8)), 2.0, 18, 24), plane_depth(np.array((0.0, 0.0, 1.0)), 9.0, 18, 24)
    depth = torch.cat([near[..., :12], far[..., 12:]], dim=-1)
    found = normals_from_depth(depth, radius=3)[0]
    assert found[0, :, :12].min() > 0.59
    assert found[2, :, 12:].min() > 0.999


def test_unknown_depth_has_no_normal():
    depth = torch.full((1, 9, 12), 2.0)
    depth[0, 4, 5] = 0.0
    found = normals_from_depth(depth, radius=3)
    assert (found[0, :, 4, 5] == 0).all()
    assert found[0, 2].sum() == pytest.approx(9 * 12 - 1, abs=1e-3)
