"""Runs on a Ray cluster whose workers, nodes and driver die: nothing is lost, nothing runs twice."""

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from equipoise.runs.train import train
from runs.reading import numbers

SCRIPT = Path(__file__).parent / "ray_cluster.py"
# Starting a cluster takes most of a minute on a busy machine of two cores.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="needs the package ray (the extra [ray])"),
]


def ray_runs(scenario, root):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, str(SCRIPT), scenario, str(root)], capture_output=True, text=True, env=environment, check=False
    )


@pytest.fixture(scope="module")
def configs():
    sys.path.insert(0, str(SCRIPT.parent))
    from ray_cluster import CONFIGS

    return CONFIGS


@pytest.fixture(scope="module")
def expected(configs, tmp_path_factory):
    root = tmp_path_factory.mktemp("here")
    for config in configs:
        train(config, root)
    return [numbers(root / config.folder) for config in configs]


def check(done, configs, expected, root):
    """All runs ended, each once, with the numbers of one that nothing happened to; what was told of them."""
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["problems"] == [None] * len(configs)
    assert [numbers(root / config.folder) for config in configs] == expected
    for at in range(len(configs)):
        assert [kind for index, kind, _, _ in answer["told"] if index == at].count("finished") == 1
    return answer["told"]


@pytest.mark.parametrize("scenario", ["node_killed", "worker_killed"])
def test_what_dies_is_made_good_for(scenario, configs, expected, tmp_path):
    told = check(ray_runs(scenario, tmp_path), configs, expected, tmp_path)
    notes = [(place, at, text) for place, (at, kind, _, text) in enumerate(told) if kind == "note"]
    place, victim, text = notes[0]
    assert text.startswith("its worker or node is gone")
    assert text.endswith("going on from its last checkpoint")
    steps = [step for at, kind, step, _ in told[place:] if at == victim and kind == "progress"]
    assert steps[0] > 300  # it went on from a checkpoint
    untouched = [at for at in range(len(configs)) if at not in {at for _, at, _ in notes}]
    for at in untouched:  # the others were left alone
        assert [kind for index, kind, _, _ in told if index == at].count("started") == 1


def test_a_stop_keeps_what_is_done_and_the_same_command_goes_on(configs, expected, tmp_path):
    done = ray_runs("stopped", tmp_path)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert any(answer["stopped"])
    assert answer["problems"] == [None] * len(configs)
    far = max(step for _, _, step, _ in answer["told"] if step)
    told = check(ray_runs("unbroken", tmp_path), configs, expected, tmp_path)
    assert min(step for at, _, step, _ in told if step and at == 0) > 300
    assert far < 2400


def test_a_killed_driver_takes_its_cluster_along(configs, expected, tmp_path):
    assert ray_runs("driver_killed", tmp_path).returncode == -signal.SIGKILL
    told = check(ray_runs("unbroken", tmp_path), configs, expected, tmp_path)
    assert min(step for _, _, step, _ in told if step) >= 1
