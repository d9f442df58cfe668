"""The trainer examples run as they are, agree with each other, and continue from their checkpoints to the last bit.

The slow tests run the same with other versions of the trainers, each in an environment of its own.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
ALL = ("plain", "lightning", "accelerate", "hf_trainer", "compiled")
COLUMNS = {"balancer/weight/mu", "balancer/weight/alpha", "balancer/loss/mu", "balancer/loss/alpha",
           "balancer/discrepancy", "balancer/discrepancy_ratio"}  # fmt: skip
# The oldest versions that do all of this with the torch of constraints.txt, and the newest there are.
VERSIONS = {
    "oldest": ("lightning==2.4.0", "transformers==4.48.0", "accelerate==0.26.0", "pytest"),
    "newest": ("lightning", "transformers", "accelerate", "pytest"),
}


def run(example: str, *arguments: str, line: str = "mu: test loss", python: str | Path = sys.executable) -> list[str]:
    """What an example's runs with these arguments end with, a line each."""
    done = subprocess.run(
        [python, str(Path(__file__).with_name("run_examples.py")), str(EXAMPLES / f"{example}.py")],
        input="\n".join(f"--smoke {options}" for options in arguments),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
             "HF_HUB_OFFLINE": "1"},
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    results = [text for text in done.stdout.splitlines() if text.startswith(line)]
    assert len(results) == len(arguments), done.stdout + done.stderr
    return results


def whole_and_in_halves(example: str, folder: Path, python: str | Path = sys.executable) -> list[str]:
    """Two epochs at once, and one after the other; with FAMO, whose state is the richest. MGDA needs the features."""
    whole, first, second, mgda = run(
        example, "--method famo", f"--method famo --epochs 1 --folder {folder}", f"--method famo --folder {folder}",
        "--method mgda", python=python,
    )  # fmt: skip
    assert first != whole and second == whole and mgda != whole
    return [whole, mgda]


def lightning_and_accelerate(folder: Path, python: str | Path = sys.executable) -> None:
    """The same options (bfloat16, two batches a step, clipping), so the same numbers; and what Lightning logged."""
    found = [whole_and_in_halves(name, folder / name, python) for name in ("lightning", "accelerate")]
    assert found[0] == found[1]
    for version in ("version_0", "version_1"):
        with (folder / "lightning" / version / "metrics.csv").open() as file:
            assert set(csv.DictReader(file).fieldnames or ()) >= COLUMNS


def hf_trainer(folder: Path, python: str | Path = sys.executable) -> None:
    whole_and_in_halves("hf_trainer", folder / "hf", python)
    state = json.loads((folder / "hf" / "checkpoint-4" / "trainer_state.json").read_text())
    steps = [row for row in state["log_history"] if "loss" in row]
    assert len(steps) == 4 and all(set(row) >= COLUMNS for row in steps)


def need(*modules: str) -> None:
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs {module}")


def test_plain(tmp_path: Path) -> None:
    whole_and_in_halves("plain", tmp_path / "run")


def test_lightning_and_accelerate(tmp_path: Path) -> None:
    need("lightning", "accelerate")
    lightning_and_accelerate(tmp_path)


def test_hf_trainer(tmp_path: Path) -> None:
    need("transformers", "accelerate")
    hf_trainer(tmp_path)


def test_compiled() -> None:
    """The step and the optimizer; FAMO's second look too; for MGDA the trunk and the heads apart. Nothing twice."""
    found = run("compiled", "--method ldc", "--method famo", "--method mgda", line="graphs compiled")
    assert found == ["graphs compiled: 2", "graphs compiled: 5", "graphs compiled: 8"]  # in all, so far


def test_examples_are_short() -> None:
    for name in ALL:
        assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 80, name


@pytest.mark.slow
@pytest.mark.parametrize("age", VERSIONS)
def test_other_versions_of_the_trainers(age: str, tmp_path: Path) -> None:
    """Two minutes each, most of it pip; docs/trainers.md says which versions it was."""
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    pip = [python, "-m", "pip", "--quiet"]
    subprocess.run([*pip, "install", "-c", ROOT / "constraints.txt", "torch", "numpy", *VERSIONS[age]], check=True)
    subprocess.run([*pip, "freeze"], check=True)
    callbacks = [python, "-m", "pytest", "tests/integrations"]
    subprocess.run(callbacks, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, check=True)
    lightning_and_accelerate(tmp_path, python)
    hf_trainer(tmp_path, python)
