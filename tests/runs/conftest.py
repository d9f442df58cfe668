"""The tests' own suites, known by name while a test runs."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def twin_suites(monkeypatch):
    from twin import SUITES

    from equipoise import suites

    for name, where in SUITES.items():
        monkeypatch.setitem(suites._SUITES, name, where)
