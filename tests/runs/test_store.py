"""Damage is noticed and named; a restart recovers and ends with the numbers of an unbroken run."""

import json

import pytest
import torch

from equipoise.runs import checkpoint
from equipoise.runs.checkpoint import DamagedFile, read_checkpoint, write_checkpoint
from equipoise.runs.config import RunConfig, configure, slug
from equipoise.runs.store import find_runs, open_run, read_run
from equipoise.runs.train import Stopped, train

TREE = {
    "tensors": [torch.tensor(2.5), torch.arange(6).reshape(2, 3).T, torch.zeros(0), torch.tensor([True, False])],
    "half": torch.tensor([1.5, -0.25], dtype=torch.bfloat16),
    "state": {0: {"step": 3, "betas": (0.9, 0.999)}, "name": "µ", "none": None, "inf": float("-inf")},
}


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return a == b and type(a) is type(b)


def test_a_checkpoint_gives_back_what_it_was_given(tmp_path):
    write_checkpoint(tmp_path / "c", TREE)
    assert same(read_checkpoint(tmp_path / "c"), TREE)
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_a_checkpoint_refuses_what_is_no_plain_value(tmp_path):
    with pytest.raises(TypeError, match=r"`a/b` must be a tensor or a plain value.*object"):
        write_checkpoint(tmp_path / "c", {"a": {"b": object()}})


@pytest.mark.parametrize("where", [0, 3, 40, 400, -1])
def test_one_altered_byte_is_noticed(where, tmp_path):
    path = tmp_path / "c"
    write_checkpoint(path, TREE)
    data = bytearray(path.read_bytes())
    data[where] ^= 0x10
    path.write_bytes(data)
    with pytest.raises(DamagedFile, match=f"{path} is"):
        read_checkpoint(path)


@pytest.mark.parametrize("left", [0, 7, 100, 600])
def test_a_truncated_checkpoint_is_noticed(left, tmp_path):
    path = tmp_path / "c"
    write_checkpoint(path, TREE)
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(DamagedFile, match="is damaged"):
        read_checkpoint(path)


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "c"
    checkpoint.write_whole(path, b"old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


def _after(steps):
    left = iter(range(steps))
    return lambda: next(left, None) is None


def _partial(tmp_path):
    """A run stopped in its third epoch, and what it should end with."""
    config = configure("twin", "ls")
    whole = train(config, tmp_path / "whole")["metrics"]
    with pytest.raises(Stopped):
        train(config, tmp_path, stop=_after(9))
    return config, tmp_path / config.folder, whole


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ({"checkpoint.safetensors": slice(0, 300)}, ["checkpoint.safetensors is damaged", "Looking for an older"]),
        (
            {"checkpoint.safetensors": slice(0, 0), "checkpoint.previous.safetensors": slice(0, 50)},
            ["checkpoint.safetensors is damaged", "previous.safetensors is damaged", "the run starts again"],
        ),
        ({"metrics.csv": slice(0, 60)}, ["metrics.csv is damaged", "the run starts again"]),
        ({"steps.csv": slice(30, None)}, ["steps.csv is damaged", "the run starts again"]),
    ],
)
def test_damage_is_said_and_the_run_still_ends_right(damage, said, tmp_path):
    config, folder, whole = _partial(tmp_path)
    for name, kept in damage.items():
        (folder / name).write_bytes((folder / name).read_bytes()[kept])
    notes = []
    result = train(config, tmp_path, notify=lambda event: notes.append(event.get("text", "")))
    for words in said:
        assert any(words in note for note in notes), notes
    assert result["metrics"] == whole
    assert len(read_run(folder).metrics) == config.epochs


def test_rows_after_the_checkpoint_are_cut_off(tmp_path):
    config, folder, whole = _partial(tmp_path)
    with (folder / "metrics.csv").open("a") as file:
        file.write("2,1.0,0.01,9,9,9\n3,half a ro")
    assert train(config, tmp_path)["metrics"] == whole
    assert [row["epoch"] for row in read_run(folder).metrics] == [0, 1, 2, 3]


def test_a_damaged_result_is_named_by_readers_and_mended_by_a_rerun(tmp_path):
    config = configure("twin", "ls", settings={"epochs": 2})
    whole = train(config, tmp_path)["metrics"]
    result = tmp_path / config.folder / "result.json"
    content = json.loads(result.read_text())
    content["result"]["metrics"]["far"] = 0.0
    result.write_text(json.dumps(content))
    with pytest.raises(DamagedFile, match=r"result\.json is damaged: it does not match its checksum"):
        read_run(tmp_path / config.folder)
    notes = []
    assert train(config, tmp_path, notify=lambda event: notes.append(event.get("text")))["metrics"] == whole
    assert "result.json is damaged" in notes[0]


def test_an_altered_table_of_a_finished_run_is_named(tmp_path):
    config = configure("twin", "ls", settings={"epochs": 2})
    train(config, tmp_path)
    table = tmp_path / config.folder / "metrics.csv"
    table.write_text(table.read_text().replace("0", "1"))
    with pytest.raises(DamagedFile, match=r"metrics\.csv is damaged: it is not the file the run ended with"):
        read_run(tmp_path / config.folder)


def test_a_damaged_configuration_is_named(tmp_path):
    config = configure("twin", "ls", settings={"epochs": 1})
    train(config, tmp_path)
    (tmp_path / config.folder / "config.toml").write_text("suite = [")
    with pytest.raises(DamagedFile, match=r"config\.toml is damaged"):
        train(config, tmp_path)


def test_a_table_without_a_configuration_is_not_adopted(tmp_path):
    config = configure("twin", "ls")
    (tmp_path / config.folder).mkdir(parents=True)
    (tmp_path / config.folder / "metrics.csv").write_text("epoch\n0\n")
    with pytest.raises(DamagedFile, match=r"has a metrics\.csv but no config\.toml"):
        train(config, tmp_path)


def test_leftovers_of_a_kill_in_mid_write_are_swept(tmp_path):
    (tmp_path / ".writing-abc").write_text("x")
    with open_run(tmp_path):
        assert not (tmp_path / ".writing-abc").exists()


def test_the_stored_configuration_repeats_the_run(tmp_path):
    config = configure("twin", "ls:weights=[0.5, 2, 1]", seed=4, settings={"epochs": 1})
    train(config, tmp_path)
    assert find_runs(tmp_path) == [tmp_path / config.folder]
    run = read_run(tmp_path / config.folder)
    assert run.config == RunConfig.from_table(config.to_table()) == config
    assert run.environment["torch"] == torch.__version__


@pytest.mark.parametrize("name", ["../x", "..", "", "a/b", "<script>", "é" * 200, ".hidden", "C:\\x"])
def test_no_name_leaves_its_folder(name, tmp_path):
    path = tmp_path / slug(name)
    assert path.resolve().parent == tmp_path.resolve()
    path.mkdir()
    assert not path.name.startswith(".")
