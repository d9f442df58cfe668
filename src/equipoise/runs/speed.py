"""What a training step costs with each method beside LS: time by taking turns, memory by counting what is allocated."""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from equipoise.runs.config import RunConfig, configure, expand
from equipoise.runs.ranks import Ranks
from equipoise.runs.store import RunFolder
from equipoise.runs.timing import Timing, compare, seconds_of
from equipoise.runs.training import Training

_BATCHES = 2  # steps timed together, on the same batches for everybody
_SHORTEST = 0.02  # seconds that are timed together at least
_FEWEST = 5  # rounds, for quartiles to mean something


@dataclass(frozen=True)
class Speed:
    """One method: its step's time over LS's (median and quartiles), and the most memory its first steps hold.

    peak: bytes of tensors at the peak of the first two steps, beyond the model and the data.
    problem: why there are no numbers, when there are none.
    """

    label: str
    ratio: float | None = None
    quartiles: tuple[float, float] | None = None
    milliseconds: float | None = None
    peak: int | None = None
    peak_of_ls: int | None = None
    problem: str | None = None


def measure(
    configs: Sequence[RunConfig], rounds: int, on_round: Callable[[int], object] | None = None
) -> Iterator[Speed]:
    """Each configuration against LS on the same suite, one after the other; two networks exist at a time.

    In a round the method's steps are timed between those of LS (LS, method, method, LS), so a machine that drifts
    drifts out. On one thread of a CPU the process's own time is counted. Data are ready beforehand. Single-task
    learning is all its networks' steps together. `on_round` is called with the rounds done of the one under way.

    >>> [speed] = measure([configure("toy", "ldc")], rounds=5)
    >>> speed.label, speed.ratio > 0.5, speed.peak > 0
    ('ldc', True, True)
    """
    if rounds < _FEWEST:
        raise ValueError(f"`rounds` must be at least {_FEWEST}; found {rounds}.")
    measured: tuple[RunConfig, int] | None = None  # the last LS whose memory was looked at
    for config in configs:
        base = configure(config.suite, "ls", seed=config.seed, settings=_same(config))
        try:
            if measured is None or measured[0] != base:
                measured = base, _peak(base)
            peak_of_ls, peak = measured[1], _peak(config)
            timing = _take_turns(base, config, rounds, on_round)
        except (ValueError, TypeError, RuntimeError) as error:
            yield Speed(config.label, problem=str(error))
        else:
            each = timing.milliseconds / _BATCHES
            yield Speed(config.label, timing.ratio, timing.spread, each, peak, peak_of_ls)


def _same(config: RunConfig) -> dict[str, object]:
    """What LS must share with a method to be compared with it."""
    given = {"batch_size": config.batch_size, "device": config.device, "data": config.data}
    return {**given, **{f"suite.{name}": value for name, value in config.suite_options.items()}}


def _steps(config: RunConfig) -> Callable[[], None]:
    """A call that trains on the same few batches; networks, data and balancer are made now."""
    with torch.random.fork_rng(devices=[config.device] if torch.device(config.device).type == "cuda" else []):
        torch.manual_seed(config.seed)
        trained = [Training(one, RunFolder(Path(), print), lambda _: None, Ranks()) for one in expand(config)]
    batches = [list(islice(training.suite.batches(0), _BATCHES)) for training in trained]
    for training in trained:
        training.model.train()
        training.balancer.start_epoch()

    def call() -> None:
        for training, some in zip(trained, batches, strict=True):
            for batch in some:
                training.step(batch)

    return call


def _take_turns(base: RunConfig, config: RunConfig, rounds: int, on_round: Callable[[int], object] | None) -> Timing:
    """As many steps at a time as a clock can tell."""
    theirs, ours = _steps(base), _steps(config)
    theirs()
    repeat = max(1, math.ceil(_SHORTEST / seconds_of(theirs, 1)))
    clock = time.process_time if by_processor(config.device) else time.perf_counter
    [timing] = compare(
        theirs, {config.label: ours}, rounds, warmup=1, repeat=repeat, on_round=on_round, clock=clock
    )  # fmt: skip
    return timing


def by_processor(device: str) -> bool:
    """Whether this process's own time is counted: what others do on the machine does not disturb it.

    >>> by_processor("cuda")
    False
    """
    return torch.device(device).type == "cpu" and torch.get_num_threads() == 1


def _peak(config: RunConfig) -> int:
    """The most bytes that the first steps hold at once of what they allocate."""
    call = _steps(config)
    if torch.device(config.device).type == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        return torch.cuda.max_memory_allocated() - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it would write into the progress
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        call()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(path))
        events = json.loads(path.read_text("utf-8", "replace"))["traceEvents"]
    held = most = 0
    for event in sorted((event for event in events if event.get("name") == "[memory]"), key=lambda e: float(e["ts"])):
        held += event["args"]["Bytes"]
        most = max(most, held)
    return most
