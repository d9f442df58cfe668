"""R runs trained together: their weights, batches and balancers side by side in one step, which a GPU replays.

A batch of 120 molecules leaves a large GPU idle, so methods, seeds and variants share each step: every tensor of the
network has a leading axis of runs. Each run keeps its own weights, moments, learning rate, balancer, split and order of
molecules, and learns what it would learn alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from equipoise.runs.config import RunConfig

from .fleet_data import HELD_OUT, FleetData, HeldOut
from .fleet_sides import Sides, stream
from .messages import make_tiles
from .network import WIDTH, Weights, features, pack, shapes
from .precision import Precision
from .suite import QM9

_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8
_WARM_UP = 3


class Speed(NamedTuple):
    """How a fleet computes; nothing here changes what is computed, but for rounding.

    fused: messages by the Triton kernels. compiled: the network through torch.compile. graph: the step as a CUDA graph.
    """

    precision: Precision = "float32"
    fused: bool = False
    compiled: bool = False
    graph: bool = False


class Fleet:
    """The state of R runs, and one step of all of them.

    configs: the runs; suite, epochs and batch size must be the same for all.
    data: what they read, or where the suite reads it, as its own `data`.
    """

    def __init__(
        self,
        configs: Sequence[RunConfig],
        device: torch.device | str,
        speed: Speed | None = None,
        data: FleetData | Path | None = None,
    ) -> None:
        self.configs = tuple(configs)
        self.device = torch.device(device)
        self.speed = speed or Speed()
        self.data = data if isinstance(data, FleetData) else FleetData(self.configs, device, data)
        self.tasks, self.resident, self.layout = self.data.tasks, self.data.resident, self.data.layout
        if self.speed.fused and self.resident.rich:
            raise ValueError("`speed.fused` must be False for rich features: the kernels know no aromatic bonds.")
        self.seeds = [config.seed for config in configs]
        self.which = torch.tensor(self.data.which(self.seeds), device=device)
        self.error_scale = torch.stack([self.suite(run).error_scale for run in range(len(configs))]).to(device)
        self.steps = self.data.steps
        tiles = make_tiles(self.layout.groups) if self.speed.fused else None
        self.tiles = None if tiles is None else torch.from_numpy(tiles).to(device)
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.order = torch.zeros(self.steps, len(configs), self.data.batch_size, dtype=torch.int64, device=device)
        held_out = {part: self.data.held_out_rows(self.seeds, part) for part in HELD_OUT}
        self.held_out = {part: torch.from_numpy(rows).to(device) for part, rows in held_out.items()}
        self.errors = torch.zeros(len(configs), len(self.tasks), device=device)
        self.losses_sum = torch.zeros(len(configs), len(self.tasks), device=device)
        self.weights_sum = torch.zeros_like(self.losses_sum)
        self._trunk: Callable[..., tuple[Tensor, Tensor, Tensor]] = self._trunk_of
        self._adam: Callable[..., None] = adam
        if self.speed.compiled:
            self._trunk = torch.compile(self._trunk_of, dynamic=False, fullgraph=True)
            self._adam = torch.compile(adam, dynamic=False, fullgraph=True)
        self.restart(configs)

    def restart(self, configs: Sequence[RunConfig]) -> None:
        """Other runs of the same seeds, from their beginning; what was compiled is kept."""
        if [config.seed for config in configs] != self.seeds:
            raise ValueError(f"`configs` must have the seeds {self.seeds}; found {[c.seed for c in configs]}.")
        self.configs = tuple(configs)
        self._make_state()
        self._replays: dict[str, Callable[[], None]] = {}

    def suite(self, run: int) -> QM9:
        """The run's data on the CPU."""
        return self.data.suites[self.configs[run].seed]

    def epoch_rows(self, epoch: int) -> npt.NDArray[np.int64]:
        """The molecules of every run's batches in an epoch, ``[steps, R, B]``."""
        return self.data.epoch_rows(self.seeds, epoch)

    # The state.

    def _make_state(self) -> None:
        """Weights as one row of numbers a run (the heads' apart), balancers, and Adam's moments."""
        self.trunk, self.heads = (
            torch.stack(part).to(self.device).requires_grad_()
            for part in zip(*(_flat_weights(self.suite(run)) for run in range(len(self.configs))), strict=True)
        )
        self.sides = Sides(self.configs, self.tasks, self.device)
        self.balancers, self.own = self.sides.balancers, self.sides.own
        self.moments = [torch.zeros_like(x) for x in (self.trunk, self.heads, self.own) for _ in range(2)]
        self.time = torch.zeros((), dtype=torch.float64, device=self.device)
        self.lr = torch.tensor([[config.lr] for config in self.configs], device=self.device)
        self.own_lr = torch.zeros_like(self.own)
        self.set_rates([(config.lr, config.balancer_lr) for config in self.configs])

    def set_rates(self, rates: Sequence[tuple[float, float]]) -> None:
        """The learning rates of every run's weights and of its balancer's own parameters."""
        self.lr.copy_(torch.tensor([[lr] for lr, _ in rates]))
        own = [lr for (_, lr), count in zip(rates, self.sides.own_counts, strict=True) for _ in range(count)]
        self.own_lr.copy_(torch.tensor(own))

    def state(self) -> dict[str, Any]:
        """Everything the next epoch depends on, but the rates."""
        return {
            "trunk": self.trunk.detach().clone(),
            "heads": self.heads.detach().clone(),
            "moments": [moment.clone() for moment in self.moments],
            "time": self.time.clone(),
            "balancers": [
                {name: tensor.detach().clone() for name, tensor in balancer.state_dict().items()}
                for balancer in self.balancers
            ],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go back to what `state` gave; every tensor stays where it is."""
        with torch.no_grad():
            self.trunk.copy_(state["trunk"])
            self.heads.copy_(state["heads"])
            self.time.copy_(state["time"])
            for moment, stored in zip(self.moments, state["moments"], strict=True):
                moment.copy_(stored)
        for balancer, stored in zip(self.balancers, state["balancers"], strict=True):
            balancer.load_state_dict(stored)

    # A step.

    def begin_epoch(self, rows: npt.NDArray[np.int64]) -> None:
        """Lay out the epoch's batches (from `epoch_rows`), and raise if a loss was bad in the last one."""
        self.order.copy_(torch.from_numpy(rows))
        self.position.zero_()
        self.losses_sum.zero_()
        self.weights_sum.zero_()
        for balancer in self.balancers:
            balancer.start_epoch()

    def step(self) -> None:
        """The next batch of the epoch, for every run."""
        index = self.order.index_select(0, self.position)[0]
        shared, targets, share = self._trunk(self.trunk, index)
        representation = shared.detach().requires_grad_()
        losses = self._losses(self.heads, representation, targets, share)

        def losses_of(run: int, heads: Tensor, leaf: Tensor) -> Tensor:
            return self._losses(heads[None], leaf[None], targets[run, None], share[run, None])[0]

        answers = self.sides.answers(losses.detach(), representation.detach(), self.heads.detach(), losses_of)
        d_losses = torch.stack([answer.losses for answer in answers])
        d_shared, d_heads = torch.autograd.grad(losses, (representation, self.heads), d_losses)
        for run, answer in enumerate(answers):
            if answer.shared is not None and answer.heads is not None:
                d_shared[run].copy_(answer.shared)
                d_heads[run].copy_(answer.heads)
        (d_trunk,) = torch.autograd.grad(shared, self.trunk, d_shared)
        with torch.no_grad():
            self.time += 1
            d_own = [part.reshape(-1) for answer in answers for part in answer.own]
            updates = [(self.trunk, d_trunk, self.lr), (self.heads, d_heads, self.lr)]
            if d_own:
                updates.append((self.own, torch.cat(d_own), self.own_lr))
            for i, (weights, gradient, lr) in enumerate(updates):
                self._adam(weights.detach(), gradient, *self.moments[2 * i : 2 * i + 2], lr, self.time)
            self._look_again(index)
            self.losses_sum += losses.detach()
            self.weights_sum += torch.stack([balancer.last_weights for balancer in self.balancers])
            self.position += 1

    def _trunk_of(self, trunk: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The shared representation of the molecules ``index [R, B]``, their targets and what each counts."""
        batch = self.resident.gather(index, self.layout, self.which)
        weights = _weights_of(trunk, len(self.tasks))
        return features(weights, batch, self.speed.precision, self.tiles), batch.targets, batch.share

    def _losses(self, heads: Tensor, shared: Tensor, targets: Tensor, share: Tensor) -> Tensor:
        """Every task's mean squared error, ``[R, T]``."""
        errors = self._predictions(heads, shared) - targets
        return (errors.square() * share[..., None]).sum(1)

    def _predictions(self, heads: Tensor, shared: Tensor) -> Tensor:
        tasks = len(self.tasks)
        matrix, bias = torch.split(heads, [WIDTH * tasks, tasks], dim=1)
        return torch.baddbmm(bias[:, None], shared, matrix.view(-1, WIDTH, tasks))

    def _look_again(self, index: Tensor) -> None:
        """The batch's losses after the step, for balancers that compare."""
        if not any(balancer.needs_after_step for balancer in self.balancers):
            return
        shared, targets, share = self._trunk(self.trunk, index)
        losses = self._losses(self.heads, shared, targets, share)
        for run, balancer in enumerate(self.balancers):
            balancer.after_step(losses[run])

    @torch.no_grad()
    def _test_step(self, part: HeldOut) -> None:
        index = self.held_out[part].index_select(0, self.position)[0]
        shared, targets, share = self._trunk(self.trunk, index)
        errors = (self._predictions(self.heads, shared) - targets).abs()
        self.errors += (errors * (share > 0)[..., None]).sum(1)
        self.position += 1

    # Epochs.

    def train_epoch(self, rows: npt.NDArray[np.int64]) -> None:
        """One epoch of every run over the batches `epoch_rows` gave; does not wait for the device."""
        self.begin_epoch(rows)
        step = self._replay("train", self.step)
        for _ in range(self.steps):
            step()

    def evaluate(self, part: HeldOut) -> list[dict[str, float]]:
        """Every run's metrics over a part of the data."""
        self.position.zero_()
        step = self._replay(part, lambda: self._test_step(part))
        self.errors.zero_()
        for _ in range(len(self.held_out[part])):
            step()
        counts = [len(getattr(self.suite(run).parts, part)) for run in range(len(self.configs))]
        mean = (self.errors * self.error_scale).double().cpu() / torch.tensor(counts)[:, None]
        return [dict(zip(self.tasks, row, strict=True)) for row in mean.tolist()]

    def _replay(self, name: str, step: Callable[[], None]) -> Callable[[], None]:
        """The step as a CUDA graph, captured at its first use; itself where graphs are not asked for."""
        if not self.speed.graph:
            return step
        if name not in self._replays:
            counters = (self.position, self.losses_sum, self.weights_sum, self.errors)
            before, counted = self.state(), [tensor.clone() for tensor in counters]
            side = stream(self.device)
            side.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(side):
                for _ in range(_WARM_UP):
                    self.position.zero_()
                    step()
            torch.cuda.current_stream(self.device).wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            self.load_state(before)
            for tensor, value in zip(counters, counted, strict=True):
                tensor.copy_(value)
            self._replays[name] = graph.replay
        return self._replays[name]


@torch.no_grad()
def adam(weights: Tensor, gradient: Tensor, moment1: Tensor, moment2: Tensor, lr: Tensor, time: Tensor) -> None:
    """torch.optim.Adam's update in place, with a rate for each row or entry; `time` counts from 1."""
    moment1.lerp_(gradient, 1 - _BETA1)
    moment2.mul_(_BETA2).addcmul_(gradient, gradient, value=1 - _BETA2)
    correction1, correction2 = 1 - _BETA1**time, (1 - _BETA2**time).sqrt()
    rate = (lr / correction1).to(weights.dtype)
    weights.sub_(rate * moment1 / (moment2.sqrt() / correction2.to(weights.dtype) + _EPSILON))


def _flat_weights(suite: QM9) -> tuple[Tensor, Tensor]:
    """A new network's parameters as two rows: all but the heads', and the heads'."""
    weights = [tensor.detach().flatten() for tensor in pack(dict(suite.model().named_parameters()))]
    return torch.cat(weights[:-2]), torch.cat(weights[-2:])


def _weights_of(trunk: Tensor, tasks: int) -> Weights:
    """The weights in the rows of all but the heads' parameters; the places of the heads' are empty."""
    sizes = shapes(tasks)[:-2]
    parts = torch.split(trunk, [rows * columns for rows, columns in sizes], dim=1)
    named = [part.view(-1, *size) for part, size in zip(parts, sizes, strict=True)]
    return Weights(*named, *(trunk.new_empty(0) for _ in range(2)))
