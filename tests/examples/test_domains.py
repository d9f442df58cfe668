"""The examples of five domains run from end to end, and what they compute is what they say."""

import math
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"
DOMAINS = ("physics", "recommender", "tabular", "transformer", "vision")
needs_digits = pytest.mark.skipif(find_spec("sklearn") is None, reason="the digits come with scikit-learn")


@pytest.fixture(autouse=True)
def beside_the_examples(monkeypatch):
    """Scripts import each other; afterwards nothing of theirs is left in the way (some are named after packages)."""
    monkeypatch.syspath_prepend(EXAMPLES)
    for name in ("show", *DOMAINS):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delenv("TABULAR_DATA", raising=False)
    monkeypatch.delenv("MOVIELENS_DATA", raising=False)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    for name in ("show", *DOMAINS):
        sys.modules.pop(name, None)


def load(name):
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


def run(name, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")


@pytest.mark.parametrize("name", [pytest.param(n, marks=needs_digits) if n == "vision" else n for n in DOMAINS])
def test_it_runs_and_draws(name, monkeypatch, tmp_path, capsys):
    run(name, monkeypatch, "--smoke", "--figure", str(tmp_path / "out.svg"))
    printed = capsys.readouterr().out
    methods = load(name)["METHODS"]
    rows = [line for line in printed.splitlines() if line.startswith("| ")]
    assert [row.split("|")[1].strip() for row in rows[1:]] == list(methods)
    assert "nan" not in printed
    for file, ink in (("out.svg", "#24292f"), ("out-dark.svg", "#d4d7de")):
        text = (tmp_path / file).read_text()
        ElementTree.fromstring(text)
        assert ink in text
        assert "<dc:date>" not in text  # drawn again it is the same file


@pytest.mark.parametrize("name", ["tabular", "recommender"])
def test_without_data_it_says_so(name, monkeypatch):
    with pytest.raises(SystemExit, match="needs --data"):
        run(name, monkeypatch)


def test_a_table_in_each_of_its_forms(tmp_path, monkeypatch, capsys):
    read = load("tabular")["read"]
    draw = np.random.default_rng(0)
    long = tmp_path / "long.npz"
    task, y = draw.integers(5, 8, 200).astype(np.uint8), draw.normal(size=200).astype(np.float32)
    np.savez(long, x=draw.normal(size=(200, 3)), y=y, task=task)
    wide = read(long)[1]
    assert wide.shape == (200, 3)
    for row in range(200):
        assert wide[row, task[row] - 5] == y[row]
        assert wide[row].isnan().sum() == 2
    bits, labels = draw.integers(0, 2, (50, 16)), draw.integers(-1, 2, (50, 4)).astype(np.int8)
    np.savez(tmp_path / "bits.npz", fp=np.packbits(bits, axis=1), y=labels)
    x, y = read(tmp_path / "bits.npz")
    assert torch.equal(x, torch.from_numpy(bits).float())
    assert torch.equal(y.isnan(), torch.from_numpy(labels < 0))
    assert torch.equal(y.nan_to_num(-1.0), torch.from_numpy(labels).float())
    monkeypatch.setenv("TABULAR_DATA", str(long))
    run("tabular", monkeypatch, "--smoke")
    assert "3 tasks, 200 rows\n" in capsys.readouterr().out


def test_tabular_losses_and_scores_against_loops():
    module = load("tabular")
    torch.manual_seed(0)
    x, y = module["made_up"](rows=200, tasks=4)
    rows = module["Table"](x, y, seed=0)
    assert not set(rows.train.tolist()) & set(rows.test.tolist())
    assert len(rows.train) + len(rows.validation) + len(rows.test) == 200
    train = rows.y[rows.train]
    torch.testing.assert_close(train.nanmean(0), torch.zeros(4), atol=1e-5, rtol=0)
    outputs = torch.randn(200, 4)
    losses, counts = rows.losses(outputs, rows.y)
    for k in range(4):
        known = ~rows.y[:, k].isnan()
        assert counts[k] == known.sum()
        truth, guess = rows.y[known, k], outputs[known, k]
        assert losses[k].item() == pytest.approx((guess - truth).square().mean().item(), rel=1e-5)
        explained = 1 - (guess - truth).square().sum() / (truth - truth.mean()).square().sum()
        assert rows.scores(outputs, rows.y)[k].item() == pytest.approx(explained.item(), rel=1e-4)


def test_auc_against_all_pairs():
    auc = load("tabular")["auc"]
    torch.manual_seed(0)
    positive, negative = torch.randn(30).round(decimals=1) + 0.5, torch.randn(40).round(decimals=1)  # with ties
    pairs = [(p > n) + 0.5 * (p == n) for p in positive for n in negative]
    assert auc(positive, negative).item() == pytest.approx(float(sum(pairs)) / len(pairs))


def test_the_equation_is_solved_by_the_solution():
    module = load("physics")
    points = torch.rand(50, 2, dtype=torch.float64) * 2 - 1

    def exact(x):
        return module["solution"](x)[:, None]

    assert module["residual"](exact, points).abs().max() < 1e-10
    assert module["solution"](module["edge"](200)).abs().max() < 1e-5
    assert module["edge"](500).abs().amax(1).min() == 1.0

    def wrong(x):
        return 1.1 * module["solution"](x)[:, None]

    off = module["residual"](wrong, points).abs()
    expected = 0.1 * (5 * math.pi**2 - 1) * module["solution"](points.detach()).abs()
    torch.testing.assert_close(off, expected)


def test_the_recommender_splits_in_time_and_shows_unrated_films():
    module = load("recommender")
    ratings = np.array([[u, f, 1 + (u * f) % 5, 100 * u + f] for u in range(1, 11) for f in range(1, 11)])
    data = module["Films"](ratings[np.random.default_rng(0).permutation(100)])
    assert len(data.test) == 20
    assert set(data.test[:, 1].tolist()) == {9, 10}  # the last two of each user
    seen = data.rated(data.train)
    users, films, click, conversion = data.shown(data.train, 3, seen)
    assert int(click.sum()) == len(data.train)
    assert not seen[users[~click], films[~click]].any()
    assert not (conversion & ~click).any()
    rated = {(u, f): r for u, f, r, _ in ratings.tolist()}
    for user, film, liked in zip(users[click].tolist(), films[click].tolist(), conversion[click].tolist(), strict=True):
        assert liked == (rated[user, film] >= 4)


def test_the_funnel_multiplies_probabilities():
    module = load("recommender")
    torch.manual_seed(0)
    model = module["Funnel"](5, 6)
    log_click, log_both, _ = model(torch.tensor([1, 2]), torch.tensor([3, 4]))
    assert (log_both < log_click).all()
    label = torch.tensor([True, False])
    expected = torch.nn.functional.binary_cross_entropy(log_both.exp(), label.float())
    torch.testing.assert_close(module["entropy"](log_both, label), expected)


@needs_digits
def test_test_digits_are_not_trained_on():
    pairs = load("vision")["Pairs"](seed=0)
    assert not set(pairs.train.tolist()) & set(pairs.test.tolist())
    images, left, right, picture = pairs.draw(pairs.test, 20)
    assert images.shape == (20, 1, 12, 12)
    torch.testing.assert_close(16 * images[:, 0, :4, :4].flatten(1), picture.view(-1, 8, 8)[:, :4, :4].flatten(1))
    assert {left.dtype, right.dtype} == {torch.int64}


def test_test_docstrings_are_not_trained_on():
    samples = load("transformer")["Samples"](seed=0)
    assert not {text for text, _ in samples.train} & {text for text, _ in samples.test}
    text, label = samples.draw(samples.test, 8)
    assert text.shape[0] == len(label) == 8
    assert text.max() < 128
