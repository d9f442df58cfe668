"""Where LDC's weights come from: free logits, or a small network on the shared features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from equipoise.losses import nearest
from equipoise.precision import full_precision

ROUTERS = ("softmax", "sigmoid", "sigmoid-free", "softmax-clamped")
CLAMP = (0.2, 0.8)  # the authors' bounds of dense-prediction weights


class SoftmaxRouter(nn.Module):
    """softmax(logits): weights on the simplex of the present tasks; logits start at 0.

    floor: mixes in floor / K, so that no weight falls below it.
    bounds: clamps the weights, which then need not sum to 1.
    """

    def __init__(self, num_tasks: int, floor: float = 0.0, bounds: tuple[float, float] | None = None) -> None:
        super().__init__()
        self.floor = floor
        self.bounds = bounds
        self.logits = nn.Parameter(torch.zeros(num_tasks))

    def forward(self, present: Tensor | None = None) -> Tensor:
        weights = softmax_present(self.logits, present)
        if self.floor > 0.0:
            tasks = weights.shape[0] if present is None else present.sum(dtype=weights.dtype)
            weights = (1.0 - self.floor) * weights + self.floor / tasks
        return weights if self.bounds is None else weights.clamp(*self.bounds)


class SigmoidRouter(nn.Module):
    """A sigmoid for each task: sigmoid(relu(logits)), started from U(0.2, 1); or without relu, started from 1.

    With relu the weights stay in [0.5, 1), and a logit below 0 has no gradient: it never comes back.
    """

    def __init__(self, num_tasks: int, relu: bool) -> None:
        super().__init__()
        self.relu = relu
        start = torch.empty(num_tasks).uniform_(0.2, 1.0) if relu else torch.ones(num_tasks)
        self.logits = nn.Parameter(start)

    def forward(self, present: Tensor | None = None) -> Tensor:  # noqa: ARG002 (each weight is a task's own)
        return (self.logits.relu() if self.relu else self.logits).sigmoid()


class FeatureRouter(nn.Module):
    """Weights from the shared features: pooled over everything but the channels, then a small network.

    in_features: channels, over all the feature tensors together (several are pooled each, then concatenated).
    hidden: width of one hidden ReLU layer; None is the authors' single linear layer.
    output: "softmax" (over the present tasks) or "sigmoid".
    bounds: clamps the weights, as the authors do with (0.2, 0.8).
    channel_dim: the dimension of the channels, 1 in [batch, channels, ...]; -1 for transformers.

    >>> import torch, equipoise as eq
    >>> router = eq.FeatureRouter(in_features=64, num_tasks=3, bounds=(0.2, 0.8))
    >>> router(torch.randn(8, 64, 16, 16)).shape
    torch.Size([3])
    """

    def __init__(
        self,
        in_features: int,
        num_tasks: int,
        *,
        hidden: int | None = None,
        output: Literal["softmax", "sigmoid"] = "softmax",
        bounds: tuple[float, float] | None = None,
        channel_dim: int = 1,
    ) -> None:
        super().__init__()
        for name, size in (("in_features", in_features), ("num_tasks", num_tasks), ("hidden", hidden)):
            if size is not None and size < 1:
                raise ValueError(f"`{name}` must be at least 1; found {size}.")
        if output not in ("softmax", "sigmoid"):
            raise ValueError(f"`output` must be 'softmax' or 'sigmoid'; found {output!r}.")
        if bounds is not None and not 0.0 <= bounds[0] < bounds[1]:
            raise ValueError(f"`bounds` must be (low, high) with 0 <= low < high; found {bounds!r}.")
        self.in_features = in_features
        self.num_tasks = num_tasks
        self.output = output
        self.bounds = bounds
        self.channel_dim = channel_dim
        self.network = (
            nn.Linear(in_features, num_tasks)
            if hidden is None
            else nn.Sequential(nn.Linear(in_features, hidden), nn.ReLU(), nn.Linear(hidden, num_tasks))
        )

    def forward(
        self,
        *features: Tensor,
        present: Tensor | None = None,
        join: Callable[[Tensor, int], Tensor] | None = None,
    ) -> Tensor:
        """K weights; `join` makes the pooled features and the number of samples those of all ranks."""
        pooled = torch.cat([self._pool(feature) for feature in features])
        if pooled.shape[0] != self.in_features:
            shapes = [tuple(feature.shape) for feature in features]
            raise ValueError(
                f"the shared features must have in_features={self.in_features} channels (dimension "
                f"{self.channel_dim}) in all; found {pooled.shape[0]}, in shapes {shapes}."
            )
        if join is not None:
            pooled = join(pooled, features[0].shape[0])
        with full_precision(pooled.device):
            scores: Tensor = self.network(pooled)
        weights = softmax_present(scores, present) if self.output == "softmax" else scores.sigmoid()
        return weights if self.bounds is None else weights.clamp(*self.bounds)

    def _pool(self, feature: Tensor) -> Tensor:
        dtype = next(self.parameters()).dtype
        channel = self.channel_dim % feature.ndim if feature.ndim > 1 else 1
        if feature.ndim < 2 or channel == 0:
            raise ValueError(
                f"the shared features must be [batch, ...] with channels in dimension {self.channel_dim}; "
                f"found shape {tuple(feature.shape)}."
            )
        rest = [d for d in range(feature.ndim) if d != channel]
        return feature.mean(rest, dtype=dtype)


def make_router(router: str | nn.Module | None, num_tasks: int, floor: float) -> nn.Module | None:
    """The router that LDC's option `router` names, or the one it is."""
    if not 0.0 <= floor < 1.0:
        raise ValueError(f"`floor` must be at least 0 and below 1; found {floor!r}.")
    if floor > 0.0 and router != "softmax":
        raise ValueError(f"`floor` is for router='softmax', whose weights sum to 1; found router={router!r}.")
    if router is None or isinstance(router, nn.Module):
        if isinstance(router, FeatureRouter) and router.num_tasks != num_tasks:
            raise ValueError(f"`router` must have num_tasks={num_tasks}; found {router.num_tasks}.")
        return router
    if router not in ROUTERS:
        raise ValueError(f"there is no router {router!r}; {nearest(str(router), ROUTERS)}")
    if router.startswith("softmax"):
        return SoftmaxRouter(num_tasks, floor, CLAMP if router == "softmax-clamped" else None)
    return SigmoidRouter(num_tasks, relu=router == "sigmoid")


def softmax_present(logits: Tensor, present: Tensor | None) -> Tensor:
    """softmax over the present tasks; the absent ones get 0.

    >>> import torch
    >>> from equipoise.ldc.router import softmax_present
    >>> softmax_present(torch.zeros(3), torch.tensor([True, False, True]))
    tensor([0.5000, 0.0000, 0.5000])
    """
    if present is not None:
        logits = torch.where(present, logits, torch.finfo(logits.dtype).min)
    return logits.softmax(0)
