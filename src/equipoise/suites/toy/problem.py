"""The two-task problem of the first figure: two losses of one point in the plane, ten times apart in scale."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Sign = Literal["code", "paper"]

#: The five starting points of the figure.
STARTS = ((-8.5, 7.5), (-8.5, 5.0), (0.0, 0.0), (9.0, 9.0), (10.0, -8.0))
#: The first loss is scaled by this.
SCALES = (0.1, 1.0)
#: The middle of the Pareto front, where both losses are equally far from their own best once scales are divided out.
BALANCED = (0.0, -8.36)


def toy_losses(x: Tensor, sign: Sign = "code") -> Tensor:
    """Both losses at the points ``x`` [..., 2], as [..., 2].

    sign: the paper prints ``- tanh(-x2) + 2`` in the second loss; the code that everybody ran has ``+``.

    At x2 = 0 both gates are 0, so both losses are; ``torch.clamp`` lets the gradient of both gates through there, and
    the gradient is the sum of the two one-sided ones. A relu would let neither through, and a start at (0, 0) would
    never leave.

    >>> toy_losses(torch.tensor([0.0, 0.0]))
    tensor([0., 0.])
    >>> [round(value, 2) for value in toy_losses(torch.tensor(BALANCED)).tolist()]
    [-1.51, -15.09]
    """
    x1, x2 = x.unbind(-1)
    slope = torch.tanh(x2)  # the formulas have tanh(-x2), which is minus this
    second = -slope if sign == "code" else slope
    bent = torch.stack([slope, second], -1) - 0.5 * x1.unsqueeze(-1) + x.new_tensor([-3.5, 3.5])
    upper = bent.abs().clamp(min=5e-6).log() + 6  # f1 and f2
    lower = (
        (x1.unsqueeze(-1) - x.new_tensor([7.0, -7.0])).square() + (0.1 * (x2 + 8).square()).unsqueeze(-1)
    ) / 10 - 20
    half = torch.tanh(0.5 * x2).unsqueeze(-1)
    return (half.clamp(min=0) * upper + (-half).clamp(min=0) * lower) * x.new_tensor(SCALES)


def pareto_front(points: int = 201) -> tuple[Tensor, Tensor]:
    """Points of the Pareto set [points, 2], and their losses, the front [points, 2].

    In the lower half-plane both losses are the same gate times a bowl, with the bowls' centres at x1 = +-7: for each
    x1 between, the best x2 is the same kind of one-dimensional problem for any mix of the two, solved on a grid.

    >>> _, front = pareto_front(3)
    >>> bool((front[0, 0] > front[2, 0]) and (front[0, 1] < front[2, 1]))
    True
    """
    mixes = torch.linspace(0, 1, points, dtype=torch.float64)
    x1 = 14 * mixes - 7  # the minimiser of mix * (x1 - 7)^2 + (1 - mix) * (x1 + 7)^2, whatever x2
    x2 = torch.linspace(-12, -4, 8001, dtype=torch.float64)
    grid = torch.stack([x1[:, None].expand(-1, len(x2)), x2.expand(points, -1)], dim=-1)
    values = toy_losses(grid)
    unscaled = values / torch.tensor(SCALES, dtype=torch.float64)
    mixed = mixes[:, None] * unscaled[..., 0] + (1 - mixes[:, None]) * unscaled[..., 1]
    best = torch.arange(points), mixed.argmin(dim=1)
    return grid[best], values[best]
