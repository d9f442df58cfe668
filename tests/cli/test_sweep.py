"""Sweeps: what they run, what they print, what they choose by, and that a stop changes nothing."""

import re
import sqlite3

import pytest

from equipoise.runs.config import configure
from equipoise.runs.engine import Outcome
from equipoise.runs.sweep import beaten_by, fixed_weights, pareto_front, validation_score
from equipoise.runs.tune import LAMBDA, Search, check_storage, space_of, sweep_folder, tune

SHORT = ("--set", "epochs=1")


def number(text, row, column):
    """A number of the table: of the line that begins so, in the column counted from 1."""
    (line,) = [line for line in text.splitlines() if re.match(rf"│ {re.escape(row)} +│", line)]
    return float(line.split("│")[column + 1].split("±")[0])


def test_lambda_has_a_row_for_each_value_and_chooses_on_validation(command, trained, tmp_path):
    words = ("sweep", "twin", "--grid", "0.01,0.1,1", "--seeds", "0,1", *SHORT, "-o", tmp_path)
    code, text = command(*words)
    assert code == 0
    assert len(trained) == 2 * 4
    found = {value: number(text, value, 1) for value in ("0.01", "0.1", "1")}
    best = min(found, key=found.get)
    assert f"the least on the validation part, lambda = {best}." in text
    config = configure("twin", f"ldc:discrepancy={best}", settings={"epochs": 1})
    from equipoise.runs.store import read_run

    scores = [
        validation_score(config, read_run(tmp_path / config.folder.replace("seed-0", f"seed-{seed}")).result)
        for seed in (0, 1)
    ]
    assert found[best] == pytest.approx(sum(scores) / 2, abs=0.01)
    assert (tmp_path / "report.html").exists()


def test_lambda_by_optuna_goes_on_where_it_was_stopped(command, trained, tmp_path):
    def words(out):
        return ("sweep", "twin", "--trials", 12, "--seeds", 0, *SHORT, "-o", out)

    whole = command(*words(tmp_path / "whole"))[1]
    assert len(trained) == 12
    labels = [label for label, _ in trained]
    assert labels[0] == "ldc"
    assert len(set(labels)) == 12
    trained.clear()
    for stop in (4, 11):  # within the random trials, and within those Optuna learns for
        trained.stop_after = stop
        code, text = command(*words(tmp_path / "broken"))
        assert code == 130
        assert "The same command goes on from here." in text
    trained.stop_after = None
    code, again = command(*words(tmp_path / "broken"))
    assert code == 0
    assert again.replace("broken", "whole").split("LDC: lambda")[1] == whole.split("LDC: lambda")[1]


def test_another_process_and_other_settings_are_refused(command, trained, tmp_path):
    words = ("sweep", "twin", "--trials", 2, "--seeds", 0, "-o", tmp_path)
    assert command(*words, *SHORT)[0] == 0
    code, text = command(*words, "--set", "epochs=2")
    assert code == 1
    assert "was begun with other settings" in text
    assert command(*words, "--set", "epochs=2", "--force")[0] == 0
    with sweep_folder(tmp_path):
        code, text = command(*words, "--set", "epochs=2")
    assert code == 1
    assert "another process is sweeping in" in text


def test_fixed_weights_beside_ldc(command, trained, tmp_path):
    code, text = command("sweep", "twin", "--over", "weights", "--trials", 3, "--seeds", 0, *SHORT, "-o", tmp_path)
    assert code == 0
    labels = [label for label, _ in trained]
    assert [label.split(":")[0] for label in labels] == ["ls", "ls", "ls", "ldc"]
    assert len(set(labels)) == 4
    assert "no other row is as good in all of 3 metrics" in text
    assert re.search(r"LDC is (on the front|beaten in everything by LS)", text)
    assert "One seed only: nothing says how sure." in text


def test_orders_are_compared_seed_by_seed(command, trained, tmp_path):
    code, text = command("sweep", "twin", "--over", "order", "--seeds", "0,1,2", *SHORT, "-o", tmp_path)
    assert code == 0
    assert len(trained) == 9
    for seed in (1, 2, 3):  # columns
        assert number(text, "LDC (pairs=shuffle)", seed) != number(text, "LDC (pairs=chain)", seed)
    moved = sum(number(text, "LDC (pairs=all)", s) - number(text, "LDC (pairs=chain)", s) for s in (1, 2, 3)) / 3
    assert number(text, "LDC (pairs=all)", 5) == pytest.approx(moved, abs=0.02)


def test_one_budget_gives_every_method_as_many_runs(command, trained, tmp_path):
    words = ("sweep", "twin", "--budget", 3, "-m", "stl,famo,ldc", "--seeds", "0,1", *SHORT, "-o", tmp_path)
    code, text = command(*words)
    assert code == 0
    counts = {name: sum(label.split(":")[0] == name for label, _ in trained) for name in ("stl", "ls", "famo", "ldc")}
    assert counts == {"stl": 6, "ls": 6, "famo": 6, "ldc": 6}
    gain = number(text, "FAMO", 3)
    assert gain == pytest.approx(number(text, "LS", 2) - number(text, "FAMO", 2), abs=0.02)
    assert "own STL" in text
    page = (tmp_path / "report.html").read_text()
    assert "LS (tuned)" in page
    trained.clear()
    assert command(*words)[1].split("One budget")[1] == text.split("One budget")[1]
    assert {label.split(":")[0] for label, _ in trained} == {"stl"}  # asked for again, found finished


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("last-ten", "--budget", 2), "tuning chooses on a validation part, and last-ten has none"),
        (("toy", "--trials", 2), "weighs tasks by published single-task numbers, and toy has none"),
        (("toy", "--over", "order"), "two tasks have one pair"),
        (("twin", "--over", "weights", "--grid", "0.5"), "--grid fixes the weights of two tasks; twin has 3"),
        (("toy", "--over", "weights", "--trials", 3), "the weights of two tasks are a line"),
        (("toy", "--over", "weights", "--grid", "1.5"), "must hold weights between 0 and 1; found [1.5]"),
        (("twin", "--grid", "0.1", "--trials", 3), "give one of the two"),
        (("twin", "--budget", 3, "--grid", "0.1"), "takes no --grid; found '0.1'"),
        (("twin", "--grid", "0.1,b"), "--grid must be numbers with commas between; found '0.1,b'"),
        (("twin", "-m", "ls,ldc"), "--methods must name one form of LDC here"),
        (("twin", "-m", "ls"), "no setting `discrepancy` for 'ls'"),
        (("twin", "-m", "famo", "--trials", 2), "lambda is LDC's; found 'famo'"),
        (("twin", "--trials", 2, "--storage", "mysql://a/b"), "found 'mysql'"),
    ],
)
def test_what_cannot_be_swept_is_said(command, trained, tmp_path, words, message):
    code, text = command("sweep", *words, "-o", tmp_path)
    assert code == 1
    assert message in text
    assert trained == []


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://localhost/0", "found 'redis'. Stores that keep pickled objects are not taken"),
        ("sweep.db", "found no scheme"),
        ("sqlite://sweep.db", "a file needs three slashes"),
        ("sqlite://", "a file needs three slashes"),
        ("postgresql:///name", "an address without a host"),
        ("postgresql://me:secret@host", "an address without a database"),
        ("postgresql+pg8000://host/name", "found 'postgresql+pg8000'"),
    ],
)
def test_addresses_of_databases(url, message):
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        check_storage(url)
    assert "secret" not in str(refused.value)


def test_postgresql_needs_a_driver(monkeypatch):
    from equipoise.runs import tune as module

    url = "postgresql+psycopg://me@host:5432/name"
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs a driver: pip install 'psycopg\[binary\]'"):
        check_storage(url)
    monkeypatch.setattr(module, "find_spec", lambda name: object())
    assert check_storage(url) == url


def test_failed_trials_are_spent_and_never_chosen(tmp_path):
    search = Search("twin", "ldc", (0,), LAMBDA, {"epochs": 1})
    scores = {}

    def carry_out(configs):
        outcomes = []
        for config in configs:
            bad = len(scores) % 2 == 0
            scores[config.label] = 1000.0 - 10 * len(scores)
            near = 0.5 * (1 + scores[config.label] / 100)
            good = {"near": near, "far": 40.0 * near / 0.5, "odd score": 0.4 * (2 - near / 0.5)}
            outcomes.append(Outcome(config, problem="no") if bad else Outcome(config, {"validation": good}))
        return outcomes

    storage = f"sqlite:///{tmp_path / 'x.db'}"
    (found,) = tune([search], 6, storage=storage, prefix="p", carry_out=carry_out)
    assert [trial.number for trial in found] == [1, 3, 5]
    assert [trial.score for trial in found] == pytest.approx([990.0, 970.0, 950.0])
    assert len(scores) == 6
    states = sqlite3.connect(tmp_path / "x.db").execute("select state from trials order by number").fetchall()
    assert [state for (state,) in states] == ["FAIL", "COMPLETE"] * 3


def test_every_method_has_a_space_its_options_fit():
    from equipoise.registry import methods

    for name in methods():
        if name in ("stl", "ldc-double"):
            continue
        search = Search("qm9-sample", name, (0,), space_of("qm9-sample", name, {}))
        for end in (0, 1):
            params = {key: where[end] for key, where in search.space.items()}
            (config,) = search.configs(params)
            from equipoise.registry import make

            make(config.method, tasks=config.tasks, **config.options)


def test_the_front():
    rows = {"a": {"x": 1.0, "y": 1.0}, "b": {"x": 2.0, "y": 2.0}, "c": {"x": 1.0, "y": 0.5}, "d": {"x": 1.0, "y": 1.0}}
    up = {"x": False, "y": True}
    assert pareto_front(rows, up) == ["a", "b", "d"]
    assert beaten_by("c", rows, up) == ["a", "d"]


def test_drawn_weights_are_on_the_simplex_and_always_the_same():
    points = fixed_weights(5, draws=20)
    assert points == fixed_weights(5, draws=20)
    assert len({tuple(point) for point in points}) == 20
    for point in points:
        assert sum(point) == pytest.approx(1.0, abs=1e-3)
        assert min(point) > 0
