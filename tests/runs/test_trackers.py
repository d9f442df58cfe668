"""The real TensorBoard, W&B and MLflow have what the run's tables have, each number once, whatever stops the run."""

import json
import math
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from equipoise.runs.config import configure
from equipoise.runs.store import read_run
from equipoise.runs.trackers import of_epoch, of_step

SETTINGS = {"epochs": 3, "suite.steps_per_epoch": 10}
CONFIG = configure("toy", "ldc", settings=SETTINGS)

# Stopped within the first epoch; killed within the second, so that the third goes on from the end of the first.
ENDS = [("stopped", 4, 130), ("killed", 8, 9), ("done", -1, 0)]
RUN = f"""
import os, sys
from pathlib import Path
from equipoise.runs.config import configure
from equipoise.runs.train import Stopped, train
tracker, root, end, left = *sys.argv[1:4], int(sys.argv[4])
def stop():
    global left
    left -= 1
    if left == 0 and end == "killed":
        os._exit(9)
    return left == 0
try:
    train(configure("toy", "ldc", settings={SETTINGS}), Path(root), track=tracker, stop=stop)
except Stopped:
    sys.exit(130)
"""

# Each prints what its tracker has: {name: [[step, value], ...]}.
READ = {
    "tensorboard": """
import json, sys
from pathlib import Path
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
(folder,) = Path(sys.argv[1]).rglob("tensorboard")
found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
found.Reload()
print(json.dumps({tag: [[e.step, e.value] for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}))
""",
    "mlflow": """
import json
from mlflow import MlflowClient
client = MlflowClient()
(run,) = client.search_runs([client.get_experiment_by_name("equipoise").experiment_id])
assert run.info.status == "FINISHED" and run.data.params["suite"] == "toy"
told = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
print(json.dumps({name: [[m.step, m.value] for m in history] for name, history in told.items()}))
""",
    # An offline run's file: records in blocks of 32 KiB, each piece after its checksum, length and kind.
    "wandb": """
import json, struct, sys
from collections import defaultdict
from pathlib import Path
from wandb.proto.wandb_internal_pb2 import Record
BLOCK, HEAD, FIRST, LAST = 32768, 7, (1, 2), (1, 4)
found = defaultdict(list)
for file in sorted(Path(sys.argv[1]).rglob("*.wandb"), key=lambda path: path.stat().st_mtime):
    data, at, record = file.read_bytes(), HEAD, b""
    while at + HEAD <= len(data):
        room = BLOCK - at % BLOCK
        if room < HEAD:
            at += room
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + HEAD])
        piece = data[at + HEAD : at + HEAD + length]
        at += HEAD + length
        record = piece if kind in FIRST else record + piece
        if kind in LAST:
            told = Record.FromString(record)
            if told.WhichOneof("record_type") == "history":
                row = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in told.history.item}
                for name, value in row.items():
                    if not name.startswith("_"):
                        found[name].append([row["_step"], value])
print(json.dumps(found))
""",
}


@pytest.mark.slow  # about 20 seconds each, most of it imports
@pytest.mark.parametrize("name", READ)
def test_a_real_tracker_has_what_the_tables_have(name, tmp_path):
    if find_spec(name) is None:
        pytest.skip(f"needs the package {name}")
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'mlflow.db'}",
    }

    def python(code, *words):
        command = [sys.executable, "-c", code, *map(str, words)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path, check=False)

    for end, steps, code in ENDS:
        if (name, end) != ("wandb", "killed"):  # W&B writes when it sees fit: a kill takes the newest rows from it
            done = python(RUN, name, tmp_path / "runs", end, steps)
            assert done.returncode == code, done.stderr
    told = python(READ[name], tmp_path / "runs")
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout.splitlines()[-1])

    run = read_run(tmp_path / "runs" / CONFIG.folder)
    rows = [(int(row["step"]), of_step(row)) for row in run.steps]
    rows += [(10 * (int(row["epoch"]) + 1), of_epoch(row)) for row in run.metrics]
    expected = {
        name: [(step, row[name]) for step, row in rows if name in row] for name in {n for _, row in rows for n in row}
    }
    assert found.keys() == expected.keys()
    for metric, values in expected.items():
        assert [step for step, _ in found[metric]] == [step for step, _ in values], metric
        assert all(math.isclose(a, b, rel_tol=1e-6) for (_, a), (_, b) in zip(found[metric], values, strict=True))
