"""The theorem's numbers against closed forms, and what it predicts where its conditions hold.

The convex problem: l_i = (x - a_i)' H_i (x - a_i) / 2 + b_i, whose weighted sum has its minimum in closed form, with
H_i positive definite: g is smooth and satisfies the Polyak-Lojasiewicz condition; f with `smooth=` is smooth.
"""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.diagnostics import lower_level, pareto_stationarity
from equipoise.runs.theory import theory
from equipoise.suites.toy import Toy
from runs.twin import Twin

SMOOTH = 0.01
CURVATURES = np.array([[1.0, 2.0], [3.0, 0.5], [1.5, 1.0]])
CENTRES = np.array([[1.0, 0.0], [-1.0, 0.5], [0.0, -1.0]])


class Convex:
    """The problem in numpy, and as a closure for torch."""

    def __init__(self, centres=CENTRES, floor=(0.1, 0.2, 0.3)):
        self.centres, self.floor = centres, np.array(floor)

    def losses(self, x):
        return (CURVATURES * (x - self.centres) ** 2).sum(1) / 2 + self.floor

    def solve(self, w):
        """The minimum of the weighted sum."""
        return (w[:, None] * CURVATURES * self.centres).sum(0) / (w[:, None] * CURVATURES).sum(0)

    def closure(self, params):
        x = params["x"]
        parts = (torch.from_numpy(CURVATURES) * (x - torch.from_numpy(self.centres)) ** 2).sum(1) / 2
        return list((parts + torch.from_numpy(self.floor)).unbind())


def softmax(logits):
    e = np.exp(logits - logits.max())
    return e / e.sum()


def upper(u):
    return np.sqrt(np.diff(u) ** 2 + SMOOTH).sum()


def penalised(problem, logits, x, penalty):
    """F = f + penalty (g(W, x) - g(W, x*(W))), the minimum anew for each W."""
    w = softmax(logits)
    gap = w @ problem.losses(x) - w @ problem.losses(problem.solve(w))
    return upper(w * problem.losses(x)) + penalty * gap


def slope(function, at, h=1e-6):
    steps = h * np.eye(len(at))
    return np.array([(function(at + step) - function(at - step)) / (2 * h) for step in steps])


def setting(method=eq.LDC, penalty=20.0, x=(2.0, -1.0), logits=(0.3, -0.2, 0.1), **options):
    options = {"normalize": None, "smooth": SMOOTH, **options}
    balancer = method(3, penalty=penalty, **options).double()
    with torch.no_grad():
        balancer.router.logits.copy_(torch.tensor(logits))
    return balancer, torch.tensor(x, dtype=torch.float64, requires_grad=True)


def solved(problem, balancer):
    z = problem.solve(softmax(balancer.router.logits.detach().numpy()))
    return {"x": torch.from_numpy(z)}


# The numbers.


def test_lower_level_against_closed_forms():
    problem = Convex()
    balancer, x = setting()
    found = lower_level(balancer, problem.closure, {"x": x}, solution=solved(problem, balancer))
    logits, here = balancer.router.logits.detach().numpy(), x.detach().numpy()
    w = softmax(logits)
    z = problem.solve(w)
    assert found.at_x == pytest.approx(w @ problem.losses(here))
    assert found.at_z == pytest.approx(w @ problem.losses(z))
    assert found.gap == pytest.approx(found.at_x - found.at_z)
    g = lambda v, at: softmax(v) @ problem.losses(at)  # noqa: E731
    assert found.model_gradient == pytest.approx(np.linalg.norm(slope(lambda v: g(logits, v), here)), rel=1e-6)
    assert found.inner_model_gradient == pytest.approx(0.0, abs=1e-12)
    assert found.router_gradient == pytest.approx(np.linalg.norm(slope(lambda v: g(v, here), logits)), rel=1e-6)
    assert found.inner_router_gradient == pytest.approx(np.linalg.norm(slope(lambda v: g(v, z), logits)), rel=1e-6)


@pytest.mark.parametrize("form", [{"penalty": 20.0}, {"penalty": None, "discrepancy": 0.05}])
def test_the_hypergradient_is_the_slope_of_the_penalised_problem(form):
    """By finite differences of F, in which x*(W) moves with W. discrepancy = 0.05 is the problem divided by 20."""
    problem = Convex()
    balancer, x = setting(**form)
    found = lower_level(balancer, problem.closure, {"x": x}, solution=solved(problem, balancer))
    logits, here = balancer.router.logits.detach().numpy(), x.detach().numpy()
    of_x = slope(lambda v: penalised(problem, logits, v, 20.0), here)
    of_w = slope(lambda v: penalised(problem, v, here, 20.0), logits)
    assert found.hypergradient == pytest.approx(np.linalg.norm(np.concatenate([of_x, of_w])), rel=1e-6)


def test_without_f_there_is_no_hypergradient():
    problem = Convex()
    balancer, x = setting(penalty=None, discrepancy=0.0)
    assert math.isnan(lower_level(balancer, problem.closure, {"x": x}, lr=0.1).hypergradient)


def test_inner_steps_reach_the_solution():
    problem = Convex()
    balancer, x = setting()
    exact = lower_level(balancer, problem.closure, {"x": x}, solution=solved(problem, balancer))
    gaps = [lower_level(balancer, problem.closure, {"x": x}, steps=n, lr=0.3).gap for n in (0, 5, 20, 100)]
    assert gaps[0] == 0.0
    assert gaps == sorted(gaps)
    assert gaps[-1] == pytest.approx(exact.gap, rel=1e-9)


def test_x_and_z_are_measured_in_the_same_units():
    """A balancer that has seen no step takes the first losses at the model, for z too."""
    problem = Convex()
    fresh, x = setting(normalize="rescale")
    found = lower_level(fresh, problem.closure, {"x": x}, steps=200, lr=0.3)
    here = problem.losses(x.detach().numpy())
    assert found.at_x == pytest.approx(1.0)
    assert fresh.first_losses.tolist() == [0.0] * 3  # and forgets them
    w = softmax(fresh.router.logits.detach().numpy()) / here
    assert found.at_z == pytest.approx(w @ problem.losses(problem.solve(w)), rel=1e-6)
    seen, _ = setting(normalize="rescale")
    seen(torch.from_numpy(here).requires_grad_())
    assert lower_level(seen, problem.closure, {"x": x}, steps=200, lr=0.3).gap == pytest.approx(found.gap, rel=1e-6)


def test_nothing_changes():
    problem = Convex()
    balancer, x = setting()
    before = {name: value.clone() for name, value in balancer.state_dict().items()}
    lower_level(balancer, problem.closure, {"x": x}, lr=0.1)
    assert all(torch.equal(before[name], value) for name, value in balancer.state_dict().items())
    assert x.grad is None
    assert balancer.router.logits.grad is None
    assert x.tolist() == [2.0, -1.0]


def test_it_refuses():
    problem = Convex()
    balancer, x = setting()
    with pytest.raises(ValueError, match="give `solution` or `lr`, and not both"):
        lower_level(balancer, problem.closure, {"x": x})
    with pytest.raises(ValueError, match="must have a router"):
        lower_level(eq.LDC(3, router=None, tau="ones"), problem.closure, {"x": x}, lr=0.1)


# What the theorem says.


def constants(penalty):
    """L_g in x over the simplex, and the step 1 / (L_f + penalty (2 L_g + L_g^2 mu)), with 30 for L_f."""
    largest, least = CURVATURES.max(), CURVATURES.min()
    return largest, 1 / (30 + penalty * (2 * largest + largest**2 / (2 * least)))


def train(problem, penalty, steps, method=eq.DoubleLoopLDC, every=1):
    """Gradient descent by Algorithm 1 (or 2); every so often the theorem's quantities, epsilon, F, Phi and sigma."""
    extra = {"inner_steps": 8, "inner_lr": 0.3} if method is eq.DoubleLoopLDC else {"router_objective": "both"}
    balancer, x = setting(method, penalty, **extra)
    _, alpha = constants(penalty)
    optimizer = torch.optim.SGD([x, *balancer.parameters()], lr=alpha)
    rows = []
    for step in range(steps + 1):
        losses = problem.closure({"x": x})
        if step % every == 0:
            found = lower_level(balancer, problem.closure, {"x": x}, solution=solved(problem, balancer))
            epsilon = pareto_stationarity(losses, [x]).value
            logits, here = balancer.router.logits.detach().numpy().copy(), x.detach().numpy().copy()
            value = penalised(problem, logits, here, penalty)
            single = upper(softmax(logits) * problem.losses(here)) + penalty * found.at_x
            rows.append((found, epsilon, value, single, softmax(logits)))
        optimizer.zero_grad()
        if method is eq.DoubleLoopLDC:
            balancer.backward(problem.closure, {"x": x})
        else:
            balancer(losses).backward()
        optimizer.step()
    return rows, alpha


@pytest.fixture(scope="module")
def double_loop():
    return train(Convex(), penalty=20.0, steps=120)


def test_the_lemma_holds_all_along(double_loop):
    """min |G w|^2 <= |G sigma|^2 <= 2 L_g gap: a small gap is a proof of Pareto stationarity."""
    rows, _ = double_loop
    smooth, _ = constants(20.0)
    for found, epsilon, *_ in rows:
        assert epsilon <= found.model_gradient**2 * (1 + 1e-6)
        assert found.model_gradient**2 <= 2 * smooth * found.gap * (1 + 1e-9)
    assert rows[0][0].model_gradient ** 2 > 0.1 * 2 * smooth * rows[0][0].gap  # and not by orders of magnitude


def test_the_double_loop_descends_as_predicted(double_loop):
    """F falls in each step by at least half the step times its squared gradient, so their mean is below 2 F0 / a T."""
    rows, alpha = double_loop
    values = [row[2] for row in rows]
    squares = [found.hypergradient**2 for found, *_ in rows]
    for (now, after), square in zip(pairwise(values), squares, strict=False):
        assert after <= now - 0.5 * alpha * square + 1e-9
    for count in (10, 50, 120):
        assert np.mean(squares[:count]) <= 2 * values[0] / (alpha * count)
    assert np.mean(squares[100:]) < 1e-6 * np.mean(squares[:10])
    assert rows[-1][1] < 1e-3 * rows[0][1]  # epsilon


def test_the_gap_is_of_the_order_of_one_over_lambda_squared():
    """lambda = L sqrt(3 mu / epsilon): four times the penalty is a sixteenth of the gap, and of epsilon's bound."""
    ends = [train(Convex(), penalty, steps, every=steps)[0][-1][0] for penalty, steps in ((20.0, 120), (80.0, 240))]
    assert ends[0].gap / ends[1].gap == pytest.approx(16, rel=0.3)
    assert ends[0].model_gradient ** 2 / ends[1].model_gradient ** 2 == pytest.approx(16, rel=0.3)


def test_the_single_loop_descends_its_own_objective():
    """Phi = f + lambda g falls by at least half the step times |grad Phi|^2, whatever that means for F."""
    rows, _ = train(Convex(), 20.0, 60, method=eq.LDC)
    assert all(after < now for now, after in pairwise(row[3] for row in rows))


def test_the_single_loop_meets_its_condition_where_all_tasks_have_one_solution():
    """|grad_W g(W, z)| is 0 where every loss can be 0 at once: then the single loop solves the same problem."""
    together = Convex(np.zeros((3, 2)), floor=(0.0, 0.0, 0.0))
    rows, _ = train(together, 20.0, 120, method=eq.LDC, every=20)
    assert max(found.inner_router_gradient for found, *_ in rows) < 1e-12
    assert rows[-1][0].hypergradient < 1e-3 * rows[0][0].hypergradient


def test_the_single_loop_without_its_condition_gives_all_weight_to_the_smallest_loss(double_loop):
    """Where tasks disagree |grad_W g(W, z)| is as large as |grad_W g(W, x)|: dropping it changes where W goes."""
    rows, _ = train(Convex(), 20.0, 250, method=eq.LDC, every=50)
    last, sigma = rows[-1][0], rows[-1][-1]
    assert last.inner_router_gradient == pytest.approx(last.router_gradient, rel=0.05)
    assert sigma[0] > 0.95  # the task with the lowest floor
    assert double_loop[0][-1][-1].max() < 0.7
    assert last.hypergradient > 5 * double_loop[0][-1][0].hypergradient


# On suites.


def closest(rows):
    """min |w r_0 + (1 - w) r_1|^2, by the formula for two."""
    a, b = rows
    w = ((b - a) @ b / ((a - b) @ (a - b))).clamp(0, 1)
    return (w * a + (1 - w) * b).square().sum().item()


def test_the_toy_problem_comes_nearer_to_stationarity():
    """In the valley that leads to the front epsilon and the gap fall by a factor of five or more every 400 steps."""
    suite = Toy(seed=3)
    model, balancer = suite.model(), eq.LDC(tasks=suite.tasks, **dict(suite.presets["ldc"].options))
    optimizer = torch.optim.Adam([*model.parameters(), *balancer.parameters()], lr=0.05)
    seen = []
    for step in range(1201):
        losses, _ = suite.losses(model, None)
        if step % 400 == 0:
            found = theory(suite, model, balancer, None, lr=0.02)
            rows = [torch.autograd.grad(loss, model.position, retain_graph=True)[0].double() for loss in losses]
            assert found.stationarity.value == pytest.approx(closest(rows), rel=1e-3, abs=1e-8)
            seen.append((found.stationarity.value, found.lower.gap))
        optimizer.zero_grad()
        balancer(losses).backward()
        optimizer.step()
    for (epsilon, gap), (later, less) in pairwise(seen[1:]):
        assert later < epsilon / 5
        assert less < gap / 5


def test_a_network_with_batchnorm_and_dropout_is_left_as_it_was():
    suite = Twin(seed=1)
    model = suite.model().train()
    balancer = eq.LDC(tasks=suite.tasks)
    batch = next(iter(suite.batches(0)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    found = theory(suite, model, balancer, batch, lr=1e-4, steps=5)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())
    assert found.lower.gap > 0
    assert found.stationarity.value > 0
    torch.testing.assert_close(found.stationarity.weights.sum(), torch.tensor(1.0, dtype=torch.float64))
    assert theory(suite, model, balancer, batch, lr=1e-4, steps=5).lower == found.lower
