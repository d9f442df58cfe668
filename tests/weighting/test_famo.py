import copy
from itertools import pairwise

import pytest
import torch

import equipoise as eq
from equipoise.weighting import famo

LOSSES = [1.0, 4.0, 0.5]


def look(balancer, losses=LOSSES, **kwargs):
    leaf = torch.tensor(losses, dtype=torch.float64, requires_grad=True)
    scalar = balancer(leaf, **kwargs)
    scalar.backward()
    return leaf.grad


def state(balancer):
    return copy.deepcopy(balancer.state_dict())


def same(first, second):
    return all(torch.equal(first[key], second[key]) for key in first)


def test_weights_sum_to_one_and_start_as_one_over_the_loss():
    weights = look(eq.FAMO(3).double())
    assert weights.sum().item() == pytest.approx(1)
    torch.testing.assert_close(
        weights * torch.tensor(LOSSES, dtype=torch.float64), (weights * torch.tensor(LOSSES))[0].expand(3)
    )


def test_a_task_that_falls_slower_gains():
    balancer = eq.FAMO(3).double()
    look(balancer)
    balancer.after_step(torch.tensor([0.5, 4.0, 0.25], dtype=torch.float64))
    assert balancer.logits.argmax() == 1
    assert balancer.logits[0] < 0 and balancer.logits[0].item() == pytest.approx(balancer.logits[2].item())


def test_equal_falls_leave_fresh_weights_alone():
    balancer = eq.FAMO(3).double()
    look(balancer)
    balancer.after_step(torch.tensor(LOSSES, dtype=torch.float64) / 2)
    assert balancer.logits.abs().max() < 0.025  # rounding alone moves Adam: far less than what a fall does
    assert balancer.moment1.abs().max() < 1e-7


@pytest.mark.parametrize("second_look", ["same", "next"])
def test_after_step_without_a_forward_changes_nothing(second_look):
    balancer = eq.FAMO(3, second_look=second_look).double()
    fresh = state(balancer)
    balancer.after_step(torch.tensor(LOSSES))
    assert same(state(balancer), fresh)


def test_a_second_after_step_changes_nothing():
    balancer = eq.FAMO(3).double()
    look(balancer)
    balancer.after_step(torch.tensor(LOSSES) / 3)
    once = state(balancer)
    balancer.after_step(torch.tensor(LOSSES) / 5)
    assert same(state(balancer), once)


def test_the_last_forward_counts():
    """Two micro-batches, one second look: it is at the second one."""
    both, last = eq.FAMO(3).double(), eq.FAMO(3).double()
    look(both, [9.0, 9.0, 9.0])
    for balancer in (both, last):
        look(balancer)
        balancer.after_step(torch.tensor([0.5, 1.0, 0.5]))
    assert torch.equal(both.logits, last.logits)


def test_next_takes_the_next_losses():
    same_batch, next_batch = eq.FAMO(3).double(), eq.FAMO(3, second_look="next").double()
    runs = [LOSSES, [0.5, 4.0, 0.25], [0.4, 2.0, 0.25]]
    for now, later in pairwise(runs):
        look(same_batch, now)
        same_batch.after_step(torch.tensor(later, dtype=torch.float64))
    look(same_batch, runs[-1])
    for now in runs:
        look(next_batch, now)
    assert torch.equal(next_batch.logits, same_batch.logits) and torch.equal(next_batch.weights, same_batch.weights)
    assert same_batch.needs_after_step and not next_batch.needs_after_step


def test_second_look_in_every_form():
    named = eq.FAMO(tasks=("a", "b", "c")).double()
    after = torch.tensor([0.5, 4.0, 0.25], dtype=torch.float64)
    ends = []
    for form in (after, list(after), {"a": after[0], "b": after[1], "c": after[2]}, (after * 1).requires_grad_()):
        balancer = copy.deepcopy(named)
        look(balancer)
        balancer.after_step(form)
        ends.append(balancer.logits.clone())
    assert all(torch.equal(end, ends[0]) for end in ends)
    absent = []
    for args in (
        ([after[0], None, after[2]], None),
        (after, [True, False, True]),
        ({"a": after[0], "c": after[2]}, None),
    ):
        balancer = copy.deepcopy(named)
        look(balancer)
        balancer.after_step(args[0], present=args[1])
        absent.append(balancer.logits.clone())
    assert all(torch.equal(end, absent[0]) for end in absent) and absent[0][1] == 0 != absent[0][0]
    with pytest.raises(ValueError, match="`losses` must hold 3 losses"):
        named.after_step([after[0]])


@pytest.mark.parametrize("rule", ["raise", "skip"])
def test_bad_second_look(rule):
    balancer = eq.FAMO(tasks=("a", "b", "c"), on_nonfinite=rule).double()
    look(balancer)
    before = state(balancer)
    if rule == "raise":
        with pytest.raises(ValueError, match="task 'b' must be finite; found nan"):
            balancer.after_step(torch.tensor([1.0, torch.nan, 1.0]))
    else:
        balancer.after_step(torch.tensor([1.0, torch.nan, 1.0]))
        assert balancer.skipped
    assert same(state(balancer), before)


def test_evaluation_looks_without_learning():
    balancer = eq.FAMO(3).double().eval()
    before = state(balancer)
    look(balancer)
    balancer.after_step(torch.tensor(LOSSES) / 2)
    assert same(state(balancer), before)


def test_loss_at_and_below_its_bound():
    balancer = eq.FAMO(2, min_losses=(-21.0, 1.0)).double()
    assert torch.isfinite(look(balancer, [-20.0, 1.0])).all()
    with pytest.raises(ValueError, match="task '1' must be above its `min_losses`"):
        look(balancer, [-20.0, 0.5])
    look(balancer, [-20.0, 0.5], present=[True, False])


def test_absent_task_below_nothing():
    """An absent task's place holds a stand-in, which its bound must not refuse."""
    assert look(eq.FAMO(2, min_losses=(0.0, 5.0)).double(), [2.0, 7.0], present=[True, False]).tolist() == [1.0, 0.0]


def test_long_runs_stay_finite():
    balancer = eq.FAMO(3)
    torch.manual_seed(0)
    for _ in range(300):
        look(balancer, (torch.rand(3) * torch.tensor([1e-6, 1.0, 1e6]) + 1e-9).tolist())
        balancer.after_step(torch.rand(3) + 1e-9)
    assert all(torch.isfinite(value.double()).all() for value in balancer.state_dict().values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": -1.0}, "`gamma` must be at least 0 and at most 1e\\+06; found -1.0"),
        ({"lr": float("nan")}, "`lr` must be at least 0 and at most 1e\\+06; found nan"),
        ({"second_look": "later"}, "`second_look` must be 'same' or 'next'; found 'later'"),
        ({"min_losses": [0.0]}, r"`min_losses` must be 2 finite numbers; found \[0.0\]"),
    ],
)
def test_options(options, message):
    with pytest.raises(ValueError, match=message):
        eq.FAMO(2, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_few_tasks_move_as_many_do(dtype, monkeypatch):
    """Plain Python moves the weights of few tasks on a CPU, operators those of others: by one and the same rule."""
    balancers = [eq.FAMO(3, gamma=0.1).to(dtype) for _ in range(2)]
    for step in range(5):
        losses = torch.tensor(LOSSES, dtype=dtype) / (1 + step * torch.arange(3)) ** 2
        for balancer, few in zip(balancers, (64, 0), strict=True):
            monkeypatch.setattr(famo, "FEW", few)
            look(balancer, losses.tolist())
            balancer.after_step(losses / torch.tensor([1.0, 2.0, 1.5]))
    assert balancers[0].logits.abs().min() > 0.01
    for name, tensor in balancers[0].state_dict().items():
        torch.testing.assert_close(tensor, balancers[1].state_dict()[name])


def test_second_look_wherever_gradients_are_off_or_on():
    """The losses need no graph, and leave none; inference mode does as well."""
    modes = [torch.enable_grad, torch.no_grad, torch.inference_mode]
    balancers = [eq.FAMO(3) for _ in modes]
    for mode, balancer in zip(modes, balancers, strict=True):
        for _ in range(2):
            look(balancer)
            with mode():
                balancer.after_step(torch.tensor(LOSSES) * torch.tensor([0.5, 1.0, 0.7]))
        assert not balancer.logits.requires_grad and not balancer.logits.is_inference()
        assert same(state(balancer), state(balancers[0]))
