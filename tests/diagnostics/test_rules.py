"""Every rule on both sides of its threshold."""

import math
from dataclasses import replace

import pytest
import torch

import equipoise as eq
from equipoise.diagnostics import conflict, rules, stationarity
from equipoise.diagnostics.look import Look, look_at, stuck_tasks
from equipoise.losses import Batch

ABC = ("a", "b", "c")


def look(losses, gradients=None, **seen):
    """A look with these losses and, as rows, these gradients."""
    present = seen.pop("present", [not math.isnan(value) for value in losses])
    if gradients is not None:
        J = torch.tensor(gradients, dtype=torch.float64)
        gram = J @ J.T
        seen |= {"conflict": conflict(gram), "stationarity": stationarity(gram, torch.tensor(present))}
    return Look(losses, present, **seen)


def kinds(found):
    return [finding.kind for finding in found]


def of_step(losses, gradients=None, **seen):
    return rules.of_step(ABC[: len(losses)], look(losses, gradients, **seen))


def text_of(found, kind):
    return next(finding.text for finding in found if finding.kind == kind)


# Of one step.


def test_not_finite():
    assert kinds(of_step([1.0, math.inf, math.nan], present=[True] * 3)) == ["not-finite"]
    assert "'b' and 'c'" in text_of(of_step([1.0, math.inf, math.nan], present=[True] * 3), "not-finite")
    assert of_step([1.0, 2.0, math.nan]) == []  # absent
    found = of_step([1.0, 2.0, 3.0], bad_gradients=[1])
    assert found == [rules.Finding("not-finite", "The gradient is not finite: 'b'.")]


@pytest.mark.parametrize(("ratio", "found"), [(99.9, []), (100.1, ["far-apart"])])
def test_far_apart(ratio, found):
    assert kinds(of_step([3.0, 3.0 * ratio])) == found
    if found:
        assert text_of(of_step([3.0, 3.0 * ratio]), "far-apart") == "The loss of 'b' is 100 times that of 'a'."


def test_losses_of_both_signs_are_not_far_apart():
    assert of_step([-1.0, 1e6]) == []


def test_no_gradient():
    found = of_step([1.0, 1.0, 1.0], [[1, 0], [0, 0], [0, 1]])
    assert kinds(found) == ["no-gradient"]  # and not drowned, and not stationary because of it
    assert "'b'" in found[0].text
    assert of_step([1.0, math.nan, 1.0], [[1, 0], [0, 0], [0, 1]]) == []  # absent


@pytest.mark.parametrize(("length", "found"), [(0.0101, []), (0.0099, ["drowned"])])
def test_drowned(length, found):
    assert kinds(of_step([1.0, 1.0], [[1.0, 0.0], [0.0, length]])) == found


@pytest.mark.parametrize(("cosine", "found"), [(-0.09, []), (-0.11, ["conflict"])])
def test_conflict_counts_clear_cosines(cosine, found):
    pair = [[1.0, 0.0], [cosine, math.sqrt(1 - cosine**2)]]
    assert kinds(of_step([1.0, 1.0], pair)) == found


@pytest.mark.parametrize(("tasks", "found"), [(6, []), (5, ["conflict"])])
def test_conflict_counts_a_tenth_of_the_pairs(tasks, found):
    """One opposed pair: of 5 tasks it is 1 in 10, of 6 it is 1 in 15."""
    gradients = torch.eye(tasks)
    gradients[1, 0] = -0.5
    assert kinds(rules.of_step([str(i) for i in range(tasks)], look([1.0] * tasks, gradients.tolist()))) == found


def test_conflict_names_the_worst_pair():
    found = of_step([1.0, 1.0, 1.0], [[1, 0, 0], [-1, 2, 0], [-3, 1, 0]])
    assert text_of(found, "conflict").startswith("67% of the pairs")
    assert "'a' and 'c' (-0.95)" in text_of(found, "conflict")


@pytest.mark.parametrize(("height", "found"), [(0.0711, []), (0.0703, ["stationary"])])
def test_stationary(height, found):
    """(1, h) and (-1, h): the least norm is h, the relative value h^2 / (1 + h^2), the threshold 0.01 / 2."""
    assert height**2 / (1 + height**2) == pytest.approx(0.005, rel=0.02)
    assert [k for k in kinds(of_step([1.0, 1.0], [[1, height], [-1, height]])) if k == "stationary"] == found


def test_one_task_is_never_stationary_by_comparison():
    assert of_step([1.0], [[0.5, 0.5]]) == []


# Of weights, over several looks.


def of_weights(pulls, fixed=False, enough=3, losses=None, **seen):
    count = len(pulls[0])
    looks = [look(losses or [1.0] * count, pull=list(pull), **seen) for pull in pulls]
    return rules.of_weights([str(i) for i in range(count)], looks, fixed=fixed, enough=enough)


@pytest.mark.parametrize("units", [(1.0, 1.0, 1.0), (1e-6, 1.0, 1e4)])
@pytest.mark.parametrize(("off", "found"), [(0.0004, ["equals-ls"]), (0.0008, [])])
def test_equals_ls(off, found, units):
    """Five looks that alternate by `off` in two of three equal weights: from their mean 3.6 off of themselves."""
    pulls = [[1 / 3 + sign * off, 1 / 3 - sign * off, 1 / 3] for sign in (1, -1, 1, -1, 1)]
    assert kinds(of_weights([[a * b for a, b in zip(row, units, strict=True)] for row in pulls])) == found


def test_equals_ls_in_words():
    assert of_weights([[2.0, 2.0, 2.0]] * 5)[0].text == "This objective now equals LS(0.33, 0.33, 0.33) to 0.001."
    assert "LS(0.25, 0.75)" in of_weights([[1.0, 3.0]] * 5)[0].text
    assert "LS(1e-06, 1)" in of_weights([[1.0, 1e6]] * 5)[0].text
    assert "LS(0.00, 1.00)" in of_weights([[0.0, 2.0]] * 5)[0].text
    assert "LS(0.025 for each of 40)" in of_weights([[7.0] * 40] * 5)[0].text
    uneven = [1.0] * 20 + [3.0] * 20
    assert "LS(40: 0.013 to 0.037)" in of_weights([uneven] * 5)[0].text
    assert kinds(of_weights([[5.0, 5.0], [1.0, 1.0], [2.0, 2.0], [9.0, 9.0], [3.0, 3.0]])) == ["equals-ls"]  # scale


def test_equals_ls_is_not_said_too_early_of_fixed_weights_or_of_absent_tasks():
    assert of_weights([[1.0, 1.0]] * 4) == []
    assert of_weights([[1.0, 1.0]] * 5, fixed=True) == []
    assert of_weights([[1.0, 1.0]] * 5, losses=[1.0, math.nan]) == []
    assert of_weights([[1.0, 1.0]] * 5 + [[1.0, 2.0]]) == []
    assert of_weights([[1.0, 0.0]] * 4 + [[1.0, 1e-9]]) == of_weights([[0.0, 0.0]] * 5) == []
    assert kinds(of_weights([[1.0, 2.0]] + [[1.0, 1.0]] * 5)) == ["equals-ls"]  # the last five count


def test_many_tasks_are_the_same_only_when_all_weights_together_are():
    """Forty weights a tenth off: each by 2.5e-3 of the whole, all of them by a tenth of it."""
    half = [1.1] * 20 + [0.9] * 20
    assert of_weights([half, half[::-1]] * 3) == []


def of_pull(pulls, gradients=(1.0, 1.0), losses=(1.0, 1.0), **options):
    rows = torch.diag(torch.tensor(gradients, dtype=torch.float64)).tolist()
    looks = [look(list(losses), rows, pull=list(pull)) for pull in pulls]
    return kinds(rules.of_pull(ABC[:2], looks, **{"fixed": False, **options}))


@pytest.mark.parametrize(("weight", "found"), [(0.0051, []), (0.0049, ["no-pull"])])
def test_no_pull(weight, found):
    """Of two tasks an equal part is half: the second has 2 weight of it, against 1 %; the median of four looks."""
    assert of_pull([[1 - weight, weight]] * 3 + [[0.5, 0.5]]) == found


@pytest.mark.parametrize(("length", "found"), [(0.0051, []), (0.0049, ["no-pull"])])
def test_no_pull_is_weight_times_gradient(length, found):
    assert of_pull([[1.0, 1.0]] * 3, gradients=(1 - length, length)) == found
    assert of_pull([[1.0, 1.0]] * 3, losses=(1.0, 1e-6)) == []  # a solved task is none that is not trained


def test_no_pull_needs_looks_and_a_task_that_is_there():
    weak = [1.0, 1e-5]
    assert of_pull([weak] * 2) == []
    assert of_pull([weak], enough=1) == ["no-pull"]
    assert of_pull([weak] * 3, gradients=(1.0, 0.0), losses=(1.0, math.nan)) == []
    assert of_pull([weak] * 3, fixed=True) == []
    assert of_pull([weak] * 3 + [[1.0, 1.0]] * 5) == []  # the last five count
    assert rules.of_pull(ABC[:2], [look([1.0, 1.0], pull=weak)] * 5, fixed=False) == []  # no gradients


def test_stuck():
    moving = [[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]]
    assert kinds(of_weights(moving, stuck=[1])) == ["stuck"]
    looks = [look([1.0, 1.0], pull=pull, stuck=stuck) for pull, stuck in zip(moving, ([1], [], [1]), strict=True)]
    assert rules.of_weights(ABC[:2], looks, fixed=False) == []
    assert of_weights(moving, stuck=[1], losses=[1.0, math.nan]) == []  # never there


def test_dead_router():
    moving = [[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]]
    assert kinds(of_weights(moving, router_gradient=0.0)) == ["dead-router"]
    assert of_weights(moving, router_gradient=1e-30) == []
    assert of_weights(moving, router_gradient=None) == []


def test_nothing_is_said_of_weights_that_are_unknown():
    assert rules.of_weights(ABC, [look([1.0, 1.0, 1.0])] * 5, fixed=False) == []


# Of the whole training.


@pytest.mark.parametrize(("steps", "absent", "found"), [(20, 18, []), (20, 19, ["absent"]), (19, 19, [])])
def test_absent(steps, absent, found):
    assert kinds(rules.of_training(ABC, steps, 0, [0, absent, 0])) == found


def test_absent_and_fell_back_in_words():
    found = rules.of_training(ABC, 100, 3, [95, 99, 0])
    assert [f.text for f in found] == [
        "The solver fell back in 3 of 100 steps: no solution, so its documented replacement.",
        "Absent too often, in 99 of 100 steps: 'a' and 'b'.",
    ]
    assert rules.of_training(ABC, 100, 0, [0, 0, 0]) == []


def test_names():
    assert rules.names(ABC, [0]) == "'a'"
    assert rules.names(ABC, [0, 1, 2]) == "'a', 'b' and 'c'"
    assert rules.names("abcdef", [0, 1, 2, 3, 5]) == "'a', 'b', 'c' and 2 more"


# Which router weights are stuck.


def routed(logits=None, steps=1, **options):
    """An LDC after a step, its logits then moved."""
    balancer = eq.LDC(3, **options)
    for _ in range(steps):
        balancer(torch.ones(3, requires_grad=True))
    if logits is not None:
        with torch.no_grad():
            balancer.router.logits.copy_(torch.tensor(logits))
        balancer.eval()(torch.ones(3, requires_grad=True))
        balancer.last_weights.copy_(balancer.router().detach())
    return balancer


def logit(p):
    return math.log(p / (1 - p))


@pytest.mark.parametrize(
    ("options", "logits", "stuck"),
    [
        ({"router": "sigmoid"}, [0.1, -0.1, 0.0], [1, 2]),
        ({"router": "sigmoid"}, [0.1, logit(0.997), logit(0.998)], [2]),
        ({"router": "sigmoid-free"}, [-0.1, logit(0.003), logit(0.002)], [2]),
        ({"router": "softmax-clamped"}, [0.0, 0.0, -3.0], [2]),
        ({"router": "softmax"}, [0.0, 0.0, math.log(0.0046)], []),  # slope against 1 % of 2/9: 0.0023
        ({"router": "softmax"}, [0.0, 0.0, math.log(0.0042)], [2]),
        ({"router": "softmax", "floor": 0.5}, [0.0, 0.0, math.log(0.0042)], [2]),  # the floor hides it in the weight
        ({"router": None, "tau": "ones"}, None, []),
    ],
)
def test_stuck_router_weights(options, logits, stuck):
    assert stuck_tasks(routed(logits, **options)) == stuck


def test_stuck_is_the_slope_of_the_weight():
    """What is called stuck has below 1 % of the slope that equal weights have, by autograd."""
    for last in (math.log(0.0046), math.log(0.0042)):
        logits = torch.tensor([0.0, 0.0, last], requires_grad=True)
        slope = torch.autograd.grad(logits.softmax(0)[2], logits)[0][2]
        assert (slope < 0.01 * 2 / 9) == (2 in stuck_tasks(routed([0.0, 0.0, last])))


def test_nothing_is_stuck_before_the_first_step():
    assert stuck_tasks(eq.LDC(3, router="softmax-clamped")) == []
    assert stuck_tasks(eq.LS(3)) == []


def test_bad_gradients_are_named_and_leave_no_matrix():
    losses = torch.tensor([1.0, 2.0])
    gram = torch.tensor([[1.0, math.nan], [math.nan, math.inf]])
    seen = look_at(Batch(losses, None, None, losses, None), gram)
    assert (seen.bad_gradients, seen.conflict, seen.stationarity) == ([1], None, None)
    assert kinds(rules.of_step(ABC[:2], seen)) == ["not-finite"]
    absent = look_at(Batch(losses, torch.tensor([True, False]), None, losses, None), gram)
    assert absent.bad_gradients == []
    assert replace(seen, bad_gradients=[]).finite
