from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata

import equipoise as eq

DATA = dict(np.load(Path(__file__).parents[1] / "oracles/delta_m.npz"))
SUITES = ["cityscapes", "nyuv2", "qm9", "celeba", "generic2", "generic7", "generic40"]
TABLES = sorted({key.split("__")[0] for key in DATA if key.startswith("pub_")})


@pytest.mark.parametrize("suite", SUITES)
def test_reference(suite):
    base, up = DATA[f"{suite}__BASE"], DATA[f"{suite}__SIGN"].astype(bool)
    for metrics, expected in zip(DATA[f"{suite}__metrics"], DATA[f"{suite}__delta_m"], strict=True):
        assert eq.delta_m(metrics, base, up) == pytest.approx(expected, rel=1e-10)
        names = [f"m{i}" for i in range(len(base))]
        named = [dict(zip(names, row.tolist(), strict=True)) for row in (metrics, base, up)]
        assert eq.delta_m(*named) == pytest.approx(expected, rel=1e-10)
        assert eq.delta_m(torch.tensor(metrics), torch.tensor(base), up.tolist()) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("table", TABLES)
def test_published_rows(table):
    """Recomputed from the printed metrics: within rounding of the printed delta-m, except where the row is flagged."""
    get = lambda name: DATA[f"{table}__{name}"]  # noqa: E731
    up = get("SIGN").astype(bool)
    for i, metrics in enumerate(get("metrics")):
        ours = eq.delta_m(metrics, get("BASE_in_table_units"), up)
        assert ours == pytest.approx(get("recomputed_code_base")[i], rel=1e-9)
        printed_stl = eq.delta_m(metrics, get("printed_stl_row"), up)
        assert printed_stl == pytest.approx(get("recomputed_printed_stl")[i], rel=1e-9)
        agrees = min(abs(x - get("printed")[i]) for x in (ours, printed_stl)) <= get("rounding_bound")[i] + 1e-9
        assert agrees != get("flag_disagrees")[i]


def test_some_published_rows_are_flagged():
    assert sum(DATA[f"{table}__flag_disagrees"].sum() for table in TABLES) >= 2


@given(
    st.lists(
        st.tuples(st.floats(-100, 100), st.floats(0.01, 100), st.booleans(), st.sampled_from("abc")),
        min_size=1, max_size=8,
    )
)  # fmt: skip
def test_against_numpy(rows):
    metrics, base, up, tasks = (list(column) for column in zip(*rows, strict=True))
    loss = (np.array(metrics) - base) / base * np.where(up, -1, 1)
    assert eq.delta_m(metrics, base, up) == pytest.approx(100 * loss.mean(), rel=1e-9, abs=1e-9)
    grouped = np.mean([loss[np.array(tasks) == task].mean() for task in set(tasks)])
    assert eq.delta_m(metrics, base, up, tasks) == pytest.approx(100 * grouped, rel=1e-9, abs=1e-9)
    names = [str(i) for i in range(len(rows))]
    by_task = {task: [n for n, t in zip(names, tasks, strict=True) if t == task] for task in set(tasks)}
    assert eq.delta_m(metrics, base, up, by_task) == pytest.approx(100 * grouped, rel=1e-9, abs=1e-9)


def test_the_direction_survives_a_negative_baseline():
    assert eq.delta_m([-1.0], [-2.0], False) == pytest.approx(50)
    assert eq.delta_m([-1.0], [-2.0], True) == pytest.approx(-50)


@given(st.lists(st.lists(st.sampled_from([1.0, 2.0, 3.5]), min_size=3, max_size=3), min_size=1, max_size=6))
def test_mean_rank_against_scipy(rows):
    up = [True, False, False]
    found = eq.mean_rank({str(i): row for i, row in enumerate(rows)}, up)
    expected = np.mean([rankdata(np.array(rows)[:, j] * (-1 if up[j] else 1)) for j in range(3)], 0)
    assert list(found.values()) == pytest.approx(list(expected))


def test_mean_rank_by_name_and_nan():
    table = {
        "LS": {"miou": 0.5, "abs": 0.1},
        "UW": {"abs": 0.2, "miou": float("nan")},
        "LDC": {"miou": 0.6, "abs": 0.2},
    }
    assert eq.mean_rank(table, {"abs": False, "miou": True}) == {"LS": 1.5, "UW": 2.75, "LDC": 1.75}


ONE = {"a": 1.0, "b": 2.0}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: eq.delta_m(ONE, {"a": 0.0, "b": 1.0}, False), r"`baseline` must be finite and not 0.*found 0 for 'a'"),
        (lambda: eq.delta_m(ONE, {"a": 1.0, "b": np.nan}, False), r"`baseline` must be finite.*found nan for 'b'"),
        (lambda: eq.delta_m({"a": 1.0}, ONE, False), r"`metrics` must hold every metric; missing 'b'"),
        (
            lambda: eq.delta_m({**ONE, "bb": 1.0}, ONE, False),
            r"`metrics` has the unknown metric 'bb'; did you mean 'b'",
        ),
        (lambda: eq.delta_m([1.0], [1.0, 2.0], False), r"`metrics` must hold 2 numbers; found shape \[1\]"),
        (lambda: eq.delta_m(ONE, ONE, {"a": True}), r"`higher_is_better` must hold every metric; missing 'b'"),
        (lambda: eq.delta_m(ONE, ONE, [True]), r"`higher_is_better` must hold 2 answers; found 1"),
        (lambda: eq.delta_m([], [], False), r"at least one metric"),
        (lambda: eq.delta_m(ONE, ONE, False, tasks={"x": ["a"]}), r"`tasks` must hold every metric; missing 'b'"),
        (lambda: eq.delta_m(ONE, ONE, False, tasks={"x": ["a", "b"], "y": ["a"]}), r"every metric to one task"),
        (lambda: eq.delta_m(ONE, ONE, False, tasks=["x"]), r"`tasks` must name the task of each of 2 metrics; found 1"),
        (lambda: eq.mean_rank({}), r"`table` must hold at least one method"),
        (lambda: eq.mean_rank({"LS": [1.0, 2.0], "UW": [1.0]}), r"`table\['UW'\]` must hold 2 numbers"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()
