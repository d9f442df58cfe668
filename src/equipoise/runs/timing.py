"""Timing that survives a busy machine: contenders take turns with the base in one run, and only ratios are kept."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch


@dataclass
class Timing:
    """One contender: its time over the base's in each round, and what a call took."""

    name: str
    ratios: list[float]
    seconds: list[float]

    @property
    def ratio(self) -> float:
        """The median over the rounds."""
        return statistics.median(self.ratios)

    @property
    def spread(self) -> tuple[float, float]:
        """The quartiles of the ratio."""
        first, _, third = statistics.quantiles(self.ratios, n=4)
        return first, third

    @property
    def milliseconds(self) -> float:
        """Of a call, the median."""
        return statistics.median(self.seconds) * 1e3

    def __str__(self) -> str:
        low, high = self.spread
        return f"{self.ratio:.3f} ({low:.3f} to {high:.3f})"


def compare(
    base: Callable[[], object],
    contenders: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    warmup: int = 3,
    repeat: int = 1,
    seed: int = 0,
    on_round: Callable[[int], object] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Timing]:
    """Time each contender between two runs of the base (base, ours, ours, base), in a new order each round.

    The ratio of a round is ours + ours over base + base, so a machine that drifts slower or faster drifts out.
    `repeat` calls are timed together. `time.process_time` as `clock` counts this process alone, which helps where
    others share the cores and is wrong where a device computes.

    >>> [timing] = compare(lambda: sum(range(1000)), {"same": lambda: sum(range(1000))}, rounds=9)
    >>> len(timing.ratios)
    9
    """
    timings = {name: Timing(name, [], []) for name in contenders}
    order = list(contenders)
    shuffle = random.Random(seed).shuffle
    for call in (base, *contenders.values()):
        for _ in range(warmup):
            call()
    gc.collect()
    gc.disable()
    gc.freeze()  # collecting between rounds then looks at what they made alone, and leaves the caches warm
    try:
        for round_number in range(rounds):
            shuffle(order)
            for name in order:
                ours = contenders[name]
                times = [seconds_of(call, repeat, clock) for call in (base, ours, ours, base)]
                timings[name].ratios.append((times[1] + times[2]) / (times[0] + times[3]))
                timings[name].seconds.append((times[1] + times[2]) / 2 / repeat)
            gc.collect()
            if on_round is not None:
                on_round(round_number + 1)
    finally:
        gc.unfreeze()
        gc.enable()
    return list(timings.values())


def seconds_of(call: Callable[[], object], repeat: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """What `repeat` calls take together."""
    synchronise()
    start = clock()
    for _ in range(repeat):
        call()
    synchronise()
    return clock() - start


def synchronise() -> None:
    """Wait for the GPU, where one is in use."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
