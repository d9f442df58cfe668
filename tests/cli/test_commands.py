"""The commands one by one: what they write, what they refuse, and in which words."""

import sys
import types

import pytest

from equipoise.runs.engine import Outcome
from equipoise.runs.store import read_run

COMMANDS = ["demo", "run", "compare", "sweep", "speed", "toy", "report", "list", "data"]
SHORT = ("--set", "epochs=1")


def test_help_names_every_command(command):
    code, text = command("--help")
    assert code == 0
    assert all(f" {name} " in text for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_teaches_by_an_example_or_needs_none(command, name):
    code, text = command(name, "--help")
    assert code == 0
    assert f"equipoise {name} " in text or name in ("demo", "list", "toy")


def test_a_run_is_stored_and_not_done_twice(command, trained, tmp_path):
    code, text = command("run", "twin", "-m", "ls", "--seed", 3, *SHORT, "-o", tmp_path)
    assert code == 0
    assert "LS" in text
    stored = read_run(tmp_path / "twin" / "ls" / "seed-3")
    assert (stored.config.epochs, stored.config.seed) == (1, 3)
    before = (stored.path / "metrics.csv").read_bytes()
    assert command("run", "twin", "-m", "ls", "--seed", 3, *SHORT, "-o", tmp_path)[0] == 0
    assert (stored.path / "metrics.csv").read_bytes() == before
    code, text = command("run", "twin", "-m", "ls", "--seed", 3, "--set", "epochs=2", "-o", tmp_path)
    assert code == 1
    assert "epochs 2 instead of 1" in text
    assert command("run", "twin", "-m", "ls", "--seed", 3, "--set", "epochs=2", "-o", tmp_path, "--force")[0] == 0
    assert read_run(stored.path).config.epochs == 2


def test_a_stored_file_repeats_its_run(command, tmp_path):
    assert command("run", "twin", "-m", "ldc:discrepancy=0.2", "--seed", 1, *SHORT, "-o", tmp_path / "a")[0] == 0
    (folder,) = (tmp_path / "a" / "twin").glob("ldc*/seed-1")
    first = read_run(folder)
    assert command("run", folder / "config.toml", "-o", tmp_path / "b")[0] == 0
    again = read_run(tmp_path / "b" / folder.relative_to(tmp_path / "a"))
    assert again.config == first.config
    assert again.result["metrics"] == first.result["metrics"]


def test_a_small_file_is_completed_by_the_protocol(command, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('suite = "twin"\nmethod = "famo"\nepochs = 1\n[options]\nlr = 0.5\n[schedule]\npatience = 3\n')
    assert command("run", file, "-o", tmp_path)[0] == 0
    (folder,) = tmp_path.glob("twin/famo*/seed-0")
    config = read_run(folder).config
    assert (config.lr, config.batch_size, config.options["lr"]) == (1e-2, 16, 0.5)
    assert config.schedule == {"kind": "plateau", "factor": 0.5, "patience": 3}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('method = "ls"', "must name its `suite`"),
        ('suite = "twin"', "must name its `method`"),
        ('suite = "twin"\nmethod = "ls"\nepoch = 3', "no setting `epoch` for 'ls'; did you mean 'epochs'"),
        ('suite = "twin"\nmethod = "ls"\n[options]\nwieghts = [1]', "no setting `method.wieghts`"),
        ("suite = ", "is not a TOML file"),
    ],
)
def test_a_file_that_is_wrong_is_answered(command, tmp_path, text, message):
    (tmp_path / "x.toml").write_text(text)
    code, said = command("run", tmp_path / "x.toml", "-o", tmp_path)
    assert code == 1
    assert message in said


def test_a_file_says_everything(command, tmp_path):
    (tmp_path / "x.toml").write_text('suite = "twin"\nmethod = "ls"')
    for option in (("--seed", "0"), ("-m", "ldc"), SHORT, ("--device", "cpu")):
        code, said = command("run", tmp_path / "x.toml", *option)
        assert code == 1
        assert "a run's file says everything" in said


def test_compare_writes_tables_and_a_page(command, trained, tmp_path):
    code, text = command("compare", "twin", "-m", "ls,ldc:pairs=all", "--seeds", "0,1", *SHORT, "-o", tmp_path)
    assert code == 0
    assert trained == [("ls", 0), ("ldc:pairs=all", 0), ("ls", 1), ("ldc:pairs=all", 1)]
    assert "LDC (pairs=all)" in text
    assert f"Report: {tmp_path / 'report.html'}" in text
    assert "<html" in (tmp_path / "report.html").read_text()
    code, text = command("report", tmp_path, "--format", "csv")
    assert code == 0
    assert text.splitlines()[1].startswith("LS")


def test_a_failed_run_is_said_and_ends_with_1(command, tmp_path):
    code, text = command("compare", "twin", "-m", "ls:weights=[1],ldc", "--seeds", 0, *SHORT, "-o", tmp_path)
    assert code == 1
    assert "`weights` must be 3 finite numbers" in text
    assert "1 of 2 runs failed" in text
    assert "LDC" in text


def test_a_stop_says_how_to_go_on(command, trained, tmp_path):
    words = ("compare", "twin", "-m", "ls,si,ldc", "--seeds", 0, *SHORT, "-o", tmp_path)
    trained.stop_after = 1
    code, text = command(*words)
    assert code == 130
    assert "1 of 3 runs are done. The same command goes on from here." in text
    trained.stop_after = None
    assert command(*words)[0] == 0
    assert [run.result is not None for run in map(read_run, tmp_path.glob("twin/*/seed-0"))] == [True] * 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "twim"), "there is no suite 'twim'; did you mean 'twin'?"),
        (("run", "twin", "-m", "lcd"), "there is no method or preset 'lcd' for the suite 'twin'; did you mean 'ldc'?"),
        (("run", "twin", "-m", "ldc:pair=all"), "there is no setting `pair` for 'ldc'; did you mean 'pairs'?"),
        (("run", "twin", "--set", "epohcs=1"), "there is no setting `epohcs` for 'ldc'; did you mean 'epochs'?"),
        (("run", "twin", "--set", "epochs"), "must read key=value; found 'epochs'"),
        (("compare", "twin", "-m", "ls,lss"), "there is no method or preset 'lss'"),
        (("compare", "twin", "--seeds", "0,x"), "--seeds must be whole numbers with commas between; found '0,x'"),
        (("compare", "twin", "--track", "wandbb"), "there is no tracker 'wandbb'; did you mean 'wandb'?"),
        (("compare", "twin", "--address", "auto"), "--address belongs to --engine ray; found 'auto'"),
        (("report", "nowhere"), "there is no folder nowhere"),
        (("data", "qm8"), "there is no suite 'qm8'; did you mean 'qm9'?"),
        (("sweep", "toyy"), "there is no suite 'toyy'; did you mean 'toy'?"),
        (("speed", "twin", "-m", "famoo"), "did you mean 'famo'?"),
        (("comapre", "twin"), "Did you mean 'compare'?"),
    ],
)
def test_what_is_wrong_is_answered_in_a_sentence(command, words, message):
    code, text = command(*words)
    assert code in (1, 2)
    assert message in text
    assert "Traceback" not in text


def test_ray_goes_to_its_engine_with_everything_it_needs(command, monkeypatch, tmp_path):
    from equipoise.cli import common

    calls = []
    fake = types.ModuleType("equipoise.runs.engine_ray")

    def run_ray(configs, root, **options):
        calls.append((len(configs), root, options.pop("watch") is not None, options))
        return [Outcome(config, problem="not here") for config in configs]

    fake.run_ray = run_ray
    monkeypatch.setitem(sys.modules, "equipoise.runs.engine_ray", fake)
    monkeypatch.setattr(common, "find_spec", lambda name: None)
    words = ("compare", "twin", "-m", "ls", "--seeds", 0, "-o", tmp_path, "--engine", "ray")
    code, text = command(*words)
    assert code == 1
    assert "--engine ray needs the package ray: pip install 'equipoise[ray]'" in text
    monkeypatch.setattr(common, "find_spec", lambda name: object())
    assert command(*words, "--address", "auto", "--jobs", 3, "--force")[0] == 1
    assert calls == [(1, tmp_path, True, {"jobs": 3, "force": True, "track": None, "address": "auto"})]


def test_a_tracker_is_told_what_the_tables_hold(command, monkeypatch, tmp_path):
    from equipoise.runs import trackers

    told = []

    class Fake:
        def __init__(self, config, folder, position):
            self.name = config.label

        def log(self, step, values):
            told.append((self.name, step, dict(values)))

        def close(self):
            told.append((self.name, "closed", {}))

    monkeypatch.setitem(trackers._TRACKERS, "wandb", Fake)
    monkeypatch.setattr(trackers, "find_spec", lambda name: object())
    for words in (("run", "twin", "-m", "ls"), ("compare", "twin", "-m", "si", "--seeds", 0)):
        assert command(*words, *SHORT, "-o", tmp_path, "--track", "wandb")[0] == 0
    names = {name for name, _, _ in told}
    assert names == {"ls", "si"}
    assert {"loss/near", "weight/near", "validation/near", "lr"} <= {key for _, _, row in told for key in row}
    assert told[-1] == ("si", "closed", {})


def test_list_and_data(command):
    code, text = command("list")
    assert code == 0
    assert "FairGrad" in text
    assert "qm9-sample" in text
    code, text = command("data", "twin")
    assert code == 0
    assert "4 training batches of 16; 3 tasks" in text
