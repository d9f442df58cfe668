"""Configurations: protocol, preset and settings, in that order; unknown names get the nearest."""

import sys

import pytest

from equipoise.runs import toml
from equipoise.runs.config import RunConfig, configure, expand, setting

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def test_settings_win_over_the_preset_and_the_preset_over_the_protocol():
    plain = configure("toy", "ldc")
    assert (plain.epochs, plain.lr, plain.options["discrepancy"]) == (50, 1e-3, 0.5)
    changed = configure("toy", "ldc:discrepancy=0.1", settings={"epochs": 2, "suite.sign": "paper"})
    assert (changed.epochs, changed.options["discrepancy"], changed.suite_options) == (2, 0.1, {"sign": "paper"})
    assert changed.options["router"] == "sigmoid"
    assert changed.label == "ldc:discrepancy=0.1"
    assert configure("toy", "ldc", settings={"discrepancy": 0.1}).label == "ldc:discrepancy=0.1"


def test_the_schedule_is_part_of_the_configuration():
    assert configure("qm9", "ls").schedule["kind"] == "plateau"
    assert configure("qm9", "ls", settings={"schedule": None}).schedule == {}
    changed = configure("celeba", "ldc", settings={"schedule.step_size": 2})
    assert changed.schedule == {"kind": "step", "step_size": 2, "gamma": 0.3}
    with pytest.raises(ValueError, match=r"`schedule.kind` must be 'plateau' or 'step'"):
        configure("toy", "ls", settings={"schedule.gamma": 2})


def test_a_preset_under_its_own_name():
    config = configure("toy", "ldc-no-router")
    assert (config.method, config.label, config.options["router"]) == ("ldc", "ldc-no-router", None)
    assert RunConfig.from_table(tomllib.loads(toml.dumps(config.to_table()))) == config


def test_uncertainty_weighting_has_the_published_rate_for_its_own_parameters():
    assert configure("toy", "uw").balancer_lr == 0.025
    assert configure("toy", "uw", settings={"balancer_lr": 1e-4}).balancer_lr == 1e-4
    assert configure("toy", "ls", settings={"lr": 0.5}).balancer_lr == 0.5


def test_single_task_learning_is_one_run_a_task():
    runs = expand(configure("toy", "stl", seed=2))
    assert [run.options["task"] for run in runs] == [0, 1]
    assert {run.label for run in runs} == {"stl"}
    assert len({run.folder for run in runs}) == 2
    assert expand(configure("toy", "stl:task=1")) == [configure("toy", "stl:task=1")]


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        (("toi", "ls"), {}, "no suite 'toi'; did you mean 'toy'"),
        (("toy", "ldc-no-ruoter"), {}, "no method or preset.* for the suite 'toy'; did you mean 'ldc-no-router'"),
        (("toy", "ls"), {"wieghts": 1}, "no setting `wieghts` for 'ls'; did you mean 'weights'"),
        (("toy", "ls"), {"epoch": 1}, "no setting `epoch` for 'ls'; did you mean 'epochs'"),
        (("toy", "ls"), {"epochs": 0}, "`epochs` must be a whole number of at least 1; found 0"),
        (("toy", "ls"), {"epochs": 1.5}, "`epochs` must be a whole number of at least 1; found 1.5"),
        (("toy", "ls"), {"lr": float("inf")}, "`lr` must be a number above 0; found inf"),
        (("toy", "ls"), {"shared": "all"}, "`shared` must be 'features' or 'parameters'; found 'all'"),
    ],
)
def test_bad_configurations_get_a_sentence(arguments, settings, message):
    with pytest.raises(ValueError, match=message):
        configure(*arguments, settings=settings)


def test_a_setting_must_have_a_value():
    with pytest.raises(ValueError, match="must read key=value; found 'epochs'"):
        setting("epochs")


@pytest.mark.parametrize(
    "value", [0, -3, True, 0.1, 1e-300, float("inf"), "a\"b\\\n\t\x7f µ 💥", [1, [2.5, "x"]], {"a b": 1}, []]
)  # fmt: skip
def test_toml_round_trip(value):
    table = {"plain": value, "odd key.": 1, "section": {"inner": value}}
    assert tomllib.loads(toml.dumps(table)) == table


def test_a_file_that_is_no_toml_is_named(tmp_path):
    (tmp_path / "x.toml").write_text("a = ")
    with pytest.raises(ValueError, match=r"x\.toml is not a TOML file"):
        toml.load(tmp_path / "x.toml")
