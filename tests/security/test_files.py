"""No reader runs what is in a file, reserves what a header promises, or writes where a file says."""

from __future__ import annotations

import hashlib
import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save

from equipoise.runs import toml
from equipoise.runs.checkpoint import DamagedFile, read_checkpoint, write_checkpoint
from equipoise.runs.config import RunConfig, configure, slug
from equipoise.runs.store import find_runs, open_run, read_run
from equipoise.runs.trackers import _kept_id
from equipoise.runs.tune import check_storage
from equipoise.suites.celeba.data import _pack as celeba_pack
from equipoise.suites.cityscapes.data import _pack as cityscapes_pack
from equipoise.suites.nyuv2.data import _pack as nyuv2_pack
from equipoise.suites.qm9 import compact
from equipoise.suites.qm9.data import load_permutation
from security.attacks import archive, npy_header, npy_of_objects, pickled, safetensors, torch_archive

Reader = Callable[[Path], Any]
REFUSED = (ValueError, OSError, KeyError, MemoryError, RuntimeError)

# Every function that reads a file somebody else may have made, and the name it goes by.
READERS: dict[str, tuple[str, Reader]] = {
    "checkpoint": ("checkpoint.safetensors", read_checkpoint),
    "configuration": ("config.toml", toml.load),
    "run": ("config.toml", lambda path: read_run(path.parent)),
    "molecules": ("qm9.npz", compact.read),
    "permutation.npy": ("order.npy", load_permutation),
    "permutation.pt": ("order.pt", load_permutation),
    "permutation.txt": ("order.txt", load_permutation),
    "CelebA": ("celeba.npz", celeba_pack),
    "Cityscapes": ("cityscapes.npz", cityscapes_pack),
    "NYU-v2": ("nyuv2.npz", nyuv2_pack),
}
PACKED = ["img", "off", "attr", "names", "split", "rgb", "rgb_off", "label", "label_off", "inst", "inst_off", "atoms"]


def growth(call: Callable[[], Any]) -> int:
    """Bytes by which the peak of this process grew."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    call()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024


@pytest.mark.parametrize("reader", READERS)
def test_nothing_in_a_file_is_run(reader: str, tmp_path: Path) -> None:
    name, read = READERS[reader]
    proof = tmp_path / "it-ran"
    objects = npy_of_objects(proof)
    bombs = [
        pickled(proof),
        objects,
        torch_archive(proof),
        archive({f"{n}.npy": objects for n in PACKED}),
    ]
    for bomb in bombs:
        (tmp_path / name).write_bytes(bomb)
        with pytest.raises(REFUSED):
            read(tmp_path / name)
        assert not proof.exists()


def test_the_bombs_do_go_off(tmp_path: Path) -> None:
    """A test of refusals that nothing could fail would be no test."""
    proof = tmp_path / "it-ran"
    (tmp_path / "a.npy").write_bytes(npy_of_objects(proof))
    with pytest.raises(Exception):  # noqa: B017 (whatever numpy makes of a folder's None)
        np.load(tmp_path / "a.npy", allow_pickle=True).item().missing()
    assert proof.exists()
    proof.rmdir()
    (tmp_path / "a.pt").write_bytes(torch_archive(proof))
    with pytest.raises(Exception):  # noqa: B017 (an archive with a bomb and nothing else)
        torch.load(tmp_path / "a.pt", weights_only=False)
        raise RuntimeError("read to its end")
    assert proof.exists()


@pytest.mark.parametrize("reader", READERS)
def test_no_memory_is_taken_on_a_headers_word(reader: str, tmp_path: Path) -> None:
    name, read = READERS[reader]
    huge = [npy_header((10**15,)), npy_header((2**33,)), npy_header((2**33, 8), "|u1")]
    files = [*huge, *(archive({f"{n}.npy": array for n in PACKED}) for array in huge)]
    tensor = {"dtype": "F64", "shape": [2**40], "data_offsets": [0, 2**43]}
    files += [safetensors({"x": tensor}), safetensors({"x": tensor}, length=2**62), safetensors({}, length=2**40)]

    def read_all() -> None:
        for data in files:
            (tmp_path / name).write_bytes(data)
            with pytest.raises(REFUSED):
                read(tmp_path / name)

    assert growth(read_all) < 2**28


def test_a_small_archive_that_unpacks_to_much(tmp_path: Path) -> None:
    import zipfile

    array = npy_header((2**30,), "|u1")[:-8] + bytes(2**28)
    (tmp_path / "qm9.npz").write_bytes(archive({"atoms.npy": array}, zipfile.ZIP_DEFLATED))
    assert (tmp_path / "qm9.npz").stat().st_size < 2**20
    with pytest.raises(compact.DamagedFile, match="it says it unpacks to"):
        compact.read(tmp_path / "qm9.npz")


def forged(path: Path, tree: str) -> None:
    """A checkpoint with any tree and the checksum that goes with it."""
    header = {"format": "equipoise-checkpoint-1", "tree": tree, "sha256": hashlib.sha256(tree.encode()).hexdigest()}
    path.write_bytes(save({}, metadata=header))


@pytest.mark.parametrize(
    "tree",
    ["", "[" * 100_000, '{"tensor": "x"}', '{"map": [1]}', '{"map": 3, "list": 4}', "[]", "3", '{"list": []}', "{}"],
)
def test_a_checkpoint_with_a_forged_tree(tree: str, tmp_path: Path) -> None:
    """The checksum is right, for whoever forges the tree makes the checksum too."""
    forged(tmp_path / "c.safetensors", tree)
    with pytest.raises(DamagedFile, match="damaged"):
        read_checkpoint(tmp_path / "c.safetensors")
    (tmp_path / "c.safetensors").write_bytes(save({}, metadata={"format": "equipoise-checkpoint-1"}))
    with pytest.raises(DamagedFile, match="damaged"):
        read_checkpoint(tmp_path / "c.safetensors")


@pytest.mark.parametrize(
    "tables",
    [
        {"../victim.txt": (0, hashlib.sha256().hexdigest())},
        {"metrics.csv": (0, hashlib.sha256().hexdigest()), "../victim.txt": (0, hashlib.sha256().hexdigest())},
        {"metrics.csv": (-1, ""), "steps.csv": (0, "")},
        {"metrics.csv": 3, "steps.csv": ()},
    ],
)
def test_a_checkpoint_that_names_other_files(tables: dict[str, Any], tmp_path: Path) -> None:
    """It could have any file cut to nothing."""
    victim = tmp_path / "victim.txt"
    victim.write_text("precious")
    said: list[str] = []
    with open_run(tmp_path / "run", say=said.append) as folder:
        write_checkpoint(tmp_path / "run" / "checkpoint.safetensors", {"tables": tables, "state": {}})
        assert folder.load() is None
    assert victim.read_text() == "precious" and "damaged" in said[0]


def test_a_result_that_names_other_files(tmp_path: Path) -> None:
    """Reading /dev/zero to its end takes all memory there is."""
    (tmp_path / "config.toml").write_text('suite = "toy"\nmethod = "ls"\n')
    body = {"checksums": {"/dev/zero": "0", "../../x": "0"}, "result": {}}
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    (tmp_path / "result.json").write_text(json.dumps({"sha256": digest, **body}))
    with pytest.raises(DamagedFile, match=r"result.json is damaged"):
        read_run(tmp_path)
    (tmp_path / "result.json").write_text("[" * 100_000)
    with pytest.raises(DamagedFile, match=r"result.json is damaged"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    "name", ["metrics.csv", "steps.csv", ".lock", "config.toml", "checkpoint.safetensors", "tensorboard"]
)
def test_links_in_a_runs_folder(name: str, tmp_path: Path) -> None:
    """What a run writes would land where the link points."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    run = tmp_path / "run"
    run.mkdir()
    (run / name).symlink_to(victim)
    with pytest.raises(ValueError, match="must hold no links"), open_run(run):
        pass
    assert victim.read_text() == "precious"


def test_links_to_folders_are_not_searched_for_runs(tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "run").mkdir(parents=True)
    (tmp_path / "elsewhere" / "run" / "config.toml").write_text("")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "elsewhere")
    assert find_runs(tmp_path / "runs") == []


NAMES = ["..", "../..", "../../etc/x", "/etc/passwd", "a/../../b", "..\\..\\b", "a\0b", "~", "~root", "", ".", "a\nb",
         "CON", "x" * 5000, "<script>", "$(touch x)", "-rf", "💥"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_stay_in_their_folder(name: str, tmp_path: Path) -> None:
    """Labels, suites and the task of single-task learning are parts of a path."""
    root = tmp_path.resolve()
    label = configure("toy", "ls", settings={"label": name})
    task = RunConfig("toy", "stl", label="stl", options={"task": name})
    suite = RunConfig(name, "ls", label=name)
    for config in (label, task, suite):
        place = (root / config.folder).resolve()
        assert place.is_relative_to(root) and len(place.relative_to(root).parts) == config.folder.count("/") + 1
        place.mkdir(parents=True)
    assert slug(name) != slug(name + "x")


@pytest.mark.parametrize("found", ["../../x", "a b", "", "x" * 200, "a\nb", "http://evil", "é"])
def test_tracker_ids(found: str, tmp_path: Path) -> None:
    (tmp_path / "wandb.id").write_text(found, "utf-8")
    with pytest.raises(ValueError, match="must hold a run's id"):
        _kept_id(tmp_path, "wandb")


@pytest.mark.parametrize(
    "url",
    ["redis://localhost", "journal:///tmp/x", "mysql://h/d", "sqlite+pysqlite_dill:///x", "file:///etc/passwd", "x",
     "http://h/d", "postgresql://", "sqlite://", "sqlite://host/x", "javascript:alert(1)", ""],
)  # fmt: skip
def test_storages_that_are_not_taken(url: str) -> None:
    with pytest.raises(ValueError, match="--storage must be"):
        check_storage(url)


def test_a_configuration_cannot_choose_what_is_imported(tmp_path: Path) -> None:
    """Suites and methods are looked up by name, and a name that is a path to code is no name."""
    for table in ({"suite": "os", "method": "ls"}, {"suite": "toy", "method": "os.system"}):
        with pytest.raises(ValueError, match="there is no"):
            configure(table["suite"], table["method"])


def test_no_reader_was_forgotten() -> None:
    """Readers of pickles appear nowhere in the source; loaders that could be made to read them say they do not."""
    import re

    import equipoise

    for file in Path(equipoise.__file__).parent.rglob("*.py"):
        text = file.read_text("utf-8")
        assert not re.search(
            r"^\s*(import|from) (pickle|dill|cloudpickle|shelve|marshal|joblib|yaml)\b", text, re.MULTILINE
        ), file
        assert "allow_pickle=True" not in text and "weights_only=False" not in text, file
        for call in re.findall(r"torch\.load\([^)]*\)", text):
            assert "weights_only=True" in call, (file, call)
        assert not re.search(r"\.extract(all)?\(", text), (
            file
        )  # archives are read in memory, never unpacked to a folder
        assert not re.search(r"(?<![.\w#] )(?<![.\w])(eval|exec)\((?!\))", text), file
        assert "shell=True" not in text and "os.system" not in text, file
