"""A run leaves a diagnosis in its folder, which the report shows."""

import json
from dataclasses import replace

import pytest

from equipoise import suites
from equipoise.report.collect import collect
from equipoise.report.page import page
from equipoise.runs.checkpoint import read_checkpoint
from equipoise.runs.config import configure
from equipoise.runs.train import train
from runs.twin import Twin


class AtTrunk(Twin):
    """Tasks that share no features."""

    name = "at-trunk"
    protocol = replace(Twin.protocol, shared="parameters", epochs=2)


@pytest.fixture(autouse=True)
def known(monkeypatch):
    monkeypatch.setitem(suites._SUITES, "at-trunk", ("diagnostics.test_runs", "AtTrunk"))


def diagnosis(config, root):
    return json.loads((root / config.folder / "diagnosis.json").read_text())


def test_a_run_leaves_its_diagnosis(tmp_path):
    config = configure("at-trunk", "ldc")
    result = train(config, tmp_path)
    content = diagnosis(config, tmp_path)
    assert content["tasks"] == list(Twin.tasks)
    trained = read_checkpoint(tmp_path / config.folder / "checkpoint.safetensors")["state"]
    assert content["weights"] == trained["balancer"]["last_weights"].tolist()
    for row, expected in zip(content["cosines"], result["conflict"]["cosine"], strict=True):
        assert row == pytest.approx(expected, abs=1e-5)  # the same losses at the same trunk, taken another way
    assert content["costs"] is None
    shown = page(collect([tmp_path]))
    assert "Diagnosis</h3>" in shown
    assert content["findings"]  # one task's losses are thousands of times as large


def test_a_single_task_has_none_and_force_takes_it_away(tmp_path):
    config = configure("at-trunk", "stl:task=0")
    train(config, tmp_path)
    file = tmp_path / config.folder / "diagnosis.json"
    assert not file.exists()
    file.write_text("left over")
    train(config, tmp_path, force=True)
    assert not file.exists()
