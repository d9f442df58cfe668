"""Carrying out a list of runs: side by side in processes of this machine, each resumable on its own."""

from __future__ import annotations

import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, TypeAlias

import torch
from typing_extensions import Self

from equipoise.runs.config import RunConfig
from equipoise.runs.ranks import launched
from equipoise.runs.train import Stopped, train

#: Is told, for the run at an index of the list, what `train` notifies, and "started", "stopping" and how it ended:
#: "finished", "failed" or "stopped".
Watch: TypeAlias = Callable[[int, Mapping[str, Any]], None]

RETRIES = 2  # how often a run is tried again whose process died
PATIENCE = 30.0  # seconds to wait for a process that should be gone but still writes the run: it ends at its next step


@dataclass(frozen=True)
class Outcome:
    """How a run ended: with a result, or with the problem in a sentence; with neither when it was stopped."""

    config: RunConfig
    result: Mapping[str, Any] | None = None
    problem: str | None = None

    @property
    def stopped(self) -> bool:
        """Whether it is still to be finished."""
        return self.result is None and self.problem is None


def run_here(
    config: RunConfig,
    root: Path,
    *,
    force: bool,
    track: str | None,
    watch: Watch,
    stop: Callable[[], bool],
    at: int = 0,
) -> Outcome:
    """Carry out one run in this process; whatever goes wrong becomes its outcome."""
    watch(at, {"kind": "started"})
    try:
        result = train(
            config, root, force=force, track=track, notify=lambda event: watch(at, event), stop=stop, patience=PATIENCE
        )
    except Stopped:
        watch(at, {"kind": "stopped"})
        return Outcome(config)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        watch(at, {"kind": "failed", "text": problem})
        return Outcome(config, problem=problem)
    watch(at, {"kind": "finished", "result": dict(result)})
    return Outcome(config, result)


def run_local(
    configs: Sequence[RunConfig],
    root: Path,
    *,
    jobs: int,
    watch: Watch,
    force: bool = False,
    track: str | None = None,
) -> list[Outcome]:
    """Carry out runs in `jobs` processes of this machine, each with its share of the threads, or a GPU of its own.

    A process that dies is replaced and its run goes on from its checkpoint. Ctrl-C or SIGTERM stops every run at its
    next step with a checkpoint; the outcomes say what was done by then. Under torchrun the runs are carried out one
    after the other, each by all ranks.
    """
    if jobs < 1:
        raise ValueError(f"`jobs` must be at least 1; found {jobs}.")
    if launched():
        from equipoise.runs.engine_ranks import run_ranks

        return run_ranks(configs, root, watch=watch, force=force, track=track)
    return _Pool(configs, root, min(jobs, max(1, len(configs))), force, track, watch).run()


class StopFlag:
    """Whether the user or the system asked to stop: the first signal asks, the second no longer waits."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __call__(self) -> bool:
        return self.asked

    def _ask(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


class Ledger:
    """Which runs are still to be handed out, how each ended, and how often it was cut off by a death."""

    def __init__(self, configs: Sequence[RunConfig], force: bool, watch: Watch) -> None:
        self.configs, self.watch = configs, watch
        self.queue = deque(range(len(configs)))
        self.outcomes = [Outcome(config) for config in configs]
        self.stopping = False
        self._forced = set(self.queue) if force else set()  # runs yet to be started from nothing
        self._deaths = [0] * len(configs)

    def take(self) -> tuple[int, RunConfig, bool]:
        """The next run: where it is in the list, what it is, and whether it starts from nothing."""
        at = self.queue.popleft()
        force = at in self._forced
        self._forced.discard(at)
        return at, self.configs[at], force

    def begin_no_more(self, under_way: Iterable[int]) -> None:
        """No other run begins; those under way are told of as stopping."""
        self.stopping = True
        self.queue.clear()
        for at in under_way:
            self.watch(at, {"kind": "stopping"})

    def died(self, at: int, how: str) -> None:
        """What carried a run is gone: it is tried again, a few times, unless everything stops."""
        if self.stopping:
            self.watch(at, {"kind": "stopped"})
            return
        self._deaths[at] += 1
        if self._deaths[at] <= RETRIES:
            self.watch(at, {"kind": "note", "text": f"{how}: going on from its last checkpoint"})
            self.queue.appendleft(at)
        else:
            self.outcomes[at] = Outcome(self.configs[at], problem=f"{how}, {self._deaths[at]} times")
            self.watch(at, {"kind": "failed", "text": self.outcomes[at].problem})


class _Worker:
    """A process that takes one run after the other through a pipe."""

    def __init__(self, number: int, jobs: int, root: Path, track: str | None) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        threads = max(1, torch.get_num_threads() // jobs)
        self.process: SpawnProcess = context.Process(
            target=_work, args=(theirs, number, threads, root, track, os.getpid()), daemon=True
        )
        # A Ctrl-C reaches every process of the terminal; ours passes it on in its own time. (Multiprocessing's tracker,
        # where it is not yet there, would be started by the first process and unblock the signal on the way.)
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        theirs.close()
        self.at: int | None = None  # which run it is at


class _Pool(Ledger):
    def __init__(
        self, configs: Sequence[RunConfig], root: Path, jobs: int, force: bool, track: str | None, watch: Watch
    ) -> None:
        super().__init__(configs, force, watch)
        self.root, self.jobs, self.track = root, jobs, track
        self.workers: dict[int, _Worker] = {}

    def run(self) -> list[Outcome]:
        with StopFlag() as stop:
            try:
                for number in range(self.jobs):
                    self._give(number)
                while any(worker.at is not None for worker in self.workers.values()):
                    if stop() and not self.stopping:
                        self._stop()
                    self._listen()
            finally:
                self._close()
        return self.outcomes

    def _stop(self) -> None:
        """Let every run under way write a checkpoint and end; no other begins."""
        self.begin_no_more(worker.at for worker in self.workers.values() if worker.at is not None)
        for worker in self.workers.values():
            _signal(worker.process)

    def _give(self, number: int) -> None:
        """Hand the next run to a worker, started now if it is not there."""
        if not self.queue:
            return
        if number not in self.workers:
            self.workers[number] = _Worker(number, self.jobs, self.root, self.track)
        worker = self.workers[number]
        worker.at, config, force = self.take()
        try:
            worker.pipe.send((worker.at, config, force))
        except (BrokenPipeError, ConnectionResetError):  # it died while it had nothing to do
            self._died(number)

    def _listen(self) -> None:
        busy = {worker.pipe: number for number, worker in self.workers.items() if worker.at is not None}
        for pipe in wait(list(busy), timeout=0.2):
            number = busy[pipe]  # type: ignore[index]
            try:
                message = self.workers[number].pipe.recv()
            except (EOFError, ConnectionResetError):
                self._died(number)
                continue
            if isinstance(message, Outcome):
                at = self.workers[number].at
                assert at is not None
                self.outcomes[at] = message
                self.workers[number].at = None
                if message.stopped and not self.stopping:  # somebody ended this worker alone
                    self.queue.appendleft(at)
                self._give(number)
            else:
                self.watch(*message)

    def _died(self, number: int) -> None:
        """Replace a worker whose process is gone; its run is tried again, a few times."""
        worker = self.workers.pop(number)
        worker.process.join()
        assert worker.at is not None
        self.died(worker.at, f"its process ended with exit code {worker.process.exitcode}")
        self._give(number)

    def _close(self) -> None:
        for worker in self.workers.values():
            worker.pipe.close()
            if worker.at is not None:  # we are leaving in a hurry
                worker.process.kill()
            worker.process.join()


def _signal(process: SpawnProcess) -> None:
    if process.is_alive():
        process.terminate()


def _work(pipe: Connection, number: int, threads: int, root: Path, track: str | None, parent: int) -> None:
    """The life of a worker process; SIGINT stays blocked in it."""
    torch.set_num_threads(threads)
    _take_gpu(number)
    asked = False

    def ask(*_: object) -> None:
        nonlocal asked
        asked = True

    signal.signal(signal.SIGTERM, ask)

    def stop() -> bool:
        return asked or os.getppid() != parent  # nobody is there to hear us

    def tell(at: int, event: Mapping[str, Any]) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # then stop() will say so
            pipe.send((at, event))

    try:
        while not stop():
            at, config, force = pipe.recv()
            torch.set_num_threads(threads)  # a resumed run may have taken its own number
            pipe.send(run_here(config, root, force=force, track=track, watch=tell, stop=stop, at=at))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        sys.exit()


def _take_gpu(number: int) -> None:
    """One GPU a worker, in turns, where there are several."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else [str(gpu) for gpu in range(torch.cuda.device_count())]
    if len(gpus) > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]
