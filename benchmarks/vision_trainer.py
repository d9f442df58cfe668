"""Training a vision suite as fast as one GPU allows: low precision, channels last, compiled, the step as one graph.

A trainer is built (and its CUDA graph recorded) once for a method; each run then resets every tensor in place.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch
import torch._functorch.config
from torch.utils._pytree import tree_map

import equipoise as eq
from equipoise.suites.suite import Preset, Suite


@dataclass(frozen=True)
class Mode:
    """How a step is run. The default is what anybody's first script does."""

    bf16: bool = False
    channels_last: bool = False
    compile: bool = False
    graph: bool = False

    def __str__(self) -> str:
        return " + ".join(
            [
                "bf16" if self.bf16 else "float32",
                *(n for n in ("channels_last", "compile", "graph") if getattr(self, n)),
            ]
        )


@dataclass(frozen=True)
class Rate:
    """A learning rate, times `gamma` after every `every` of the published epochs; 0: never.

    >>> Rate.read("1e-3/3x0.3")
    Rate(lr=0.001, every=3, gamma=0.3)
    """

    lr: float
    every: int = 0
    gamma: float = 1.0

    @classmethod
    def read(cls, text: str) -> Rate:
        lr, _, steps = text.partition("/")
        every, _, gamma = steps.partition("x")
        return cls(float(lr), int(every), float(gamma)) if steps else cls(float(lr))

    def __str__(self) -> str:
        return f"{self.lr:g}" + (f"/{self.every}x{self.gamma:g}" if self.every else "")


@dataclass
class Result:
    """A run: the epoch reported, its test metrics, and what it took. score: what the epoch was chosen by."""

    epoch: int
    test: dict[str, float]
    seconds_per_step: float
    wall_seconds: float
    score: float | None = None
    epochs: list[dict[str, float]] = field(default_factory=list)


class Trainer:
    """One method on one suite; `run(seed)` trains from scratch."""

    def __init__(
        self, suite: Suite, method: str, mode: Mode, *, epochs: int | None = None, shared: str = "features"
    ) -> None:
        self.suite, self.method, self.mode, self.shared = suite, method, mode, shared
        self.preset = suite.presets.get(method, Preset(method))
        self.epochs = epochs or suite.protocol.epochs
        self.own_rate = self.rate = self._own_rate()
        self.note = ""
        self.peak_mib = 0.0
        self._graph = None
        self.model = self._new_model(compiled=mode.compile)
        self.balancer = self._new_balancer()
        self.optimizer = self._new_optimizer()
        self.batch = tree_map(torch.clone, next(iter(suite.batches(0))))
        if not mode.channels_last:
            self.batch = tree_map(lambda t: t.contiguous(), self.batch)
        self.losses = torch.zeros(len(suite.tasks), device=suite.device)
        self.model.train()
        self._warm_up()

    # One step.

    def step(self) -> None:
        """One step on what is in `batch`, as the mode says."""
        if self._graph is not None:
            self._graph.replay()
        else:
            self._step()

    def _forward(self):
        # The cache of cast weights would outlive a recorded graph's memory.
        with torch.autocast(self.suite.device.type, torch.bfloat16, enabled=self.mode.bf16, cache_enabled=False):
            return self.suite.losses(self.model, self.batch)

    def _step(self) -> None:
        losses, features = self._forward()
        shared = None
        if self.balancer.needs_shared:
            use_parameters = self.shared == "parameters" and not getattr(self.balancer, "reads_features", False)
            shared = self.suite.shared_parameters(self.model) if use_parameters else features
        scalar = self.balancer(losses, shared=shared)
        self.optimizer.zero_grad(set_to_none=True)
        scalar.backward()
        self.optimizer.step()
        if self.balancer.needs_after_step:
            with torch.no_grad():
                self.balancer.after_step(self._forward()[0])
        self.losses += losses.detach() if isinstance(losses, torch.Tensor) else torch.stack(losses).detach()

    def _warm_up(self) -> None:
        """Let compilers and allocators settle, measure memory, record the graph, and undo what that trained."""
        cuda = self.suite.device.type == "cuda"
        if cuda:
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(3):
                    self._step()
            torch.cuda.current_stream().wait_stream(stream)
            torch.cuda.synchronize()
            self.peak_mib = (torch.cuda.max_memory_allocated() - before) / 2**20
        else:
            self._step()
        if cuda and self.mode.graph:
            self._record()

    def _record(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._step()
            self._graph = graph
        except Exception as error:  # a method that asks the host something cannot be recorded: run it as it is
            self.note = f"not recorded: {type(error).__name__}: {str(error).splitlines()[0][:120]}"
            torch.cuda.synchronize()

    # A run.

    def reset(self, seed: int, task: int | None = None, rate: Rate | None = None) -> None:
        """Everything as a fresh run with this seed has it, in place."""
        self.suite.seed = seed
        self.rate = rate or self.own_rate
        _copy(self.model, self._new_model(compiled=False))
        torch.manual_seed(seed)
        _copy(self.balancer, self._new_balancer(task))
        for state in self.optimizer.state.values():
            for tensor in state.values():
                tensor.zero_()
        self.losses.zero_()
        self._set_rate(0)

    def run(self, seed: int, task: int | None = None, rate: Rate | None = None) -> Result:
        """Train for all epochs; `task` is the one to learn alone; a `rate` stands in place of the preset's."""
        self.reset(seed, task, rate)
        best_validation = self.suite.protocol.report == "best-validation"
        result = Result(-1, {}, 0.0, 0.0)
        best, last, spent, steps, began = float("-inf"), [], 0.0, 0, time.perf_counter()
        for epoch in range(self.epochs):
            self._set_rate(epoch)
            self.balancer.start_epoch()
            self.losses.zero_()
            start = time.perf_counter()
            batches = self.suite.batches(epoch)
            for batch in batches:
                tree_map(lambda kept, new: kept.copy_(new), self.batch, batch)
                self.step()
            self._synchronise()
            spent, steps = spent + time.perf_counter() - start, steps + len(batches)
            row = {"epoch": epoch, "loss": (self.losses.mean() / len(batches)).item(), "seconds": spent}
            if best_validation:
                row["score"] = self._score(self._evaluate("validation"), task)
                if row["score"] > best:
                    best, result.epoch, result.test = row["score"], epoch, self._evaluate("test")
                    result.score = best
            elif epoch >= self.epochs - 10:
                last.append(self._evaluate("test"))
            result.epochs.append(row)
        if not best_validation:
            result.epoch = self.epochs - 1
            result.test = {name: sum(row[name] for row in last) / len(last) for name in last[0]}
        result.seconds_per_step, result.wall_seconds = spent / steps, time.perf_counter() - began
        return result

    def _evaluate(self, part: str) -> dict[str, float]:
        """Not compiled: other batch sizes and the other mode would each be compiled anew."""
        low = torch.autocast(self.suite.device.type, torch.bfloat16, enabled=self.mode.bf16)
        with low, torch.compiler.set_stance("force_eager"):
            return self.suite.evaluate(self.model, part)

    def _score(self, metrics: dict[str, float], task: int | None) -> float:
        """What the epoch is chosen by: the mean of the metrics (of the task learned alone), larger is better."""
        own = [m for m in self.suite.metrics if task is None or m.task == self.suite.tasks[task]]
        return sum(metrics[m.name] * (1 if m.higher_is_better else -1) for m in own) / len(own)

    # Building.

    def _new_model(self, *, compiled: bool) -> torch.nn.Module:
        model = self.suite.model()
        if not self.mode.channels_last:
            model = model.to(memory_format=torch.contiguous_format)
        if compiled:
            # The trunk alone: features must stay an ancestor of the losses, not a sibling output of one region.
            # Gradient methods go back through it once a task, so its buffers may not be given away.
            torch._functorch.config.donated_buffer = False
            torch._dynamo.config.recompile_limit = 64  # a trainer a method, in one process
            # A module's own .compile() would skip torch's containers, and with them the whole trunk.
            model.trunk = torch.compile(model.trunk)
        return model

    def _new_balancer(self, task: int | None = None) -> eq.Balancer:
        options = dict(self.preset.options)
        if self.preset.method == "stl":
            options["task"] = task or 0
        return eq.make(self.preset.method, tasks=self.suite.tasks, **options).to(self.suite.device)

    def _new_optimizer(self) -> torch.optim.Adam:
        cuda = self.suite.device.type == "cuda"
        groups = [{"params": list(self.model.parameters())}]
        groups += [dict(group) for group in self.balancer.param_groups(lr=self._balancer_lr())]
        for group, lr in zip(groups, self._rates(len(groups)), strict=True):
            group["lr"] = self._rate(lr)
        return torch.optim.Adam(groups, fused=cuda, capturable=cuda)

    def _own_rate(self) -> Rate:
        """The preset's, or the protocol's."""
        schedule = self.preset.schedule or self.suite.protocol.schedule
        lr = self.preset.lr or self.suite.protocol.lr
        if schedule is None:
            return Rate(lr)
        kind, options = schedule
        assert kind == "step"
        return Rate(lr, options["step_size"], options["gamma"])

    def _balancer_lr(self) -> float:
        return 0.025 if self.preset.method == "uw" else self.preset.balancer_lr or self.rate.lr

    def _rates(self, groups: int) -> list[float]:
        """The model's, and for every other group the balancer's own."""
        return [self.rate.lr, *[self._balancer_lr()] * (groups - 1)]

    def _rate(self, lr: float) -> float | torch.Tensor:
        """A rate that a recorded graph can still be told."""
        return torch.tensor(lr, device=self.suite.device) if self.suite.device.type == "cuda" else lr

    def _set_rate(self, epoch: int) -> None:
        factor = 1.0
        if self.rate.every:
            step = max(1, round(self.rate.every * self.epochs / self.suite.protocol.epochs))
            factor = self.rate.gamma ** (epoch // step)
        groups = self.optimizer.param_groups
        for group, lr in zip(groups, self._rates(len(groups)), strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(lr * factor)
            else:
                group["lr"] = lr * factor

    def _synchronise(self) -> None:
        if self.suite.device.type == "cuda":
            torch.cuda.synchronize()


@torch.no_grad()
def _copy(to: torch.nn.Module, source: torch.nn.Module) -> None:
    for kept, fresh in zip([*to.parameters(), *to.buffers()], [*source.parameters(), *source.buffers()], strict=True):
        kept.copy_(fresh)
