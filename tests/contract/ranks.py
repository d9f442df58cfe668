"""Two gloo processes that each carry out the same runs and bring back what they found."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from contract.table import Row

Run: TypeAlias = "tuple[Row, str, str]"  # a row, where it looks, and the scenario
Train: TypeAlias = "Callable[[Row, str, str, int | None], dict[str, Any]]"  # the last: the rank, None for one process


def run_id(row: Row, where: str, scenario: str) -> str:
    return f"{row}@{where}@{scenario}"


def found_by_two(train: Train, runs: Sequence[Run], folder: Path) -> list[dict[str, Any]]:
    """What each rank's runs gave, under their ids; an error as its text."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(_work, (port, folder, train, runs), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def _work(rank: int, port: int, folder: Path, train: Train, runs: Sequence[Run]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2, timeout=timedelta(seconds=60))
    results: dict[str, Any] = {}
    for run in runs:
        try:
            results[run_id(*run)] = train(*run, rank)
        except Exception as error:
            results[run_id(*run)] = f"{type(error).__name__}: {error}"
    torch.save(results, folder / f"{rank}.pt")
    dist.destroy_process_group()
