"""Carrying out a list of runs on a Ray cluster: the same plan, the same folders, on as many machines as there are."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import torch

from equipoise.runs.config import RunConfig
from equipoise.runs.engine import Ledger, Outcome, StopFlag, Watch, run_here

_POLL = 0.2  # seconds between looks of the driver at its tasks, and of a task at whether it should stop
_ENDS = ("finished", "failed", "stopped")  # told of when the outcome is here: a worker may die after telling
_MARK = ".here-"  # how the name of the file begins by which a node shows that it sees the runs' folder


def run_ray(
    configs: Sequence[RunConfig],
    root: Path,
    *,
    jobs: int,
    watch: Watch,
    force: bool = False,
    track: str | None = None,
    address: str | None = None,
) -> list[Outcome]:
    """Carry out runs as tasks of a Ray cluster, `jobs` at a time.

    A worker or a node that dies is made good for: its run goes on from its checkpoint, on another node if need be.
    Ctrl-C or SIGTERM stops every run at its next step with a checkpoint. Every node needs this library, and `root`
    (and the data) under the same path: a shared file system, where there are several machines.

    address: of a running cluster ("auto": the one of this machine); by default one is started here, for this call.
    """
    if jobs < 1:
        raise ValueError(f"`jobs` must be at least 1; found {jobs}.")
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ValueError("runs on a Ray cluster need the package ray: pip install 'equipoise[ray]'") from error
    root = root.resolve()
    root.mkdir(parents=True, exist_ok=True)
    with _cluster(ray, address), NamedTemporaryFile(dir=root, prefix=_MARK) as mark:
        return _Driver(ray, configs, Path(mark.name), jobs, force, track, watch).run()


@contextmanager
def _cluster(ray: Any, address: str | None) -> Iterator[None]:
    """A connection to the cluster, unless there is one; what was opened here is closed."""
    if ray.is_initialized():
        yield
        return
    quiet = {"log_to_driver": False, "logging_level": "error"}
    if address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster of our own reports to nobody
        # "local": its own, even where another is running.
        ray.init(address="local", num_cpus=os.cpu_count(), include_dashboard=False, **quiet)
    else:
        ray.init(address=address, **quiet)
    try:
        yield
    finally:
        ray.shutdown()


class _Board:
    """An actor beside the driver: workers leave what they have to tell, and read whether they should stop."""

    def __init__(self) -> None:
        self.events: list[tuple[int, Mapping[str, Any]]] = []
        self.stopping = False

    def tell(self, at: int, event: Mapping[str, Any]) -> None:
        self.events.append((at, event))

    def take(self) -> list[tuple[int, Mapping[str, Any]]]:
        events, self.events = self.events, []
        return events

    def stop(self) -> None:
        self.stopping = True

    def should_stop(self) -> bool:
        return self.stopping


class _Driver(Ledger):
    def __init__(
        self,
        ray: Any,
        configs: Sequence[RunConfig],
        mark: Path,
        jobs: int,
        force: bool,
        track: str | None,
        watch: Watch,
    ) -> None:
        super().__init__(configs, force, watch)
        self.ray, self.mark, self.jobs, self.track = ray, mark, jobs, track
        self.tasks: dict[Any, int] = {}  # which run a task under way is at
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        # Where the driver is: a node that dies takes no news with it.
        self.board = ray.remote(_Board).options(num_cpus=0, scheduling_strategy=here).remote()
        self.threads = self._threads()

    def run(self) -> list[Outcome]:
        with StopFlag() as stop:
            self._fill()
            while self.tasks:
                if stop() and not self.stopping:
                    self._stop()
                done, _ = self.ray.wait(list(self.tasks), timeout=_POLL)
                self._pass_on()
                for task in done:
                    self._end(task)
                self._fill()
        return self.outcomes

    def _threads(self) -> int:
        """A run's share of the cluster's processors, as far as a single node has them."""
        nodes = [int(node["Resources"].get("CPU", 0)) for node in self.ray.nodes() if node["Alive"]]
        return max(1, min(sum(nodes) // self.jobs, max(nodes, default=1)))

    def _fill(self) -> None:
        """Hand out runs until `jobs` of them are under way."""
        while self.queue and len(self.tasks) < self.jobs:
            at, config, force = self.take()
            gpu = torch.device(config.device).type == "cuda"
            # Ray's own retries stay off: what died is counted and told of here.
            remote = self.ray.remote(_carry_out).options(num_cpus=self.threads, num_gpus=int(gpu), max_retries=0)
            self.tasks[remote.remote(at, config, self.mark, force, self.track, self.threads, self.board)] = at

    def _stop(self) -> None:
        """Let every run under way write a checkpoint and end; no other begins."""
        self.begin_no_more(self.tasks.values())
        self.board.stop.remote()

    def _pass_on(self) -> None:
        for at, event in self.ray.get(self.board.take.remote()):
            if event["kind"] not in _ENDS:
                self.watch(at, event)

    def _end(self, task: Any) -> None:
        """Take a task's outcome; one that has none, because its worker or node died, is tried again a few times."""
        at = self.tasks.pop(task)
        try:
            outcome: Outcome = self.ray.get(task)
        except self.ray.exceptions.RayTaskError as error:  # the task's own words
            self._ended(at, Outcome(self.configs[at], problem=str(error.cause)))
        except self.ray.exceptions.RayError as error:
            self.died(at, f"its worker or node is gone ({type(error).__name__})")
        else:
            self._pass_on()  # what it told last may have come after the previous look
            self._ended(at, outcome)

    def _ended(self, at: int, outcome: Outcome) -> None:
        self.outcomes[at] = outcome
        if outcome.result is not None:
            self.watch(at, {"kind": "finished", "result": dict(outcome.result)})
        elif outcome.problem is not None:
            self.watch(at, {"kind": "failed", "text": outcome.problem})
        else:
            self.watch(at, {"kind": "stopped"})
            if not self.stopping:  # somebody ended this worker alone
                self.queue.appendleft(at)


def _carry_out(
    at: int, config: RunConfig, mark: Path, force: bool, track: str | None, threads: int, board: Any
) -> Outcome:
    """A task of the cluster: one run on this node."""
    import ray

    if not mark.exists():
        raise FileNotFoundError(
            f"the node {ray.util.get_node_ip_address()} does not see {mark.parent}: the runs' folder must be on a file "
            "system that all nodes share, under one path."
        )
    torch.set_num_threads(threads)

    def tell(index: int, event: Mapping[str, Any]) -> None:
        board.tell.remote(index, event)

    return run_here(config, mark.parent, force=force, track=track, watch=tell, stop=_Asked(ray, board), at=at)


class _Asked:
    """Whether the driver wants the run to stop: asked now and then, without waiting for the answer."""

    def __init__(self, ray: Any, board: Any) -> None:
        self.ray, self.board = ray, board
        self.answer = board.should_stop.remote()
        self.looked = time.monotonic()
        self.stopping = False

    def __call__(self) -> bool:
        if self.stopping or time.monotonic() - self.looked < _POLL:
            return self.stopping
        self.looked = time.monotonic()
        if self.ray.wait([self.answer], timeout=0)[0]:
            try:
                self.stopping = self.ray.get(self.answer)
            except self.ray.exceptions.RayError:
                self.stopping = True  # the driver is gone: nobody is there to hear us
            self.answer = self.board.should_stop.remote()
        return self.stopping
