"""Two gloo processes in DDP and FSDP2 wrappers give what one process gives on the joined batch."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp

from gradient.helpers import close
from gradient.ranks import SCENARIOS, train, work


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("wrappers")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(work, (port, str(folder)), nprocs=2)
    return [torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_two_processes_equal_one(scenario: str, on_two_ranks: list[dict[str, Any]]) -> None:
    expected = train(scenario, None)
    for rank in range(2):
        found = on_two_ranks[rank][scenario]
        assert isinstance(found, dict), found
        close(found["net"], expected["net"], 1e-10)
        close(found["weights"], expected["weights"], 1e-10)


def test_sharded_parameters_are_refused(on_two_ranks: list[dict[str, Any]]) -> None:
    for rank in range(2):
        assert "sharded parameters" in on_two_ranks[rank]["sharded parameters"]


def test_static_graph_is_refused(on_two_ranks: list[dict[str, Any]]) -> None:
    for rank in range(2):
        features, parameters, module = on_two_ranks[rank]["static_graph"].split("|")
        assert "static_graph" in features
        assert "static_graph=False" in parameters and "static_graph=False" in module
