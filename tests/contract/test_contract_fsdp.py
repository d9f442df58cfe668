"""Two gloo processes under FSDP2 give what one process gives on the joined batch, for losses and features."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from contract.fsdp import RUNS, train
from contract.ranks import found_by_two, run_id
from contract.table import Row, close


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return found_by_two(train, RUNS, tmp_path_factory.mktemp("fsdp"))


@pytest.mark.parametrize(("row", "where", "scenario"), RUNS, ids=[run_id(*run) for run in RUNS])
def test_two_sharded_processes_equal_one(
    row: Row, where: str, scenario: str, on_two_ranks: list[dict[str, Any]]
) -> None:
    expected = train(row, where, scenario, None)
    found = [results[run_id(row, where, scenario)] for results in on_two_ranks]
    for each in found:
        assert isinstance(each, dict), each
        close(each["net"], expected["net"], 1e-6)
        close(each["weights"], expected["weights"], 1e-6)
    assert torch.equal(found[0]["weights"], found[1]["weights"])
