from itertools import combinations_with_replacement

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise.weighting.go4align import group_means


def squared_error(x, means):
    return float(((np.asarray(x, dtype=np.longdouble) - np.asarray(means, dtype=np.longdouble)) ** 2).sum())


def least_error(x, groups):
    """Over every way to cut the sorted values."""
    x = np.sort(np.asarray(x, dtype=np.longdouble))
    errors = []
    for cuts in combinations_with_replacement(range(len(x) + 1), groups - 1):
        runs = [run for run in np.split(x, cuts) if len(run)]
        errors.append(float(sum(((run - run.mean()) ** 2).sum() for run in runs)))
    return min(errors)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 12) | st.floats(0, 1e6), min_size=1, max_size=8),
    st.integers(1, 5),
    st.data(),
)
def test_groups_are_optimal(x, groups, data):
    here = data.draw(st.lists(st.booleans(), min_size=len(x), max_size=len(x)).filter(any))
    x, here = np.array(x, dtype=float), np.array(here)
    means = group_means(torch.tensor(x), None if here.all() else torch.tensor(here), groups).numpy()
    assert np.isfinite(means).all()
    assert len(np.unique(means[here])) <= groups
    best = least_error(x[here], groups)
    spread = float(np.ptp(x[here]))
    assert squared_error(x[here], means[here]) <= best * (1 + 1e-9) + 1e-15 * spread**2
    np.testing.assert_allclose(means[here].sum(), x[here].sum(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("groups", [1, 2, 3, 7])
@pytest.mark.parametrize("num_tasks", [1, 2, 9])
def test_tied_tasks_share_their_weight(groups, num_tasks):
    """Where the reference's k-means never returned: every weight the same, then two values only."""
    balancer = eq.GO4Align(num_tasks, groups=groups)
    for _ in range(3):
        balancer(torch.full((num_tasks,), 2.0, requires_grad=True))
        torch.testing.assert_close(balancer.weights, torch.ones(num_tasks))
    losses = torch.ones(num_tasks)
    losses[::2] = 3.0
    balancer(losses.requires_grad_())
    assert balancer.weights[::2].unique().numel() == 1
    assert num_tasks == 1 or balancer.weights[1::2].unique().numel() == 1


@pytest.mark.parametrize("groups", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_tasks_in_clear_groups(groups, dtype):
    torch.manual_seed(0)
    place = torch.randint(groups, (300,))
    x = (10.0 ** (4 * place)).to(dtype) * (1 + 1e-6 * torch.rand(300, dtype=dtype))
    means = group_means(x, None, groups)
    for group in range(groups):
        torch.testing.assert_close(means[place == group], x[place == group].mean().expand((place == group).sum()))


def test_one_group_is_a_multiple_of_equal_weights():
    balancer = eq.GO4Align(3, groups=1)
    balancer(torch.tensor([1.0, 2.0, 10.0], requires_grad=True))
    assert balancer.weights.unique().numel() == 1


def test_large_losses_lower_the_share():
    balancer = eq.GO4Align(2, groups=2, step=0.1)
    shares = []
    for _ in range(3):
        balancer(torch.tensor([1.0, 2.0], requires_grad=True))
        shares.append(balancer.log_share.exp())
        assert shares[-1].sum().item() == pytest.approx(1, rel=1e-6)
    ratio = torch.stack(shares)[:, 1] / torch.stack(shares)[:, 0]
    torch.testing.assert_close(ratio, torch.exp(-0.1 * torch.arange(1.0, 4.0)))


def test_absent_tasks_keep_their_share():
    balancer = eq.GO4Align(3, step=0.1).double()
    losses = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64, requires_grad=True)
    balancer(losses)
    before = balancer.log_share.exp()
    balancer(losses, present=[True, False, True])
    after = balancer.log_share.exp()
    assert after[1] == before[1] and after[0] > before[0]
    assert after.sum().item() == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups": 0}, "`groups` must be a whole number of at least 1; found 0"),
        ({"groups": 2.0}, "`groups` must be a whole number of at least 1; found 2.0"),
        ({"step": -0.1}, "`step` must be at least 0; found -0.1"),
    ],
)
def test_options(options, message):
    with pytest.raises(ValueError, match=message):
        eq.GO4Align(3, **options)


@settings(deadline=None)
@given(st.lists(st.floats(2.0**-20, 2.0**20, width=32) | st.sampled_from([1.0, 2.0]), min_size=2, max_size=12))
def test_two_groups_in_numpy_are_those_in_torch(entries: list[float]) -> None:
    """All tasks present on a CPU: the short form; a mask that leaves none out asks for the general one."""
    x = torch.tensor(entries, dtype=torch.float64)
    short, general = group_means(x, None, 2), group_means(x, torch.ones_like(x, dtype=torch.bool), 2)
    errors = [(x - means).square().sum().item() for means in (short, general)]
    assert errors[0] <= errors[1] * (1 + 1e-9) + 1e-9 * x.square().sum().item()
    torch.testing.assert_close(short.sum(), x.sum())
