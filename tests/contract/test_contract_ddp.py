"""Two gloo processes under DDP give what one process gives on the joined batch, for every row of the table."""

from __future__ import annotations

from typing import Any

import pytest

from contract.ddp import RUNS, train
from contract.ranks import found_by_two, run_id
from contract.table import Row, close


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return found_by_two(train, RUNS, tmp_path_factory.mktemp("ddp"))


@pytest.mark.parametrize(("row", "where", "scenario"), RUNS, ids=[run_id(*run) for run in RUNS])
def test_two_processes_equal_one(row: Row, where: str, scenario: str, on_two_ranks: list[dict[str, Any]]) -> None:
    expected = train(row, where, scenario, None)
    for rank in range(2):
        found = on_two_ranks[rank][run_id(row, where, scenario)]
        assert isinstance(found, dict), found
        for part in ("net", "gradients", "weights", "balancer"):
            close(found[part], expected[part], 1e-6)
    first = on_two_ranks[0][run_id(row, where, scenario)]
    for part in ("evaluation", "validation"):
        close(first[part], expected[part], 1e-6)
