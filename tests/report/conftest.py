"""A finished comparison on the tests' own suite, trained once."""

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[1] / "runs"), str(Path(__file__).parent)]

METHODS = ["stl", "ls", "famo", "dwa", "ldc", "ldc-double:inner_lr=0.01:inner_steps=2"]


@pytest.fixture(scope="session")
def twin_suites():
    from equipoise import suites

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(suites._SUITES, "twin", ("twin", "Twin"))
        patch.setitem(suites._SUITES, "pair", ("twin", "Pair"))
        yield


@pytest.fixture(scope="session")
def folder(twin_suites, tmp_path_factory):
    from equipoise.runs.compare import plan
    from equipoise.runs.train import Stopped, train

    root = tmp_path_factory.mktemp("runs")
    for config in plan("twin", METHODS, [0, 1], {"epochs": 3}):
        train(config, root)
    (unfinished,) = plan("twin", ["si"], [0], {"epochs": 3})
    left = iter(range(5))
    with pytest.raises(Stopped):
        train(unfinished, root, stop=lambda: next(left, None) is None)
    return root


@pytest.fixture
def comparison(folder):
    from equipoise.report.collect import collect

    (found,) = collect([folder])
    return found
