"""What LDC promises beyond its formulas: invariances, absent tasks, state, live gradients."""

import copy
import itertools

import numpy as np
import pytest
import torch

import equipoise as eq
from ldc.helpers import FORMS, close, losses_at, make, step

every_form = pytest.mark.parametrize("form", FORMS)


def train(balancer, losses, steps, lr=0.01):
    optimizer = torch.optim.Adam(balancer.parameters(), lr=lr)
    for t in range(steps):
        _, dl, dw = step(balancer, losses(t))
        optimizer.step()
    return dl, dw


def test_defaults_are_the_documented_ones():
    spelled = eq.LDC(
        3,
        router="softmax",
        router_objective="upper",
        tau="weights",
        normalize="rescale",
        discrepancy=0.1,
        pairs="chain",
        smooth=0.0,
        floor=0.0,
        min_losses=None,
        divide=None,
        detach_features=True,
    )
    plain = eq.LDC(3)
    for t in range(3):
        for found, expected in zip(step(spelled, losses_at(t)), step(plain, losses_at(t)), strict=True):
            assert np.array_equal(found, expected)


def test_default_router_stays_alive():
    """2,000 steps on losses 1:10:100: every logit still has a gradient, and no weight has collapsed."""
    balancer = eq.LDC(3)
    _, dw = train(balancer, losses_at, 2000)
    assert np.abs(dw).min() > 1e-3
    assert balancer.weights.min() > 0.1


def test_default_update_ignores_units_of_losses():
    """One loss a thousand times larger from the first step on: the model's and the router's updates stay."""
    plain, scaled = make(3), make(3)
    factors = np.array([1.0, 1000.0, 1.0])
    optimizers = [torch.optim.Adam(b.parameters(), lr=0.01) for b in (plain, scaled)]
    for t in range(50):
        total, dl, dw = step(plain, losses_at(t))
        other, dl_scaled, dw_scaled = step(scaled, losses_at(t) * factors)
        close(other, total, 1e-12)
        close(dl_scaled * factors, dl, 1e-12)
        close(dw_scaled, dw, 1e-12)
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.parametrize("k", [3, 11])
def test_upper_evens_the_weighted_losses_out_and_both_starves_the_largest(k):
    """Losses spread 1:100, the router alone trained: the paper's aim p_1 l_1 = ... = p_K l_K, reached by "upper"."""
    losses = np.logspace(0, 2, k)
    spread, weights = {}, {}
    for router_objective in ("upper", "both"):
        balancer = eq.LDC(k, router_objective=router_objective, normalize=None)
        train(balancer, lambda t: losses, 2000)
        weights[router_objective] = balancer.weights.numpy()
        weighted = weights[router_objective] * losses
        spread[router_objective] = weighted.max() / weighted.min()
    assert spread["upper"] < 1.01
    assert spread["both"] > 20 if k == 3 else spread["both"] > 1000
    assert weights["both"].argmax() == 0 and weights["both"].max() > 0.95
    assert weights["upper"].min() > 3e-3


def test_published_qm9_router_dies_on_positive_losses():
    """sigmoid(relu(w)) descending g of positive losses: every logit below 0, no gradient, for good."""
    balancer = eq.LDC(3, router="sigmoid", router_objective="both", normalize=None)
    _, dw = train(balancer, lambda t: losses_at(t, (1.0, 1.0, 1.0)), 400, lr=0.005)
    assert (balancer.router.logits < 0).all() and np.all(dw == 0)
    close(balancer.weights, [0.5] * 3)


@every_form
@pytest.mark.parametrize("pairs", ["chain", "shuffle", "all", []])
def test_one_task(form, pairs):
    options = {k: v for k, v in FORMS[form].items() if k not in ("normalize", "min_losses")}
    balancer = make(1, **options | {"pairs": pairs})
    for loss in (2.0, 1.0):
        total, dl, dw = step(balancer, [loss])
        assert np.isfinite(total) and np.isfinite(dw).all() and dl[0] > 0


def test_first_losses_wait_for_absent_tasks():
    balancer = make(3)
    step(balancer, [2.0, 5.0, 7.0], present=[True, False, True])
    assert balancer.first_losses.tolist() == [2.0, 0.0, 7.0]
    step(balancer, [3.0, 9.0, 8.0])
    assert balancer.first_losses.tolist() == [2.0, 9.0, 7.0]


def test_ratio_waits_for_absent_tasks_too():
    """The smallest first loss is among those seen; a task not yet seen has no say."""
    balancer = make(3, router=None, normalize="ratio", discrepancy=0.0)
    here = [True, False, True]
    assert step(balancer, [10.0, 99.0, 20.0], present=here)[0] == pytest.approx(10.0)
    assert step(balancer, [5.0, 99.0, 20.0], present=here)[0] == pytest.approx((5.0 + 10.0) / 2)
    assert step(balancer, [10.0, 4.0, 20.0])[0] == pytest.approx(4.0)  # now 4 is the smallest
    assert step(balancer, [5.0, 99.0, 20.0], present=here)[0] == pytest.approx((2.0 + 4.0) / 2)


def test_first_losses_of_an_epoch_wait_for_absent_tasks():
    balancer = make(2, normalize="log")
    step(balancer, [2.0, 5.0])
    balancer.start_epoch()
    step(balancer, [3.0, 6.0], present=[True, False])
    assert balancer.first_losses.tolist() == [3.0, 0.0]
    step(balancer, [4.0, 8.0])
    assert balancer.first_losses.tolist() == [3.0, 8.0]


def test_evaluation_latches_nothing():
    balancer = make(2).eval()
    step(balancer, [2.0, 5.0])
    assert balancer.first_losses.tolist() == [0.0, 0.0]


def test_min_losses_are_subtracted_first():
    low = np.array([-3.0, 1.0, 0.5])
    shifted, plain = make(3, min_losses=low), make(3)
    for t in range(3):
        losses = losses_at(t)
        for found, expected in zip(step(shifted, losses + low), step(plain, losses), strict=True):
            close(found, expected, 1e-12)


def test_weights_are_the_routers():
    balancer = make(3, [0.5, 1.0, -2.0], router="sigmoid-free", divide="detached")
    step(balancer, [1.0, 2.0, 3.0])
    close(balancer.weights, 1 / (1 + np.exp([-0.5, -1.0, 2.0])), 1e-12)


def test_strided_losses():
    losses = torch.rand(3, 2, dtype=torch.float64, requires_grad=True)
    for pairs in ("chain", "all"):
        make(3, pairs=pairs, normalize=None, tau="ones", router_objective="both")(losses[:, 0]).backward()


def test_floor_holds():
    balancer = make(4, [30.0, 0.0, 0.0, 0.0], floor=0.2)
    step(balancer, [1.0] * 4)
    close(balancer.weights, [0.85, 0.05, 0.05, 0.05], 1e-9)
    step(balancer, [1.0] * 4, present=[True, True, False, False])
    close(balancer.weights, [0.9, 0.1, 0, 0], 1e-9)


def test_shuffle_draws_a_new_order_each_step_and_resumes():
    losses = np.array([1.0, 5.0, 2.0, 9.0, 4.0])
    balancer = make(5, pairs="shuffle", normalize=None)
    twin = make(5, pairs="shuffle", normalize=None)
    twin.load_state_dict(balancer.state_dict())
    totals = [step(balancer, losses)[0] for _ in range(20)]
    assert len(set(totals)) > 5
    assert totals == [step(twin, losses)[0] for _ in range(20)]
    mean = losses.mean()  # the weights are 1 / 5
    chains = {mean + 0.1 * np.abs(np.diff(p)).sum() / 5 for p in itertools.permutations(losses)}
    assert all(min(abs(total - chain) for chain in chains) < 1e-9 for total in totals)


DECLARED = [  # options, scale-invariant, permutation-equivariant, for three tasks
    ({}, True, False),
    ({"pairs": "all"}, True, True),
    ({"pairs": "all", "normalize": "log"}, True, True),
    ({"pairs": "all", "normalize": "ratio"}, False, True),
    ({"pairs": "all", "normalize": None}, False, True),
    ({"pairs": "all", "normalize": (2.0, 2.0, 2.0)}, False, True),
    ({"pairs": "all", "normalize": (2.0, 2.0, 3.0)}, False, False),
    ({"pairs": "all", "min_losses": (0.1, 0.1, 0.1)}, False, True),
    ({"pairs": "all", "min_losses": (0.0, 0.0, 0.0)}, True, True),
    ({"pairs": "all", "tau": (1.0, 1.0, 2.0), "router_objective": "both"}, True, False),
    ({"pairs": "all", "router": "sigmoid"}, True, False),
    ({"pairs": "all", "router": "sigmoid-free"}, True, True),
    ({"pairs": "all", "router": "softmax-clamped"}, True, True),
    ({"pairs": "all", "router": None}, True, True),
    ({"pairs": "shuffle"}, True, False),
    ({"pairs": [(0, 1), (2, 0), (1, 2)]}, True, True),
    ({"pairs": [(0, 1), (2, 0), (1, 2), (0, 1)]}, True, False),
    ({"pairs": [(0, 1), (0, 2)]}, True, False),
    ({"pairs": []}, True, True),
    ({"discrepancy": 0.0, "router_objective": "both"}, True, True),
]


@pytest.mark.parametrize(("options", "scale", "permutation"), DECLARED, ids=[str(o) for o, *_ in DECLARED])
def test_declarations_hold_exactly(options, scale, permutation):
    torch.manual_seed(0)
    balancer = make(3, **options)
    assert (balancer.scale_invariant, balancer.permutation_equivariant) == (scale, permutation)
    factors, order = np.array([8.0, 0.25, 3.0]), np.array([1, 2, 0])
    twins = [copy.deepcopy(balancer) for _ in range(3)]
    optimizers = [torch.optim.Adam(b.parameters(), lr=0.05) for b in twins if list(b.parameters())]
    same_scale = same_order = True
    for t in range(4):
        _, dl, _ = step(twins[0], losses_at(t))
        _, scaled, _ = step(twins[1], losses_at(t) * factors)
        _, moved, _ = step(twins[2], losses_at(t)[order])
        same_scale &= np.allclose(scaled * factors, dl, rtol=1e-9)
        same_order &= np.allclose(moved, dl[order], rtol=1e-9)
        same_order &= np.allclose(twins[2].weights, twins[0].weights[order], rtol=1e-9)
        for optimizer in optimizers:
            optimizer.step()
    assert (same_scale, same_order) == (scale, permutation)


@pytest.mark.parametrize("pairs", ["chain", "shuffle", "all", [(0, 1)]])
def test_two_tasks_have_no_order(pairs):
    assert eq.LDC(2, pairs=pairs).permutation_equivariant


def test_state_is_small_and_constants_are_not_in_it():
    assert set(eq.LDC(3, tau=(1, 2, 3), router_objective="both", min_losses=(0, 0, 0)).state_dict()) == {
        "last_weights",
        "step",
        "new_epoch",
        "first_losses",
        "router.logits",
    }
    assert "first_losses" not in eq.LDC(3, normalize=None).state_dict()
    assert "pairs.seed" in eq.LDC(3, pairs="shuffle").state_dict()
