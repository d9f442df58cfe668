import numpy as np
import pytest
import torch
from scipy import stats

from equipoise import random
from equipoise.random import make_seed, normal, permutation, uniform


def at(seed=0, step=0):
    return torch.tensor(seed), torch.tensor(step)


def slow_words(seed, step, count):
    """The definition in whole Python numbers."""

    def mix(x):
        x = (x ^ (x >> 16)) * 0x21F0AAAD % 2**32
        x = (x ^ (x >> 15)) * 0x735A2D97 % 2**32
        return x ^ (x >> 15)

    low, high = (mix((half ^ step) % 2**32) for half in (seed % 2**32, seed >> 32))
    return [mix(mix(i ^ low) ^ high) for i in range(count)]


@pytest.mark.parametrize("seed", [0, 1, 12345678901234567, 2**63 - 1])
@pytest.mark.parametrize("step", [0, 7, 2**31 + 5])
def test_definition(seed, step):
    signed = np.array(slow_words(seed, step, 50), dtype=np.uint32).view(np.int32).astype(np.int64)
    expected = ((signed >> 9) + 0.5) / 2**23 + 0.5
    np.testing.assert_array_equal(uniform(*at(seed, step), (50,), torch.float64), expected)
    np.testing.assert_array_equal(permutation(*at(seed, step), (50,)), np.argsort(signed))


def test_golden_values():
    """A resumed run of a released version must draw what it drew: these never change."""
    found = uniform(*at(42, 7), (4,)).double()
    assert (found * 2**24).tolist() == [10173589, 15652829, 14947385, 15508989]


def test_open_interval_and_exact_in_float32():
    draws = uniform(*at(3), (1_000_000,))
    assert draws.dtype == torch.float32 and draws.min() > 0 and draws.max() < 1
    assert torch.equal(draws.double(), uniform(*at(3), (1_000_000,), torch.float64))
    assert draws.unique().numel() > 900_000  # of 2**23 values


PATHS = {"step": lambda t: at(5, t), "seed": lambda t: at(t, 5), "both": lambda t: at(t, t)}


@pytest.mark.parametrize("path", ["index", *PATHS])
def test_uniform(path):
    """Draws look independent along indices, steps and seeds."""
    if path == "index":
        draws = uniform(*at(5, 9), (24_000,), torch.float64)
    else:
        draws = torch.stack([uniform(*PATHS[path](t), (4,), torch.float64) for t in range(6_000)]).flatten()
    draws = draws.numpy()
    assert stats.kstest(draws, "uniform").pvalue > 1e-4
    n = len(draws)
    assert abs(draws.mean() - 0.5) < 5 / np.sqrt(12 * n)
    assert abs(draws.var() - 1 / 12) < 5 * np.sqrt(1 / 180 / n)
    centred = (draws - 0.5) * np.sqrt(12)
    for lag in (1, 2, 3, 4, 8, 16, 4096):  # a lag of 4 is one step: the same index at the next step
        assert abs((centred[lag:] * centred[:-lag]).mean()) < 5 / np.sqrt(n), lag
    cells = np.histogram2d(draws[:-1:2], draws[1::2], bins=16)[0].ravel()  # pairs fill the square evenly
    assert stats.chisquare(cells).pvalue > 1e-4
    bits = (draws * 2**23).astype(np.int64)
    for bit in range(23):
        assert abs(((bits >> bit) & 1).mean() - 0.5) < 5 * 0.5 / np.sqrt(n), bit


def test_every_input_bit_moves_half_of_the_output():
    """Flipping one bit of the seed, the step or the index flips about half of the 23 bits, whichever it is."""
    count = 2048
    words = lambda seed, step: (uniform(*at(seed, step), (count,), torch.float64) * 2**23).long()  # noqa: E731
    base = words(99, 1000)
    flips = [words(99 ^ 1 << b, 1000) ^ base for b in range(62)]
    flips += [words(99, 1000 ^ 1 << b) ^ base for b in range(32)]
    index = torch.arange(count)
    flips += [base[index ^ 1 << b] ^ base for b in range(11)]
    for flip in flips:
        bits = (flip[:, None] >> torch.arange(23)) & 1
        assert abs(bits.double().mean() - 0.5) < 0.02
        assert (bits.double().mean(0) - 0.5).abs().max() < 0.08


def test_normal():
    draws = normal(*at(1, 2), (100_000,), torch.float64).numpy()
    assert stats.kstest(draws, "norm").pvalue > 1e-4
    assert abs(draws.mean()) < 5 / np.sqrt(1e5)
    assert abs(draws.var() - 1) < 5 * np.sqrt(2 / 1e5)
    assert torch.isfinite(normal(*at(8), (1_000_000,))).all()
    expected = stats.norm.ppf(uniform(*at(1, 2), (1000,), torch.float64))
    np.testing.assert_allclose(draws[:1000], expected, rtol=1e-9, atol=1e-12)


def test_permutations():
    """Each row is one, and all 24 orders of four are as likely."""
    orders = permutation(*at(4, 1), (24_000, 4))
    assert torch.equal(orders.sort(-1).values, torch.arange(4).expand(24_000, 4))
    code = (orders * torch.tensor([64, 16, 4, 1])).sum(1)
    counts = code.unique(return_counts=True)[1]
    assert len(counts) == 24 and stats.chisquare(counts).pvalue > 1e-4


def test_shape_follows_the_index():
    flat = uniform(*at(1), (12,))
    assert torch.equal(uniform(*at(1), (3, 4)), flat.view(3, 4))
    assert torch.equal(uniform(*at(1), (5,)), flat[:5])
    assert uniform(*at(1), ()).shape == ()


def test_inputs_are_left_alone():
    seed, step = at(3, 4)
    uniform(seed, step, (2,))
    permutation(seed, step, (2,))
    assert (seed, step) == at(3, 4)


def test_compiled_draws_are_the_same():
    compiled = torch.compile(lambda seed, step: uniform(seed, step, (37,)), fullgraph=True, backend="aot_eager")
    for step in range(3):
        assert torch.equal(compiled(*at(5, step)), uniform(*at(5, step), (37,)))


def test_make_seed():
    assert make_seed(5).dtype == torch.int64 and make_seed(5) == 5
    torch.manual_seed(1)
    first, second = make_seed(None), make_seed(None)
    torch.manual_seed(1)
    assert first == make_seed(None) and first != second
    for bad in (-1, 2**63, 1.5, True, "a"):
        with pytest.raises(ValueError, match="`seed` must be a whole number from 0"):
            make_seed(bad)


@pytest.mark.parametrize("seed", [0, 7, 2**63 - 1, 2**40 + 3])
def test_python_numpy_and_torch_make_the_same_words(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU few numbers come from plain Python and many from numpy: a seed means the same everywhere."""
    for step in (0, 1, 2**33 + 5):
        few = random._words(torch.tensor(seed), torch.tensor(step), (3, 5))
        with monkeypatch.context() as patch:
            patch.setattr(random, "_FEW", 0)
            assert torch.equal(few, random._words(torch.tensor(seed), torch.tensor(step), (3, 5)))
        assert torch.equal(few.flatten(), random._tensor_words(torch.tensor(seed), torch.tensor(step), 15))
