"""A tiny synthetic suite for tests: three regression tasks of different scales on a network with dropout."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from equipoise.suites.suite import Metric, Protocol, Suite

#: For `equipoise.suites._SUITES`, wherever this module can be imported.
SUITES = {
    "twin": ("twin", "Twin"),
    "last-ten": ("twin", "LastTen"),
    "plain": ("twin", "Plain"),
    "slow": ("twin", "Slow"),
}
TASKS = ("near", "far", "odd")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2))
        self.heads = nn.Linear(8, 3)


class Twin(Suite):
    name = "twin"
    tasks = TASKS
    metrics = (Metric("near", "near"), Metric("far", "far"), Metric("odd score", "odd", higher_is_better=True))
    stl: ClassVar[Mapping[str, float]] = {"near": 0.5, "far": 40.0, "odd score": 0.4}
    published: ClassVar[Mapping[str, Any]] = {"ls": {"near": 0.6, "far": 50.0, "odd score": 0.3, "delta_m": 23.3}}
    protocol = Protocol(epochs=4, batch_size=16, lr=1e-2, schedule=("plateau", {"factor": 0.5, "patience": 0}))

    def __init__(self, **options):
        super().__init__(**options)
        draw = torch.Generator().manual_seed(7)
        x = torch.randn(96, 4, generator=draw)
        y = torch.tanh(x @ torch.randn(4, 3, generator=draw)) * torch.tensor([1.0, 100.0, 1.0])
        self.x, self.y = x, y

    def model(self):
        torch.manual_seed(self.seed)
        return Net()

    def shared_parameters(self, model):
        return list(model.trunk.parameters())

    def batches(self, epoch):
        order = torch.randperm(64, generator=torch.Generator().manual_seed(1000 * self.seed + epoch))
        return order.split(self.batch_size)

    def losses(self, model, batch):
        features = model.trunk(self.x[batch])
        return (model.heads(features) - self.y[batch]).square().mean(dim=0), features

    def evaluate(self, model, part):
        assert not model.training
        assert not torch.is_grad_enabled()
        rows = slice(64, 80) if part == "validation" else slice(80, 96)
        error = (model.heads(model.trunk(self.x[rows])) - self.y[rows]).abs().mean(dim=0).tolist()
        return {"near": error[0], "far": error[1], "odd score": 1 / (1 + error[2])}


class LastTen(Twin):
    """The same, reported as the mean of the last ten epochs."""

    name = "last-ten"
    protocol = Protocol(epochs=12, batch_size=32, lr=1e-2, schedule=("step", {"step_size": 2}), report="last-ten")


class Pair(Twin):
    """Two tasks, one of two metrics, and names that a page must not run."""

    name = "pair"
    tasks = ("<script>document.title='broken'</script>", "a & b | $c_d$")
    metrics = (
        Metric("<script>document.title='broken'</script>", "<script>document.title='broken'</script>"),
        Metric("a & b | $c_d$", "a & b | $c_d$"),
        Metric("<img src=x onerror=document.title='broken'>", "a & b | $c_d$", higher_is_better=True),
    )
    stl: ClassVar[Mapping[str, float]] = dict(zip([metric.name for metric in metrics], (0.5, 40.0, 0.4), strict=True))
    published: ClassVar[Mapping[str, Any]] = {}

    def losses(self, model, batch):
        values, features = super().losses(model, batch)
        return values[:2], features

    def evaluate(self, model, part):
        values = super().evaluate(model, part)
        return dict(zip([metric.name for metric in self.metrics], values.values(), strict=True))


class Plain(Twin):
    """Without dropout and BatchNorm, which depend on how a batch is shared: ranks must give one process's numbers."""

    name = "plain"

    def model(self):
        net = super().model()
        net.trunk = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
        return net


class Slow(Plain):
    """Steps that take a while, so that there is time to kill somebody between two of them."""

    name = "slow"
    protocol = Protocol(epochs=4, batch_size=8, lr=1e-2)
    stl: ClassVar[Mapping[str, float]] = {}

    def losses(self, model, batch):
        time.sleep(0.02)
        return super().losses(model, batch)
