"""The command in this process, its runs too, on the tests' own suites."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "runs"))


@pytest.fixture(autouse=True)
def twin_suites(monkeypatch):
    from twin import SUITES

    from equipoise import suites

    for name, where in SUITES.items():
        monkeypatch.setitem(suites._SUITES, name, where)


@pytest.fixture
def trained():
    """The labels and seeds of the runs that were begun, in order; `stop_after` says after how many to stop."""
    return Trained()


class Trained(list):
    stop_after = None


@pytest.fixture
def command(monkeypatch, capsys, trained):
    """`command("run", "twin")` gives the exit code and all that was written."""
    from equipoise.cli import common, main
    from equipoise.runs.engine import Outcome, run_here

    def here(configs, root, *, jobs, watch, force=False, track=None):
        outcomes = []
        for at, config in enumerate(configs):
            if trained.stop_after is not None and len(trained) >= trained.stop_after:
                outcomes.append(Outcome(config))
                continue
            trained.append((config.label, config.seed))
            outcomes.append(
                run_here(config, root, force=force, track=track, watch=watch, stop=lambda: False, at=at)
            )  # fmt: skip
        return outcomes

    def call(*words):
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["equipoise", *map(str, words)])
        monkeypatch.setattr(common.console, "_width", 200)
        monkeypatch.setattr(common, "run_local", here)
        with pytest.raises(SystemExit) as end:
            main()
        text = "".join(capsys.readouterr())
        code = end.value.code
        return (1, text + code) if isinstance(code, str) else (code or 0, text)

    return call
