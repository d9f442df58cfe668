"""One run on several ranks of torch.distributed: each takes its share of every batch, the first writes the folder."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from equipoise.distributed import world_size
from equipoise.runs.store import RunFolder, open_run
from equipoise.suites.suite import Suite

Made = TypeVar("Made")

_PATIENCE = timedelta(hours=2)  # ranks wait for the first one's evaluation; one that dies is noticed at once


class RankLost(RuntimeError):
    """Another rank of the run is gone."""


def launched() -> bool:
    """Whether torchrun (or what sets the same variables) started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and {"RANK", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


def onlooking() -> bool:
    """Whether this process is another rank than the first: it prints and writes nothing."""
    return launched() and os.environ["RANK"] != "0"


@contextmanager
def leaving_at_once() -> Iterator[None]:
    """End the process after the block as it would end, but without the interpreter's tear-down.

    For ranks: threads of torch's process groups live until then, and now and then abort a process that has done all
    its work, which torchrun takes for a failure.
    """
    code = 0
    try:
        yield
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


@contextmanager
def process_group(device: str) -> Iterator[Ranks]:
    """Join the ranks that torchrun started, unless that is done already."""
    if ":" in device:
        raise ValueError(
            f"`device` must be cpu or cuda on several ranks, each of which takes its own; found {device!r}."
        )
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    ours = not dist.is_initialized()
    if ours:
        # Numbers on the processor, such as who wants to stop, need not wait for the device.
        backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=_PATIENCE, **_meeting_point())
    try:
        yield Ranks()
    finally:
        if ours:
            dist.destroy_process_group()


def _meeting_point() -> dict[str, Any]:
    """Where ranks that torchrun has started again find each other.

    Its store still has the addresses of those before them. On one machine the number of the restart keeps them apart;
    on several, whose numbers may differ, they meet as torch has it.
    """
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if restarts == "0" or os.environ.get("LOCAL_WORLD_SIZE") != os.environ["WORLD_SIZE"]:
        return {}
    store, rank, size = next(rendezvous("env://"))
    return {"store": PrefixStore(f"restart-{restarts}", store), "rank": rank, "world_size": size}


@contextmanager
def naming_lost_ranks() -> Iterator[None]:
    """What torch says when a rank vanishes, as `RankLost`."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error):
            raise RankLost("another rank of this run has ended, so this one ends too.") from error
        raise


class Ranks:
    """The ranks of torch.distributed that train together: one, where there are no others."""

    def __init__(self) -> None:
        self.size = world_size()
        self.rank = dist.get_rank() if self.size > 1 else 0

    def open_folder(self, path: Path, **options: Any) -> AbstractContextManager[RunFolder]:
        """The run's folder for the first rank, nothing to write to for the others."""
        return open_run(path, **options) if self.rank == 0 else nullcontext(_Onlooker(path, lambda _: None))

    def share(self, suite: Suite, batch: Any) -> tuple[Any, Sequence[float] | Tensor | None]:
        """This rank's part of a batch, and how many labels each task has in it (None: all there are)."""
        return (batch, None) if self.size == 1 else suite.share(batch, self.rank, self.size)

    def losses(self, suite: Suite, model: nn.Module) -> nn.Module:
        """The suite's losses on a batch and its shared representation; backward averages gradients over the ranks.

        On GPUs BatchNorm sees the joined batch; on the processor, where torch has no such layer, each rank's part.
        """
        module = _Losses(suite, model)
        if self.size == 1:
            return module
        if suite.device.type == "cuda":
            module.model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        return DistributedDataParallel(module)

    def mean(self, values: Tensor, counts: Sequence[float] | Tensor | None) -> Tensor:
        """Each task's mean over all labels, from those over each rank's."""
        if self.size == 1:
            return values
        labels = torch.as_tensor(counts, device=values.device).to(values)
        total = torch.stack([torch.where(labels > 0, values * labels, 0.0), labels])
        dist.all_reduce(total)
        return total[0] / total[1]

    def any(self, *flags: bool) -> list[bool]:
        """For each of the questions whether any rank says yes."""
        if self.size == 1:
            return list(flags)
        said = torch.tensor(flags, dtype=torch.uint8)
        dist.all_reduce(said, dist.ReduceOp.MAX)
        return [bool(flag) for flag in said]

    def from_first(self, make: Callable[[], Made]) -> Made:
        """What the first rank makes, for all of them."""
        made: list[Any] = [make() if self.rank == 0 else None]
        if self.size > 1:
            dist.broadcast_object_list(made, device=torch.device("cpu"))
        result: Made = made[0]
        return result

    def stack(self, state: Tensor) -> Tensor:
        """A small tensor of the processor's memory that differs between ranks: all of them, a row each."""
        if self.size == 1:
            return state
        rows = [torch.empty_like(state) for _ in range(self.size)]
        dist.all_gather(rows, state)
        return torch.stack(rows)

    def row(self, stacked: Tensor) -> Tensor | None:
        """This rank's of what `stack` gave, perhaps to fewer ranks: then None for the new ones."""
        rows = stacked if stacked.ndim == 2 else stacked[None]
        return (
            rows[self.rank].clone() if self.rank < len(rows) else None
        )  # torch crashes on a generator's state in a view


class _Losses(nn.Module):
    """A suite's losses as a module's forward, which is what DistributedDataParallel wraps."""

    def __init__(self, suite: Suite, model: nn.Module) -> None:
        super().__init__()
        self.suite = suite
        self.model = model

    @override
    def forward(self, batch: Any) -> tuple[Any, Tensor]:
        return self.suite.losses(self.model, batch)


class _Onlooker(RunFolder):
    """A run's folder as the other ranks see it: what they would write is the first rank's to write."""

    @override
    def append(self, *_: Any) -> None: ...

    @override
    def save(self, *_: Any) -> None: ...

    @override
    def write_error(self, *_: Any) -> None: ...
