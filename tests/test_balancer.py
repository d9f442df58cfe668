"""Bad input gets a sentence; names, masks, modules as `shared`; what is said once."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import equipoise as eq
from equipoise.losses import nearest, read


def scalars(*values: float) -> list[torch.Tensor]:
    return [torch.tensor(v, requires_grad=True) for v in values]


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        (scalars(1.0, 2.0), ["`losses` must hold 3 losses", "found 2"]),
        (scalars(1.0, 2.0, 3.0, 4.0), ["'0', '1', '2'", "found 4"]),
        ([*scalars(1.0, 2.0), torch.ones(2, requires_grad=True)], ["task '2'", "scalar", "[2]", ".mean()"]),
        ([*scalars(1.0, 2.0), torch.tensor(3.0)], ["task '2'", "attached", "detached"]),
        ([*scalars(1.0, 2.0), 3.0], ["task '2'", "found float"]),
        ([*scalars(1.0, 2.0), torch.tensor(3)], ["task '2'", "floating-point", "int64"]),
        (torch.ones(3, 1, requires_grad=True), ["shape [3]", "found shape [3, 1]"]),
        (torch.ones(3), ["attached"]),
        (torch.ones(3, dtype=torch.int64), ["floating-point", "int64"]),
        ("abc", ["sequence of scalar tensors", "found str"]),
        (1.0, ["found float"]),
        ({"a": scalars(1.0)[0]}, ["mapping", "tasks=('a',)"]),
        ([None, None, None], ["at least one task present"]),
    ],
)
def test_bad_losses_get_a_sentence(losses: Any, words: list[str]) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        eq.LS(num_tasks=3)(losses)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ["`num_tasks`", "found None"]),
        ({"num_tasks": 0}, ["at least 1", "found 0"]),
        ({"num_tasks": True}, ["found True"]),
        ({"num_tasks": 2.0}, ["whole number", "2.0"]),
        ({"tasks": "ab"}, ["sequence", "'ab'"]),
        ({"tasks": ("a", "a")}, ["distinct"]),
        ({"tasks": ("a", 1)}, ["at least one name", "1"]),
        ({"num_tasks": 3, "tasks": ("a", "b")}, ["agree", "3 and 2"]),
        ({"num_tasks": 2, "on_nonfinite": "ignore"}, ["`on_nonfinite`", "'ignore'"]),
        ({"num_tasks": 2, "epoch_steps": 0}, ["`epoch_steps`", "found 0"]),
        ({"num_tasks": 2, "shared": torch.ones(2)}, ["`shared`", "module", "Tensor"]),
        ({"num_tasks": 2, "weights": (1.0,)}, ["`weights`", "2 finite numbers"]),
    ],
)
def test_bad_options_get_a_sentence(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        eq.LS(**options)
    assert all(word in str(caught.value) for word in words), caught.value


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(ValueError, match="there is no method 'lss'; did you mean 'ls'"):
        eq.make("lss", num_tasks=2)
    with pytest.raises(TypeError, match="LS has no option `weight`; did you mean 'weights'"):
        eq.make("ls", num_tasks=2, weight=(1, 1))
    with pytest.raises(ValueError, match="unknown task 'depht'; did you mean 'depth'"):
        eq.LS(tasks=("seg", "depth"))({"seg": scalars(1.0)[0], "depht": scalars(1.0)[0]})
    assert nearest("zzz", ["a", "b"]) == "known are 'a', 'b'."
    assert "(30 in all)" in nearest("zzz", [str(i) for i in range(30)])


@pytest.mark.parametrize("present", [[True], [1, 0, 1], torch.ones(3)])
def test_bad_masks_get_a_sentence(present: Any) -> None:
    with pytest.raises(ValueError, match="`present` must be 3 booleans"):
        eq.LS(num_tasks=3)(scalars(1.0, 2.0, 3.0), present=present)
    with pytest.raises(ValueError, match="`counts` must hold 3 numbers"):
        eq.LS(num_tasks=3)(scalars(1.0, 2.0, 3.0), counts=[1.0])


def test_state_of_another_size_is_refused() -> None:
    with pytest.raises(RuntimeError, match="of a balancer of 2 tasks; this one has 3"):
        eq.LS(num_tasks=3).load_state_dict(eq.LS(num_tasks=2).state_dict())


def test_wrong_device_gets_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"on the balancer's device, meta; found cpu: move the balancer"):
        eq.LS(num_tasks=2).to("meta")(scalars(1.0, 2.0))


def test_no_balancer_on_the_meta_device() -> None:
    with torch.device("meta"), pytest.raises(ValueError, match=r"add it to the model afterwards"):
        eq.FAMO(num_tasks=2)


def test_half_precision_losses_are_summed_in_single() -> None:
    losses = [torch.tensor(60000.0, dtype=torch.float16, requires_grad=True) for _ in range(2)]
    scalar = eq.LS(num_tasks=2)(losses)
    assert scalar.item() == 120000.0


def test_named_tasks_show() -> None:
    assert repr(eq.LS(tasks=("seg", "depth"))) == "LS(tasks=('seg', 'depth'))"
    assert repr(eq.LS(num_tasks=2)) == "LS(num_tasks=2)"


def test_param_groups_have_no_decay() -> None:
    assert eq.LS(num_tasks=2).param_groups(lr=0.1) == []


def test_captured_module_is_not_copied_along() -> None:
    trunk = nn.Linear(2, 2)
    balancer = eq.LS(num_tasks=2, shared=trunk)
    twins = [copy.deepcopy(balancer), pickle.loads(pickle.dumps(balancer))]
    trunk(torch.ones(1, 2))
    assert len(balancer._capture.take()) == 1 and not any(twin._capture.take() for twin in twins)
    with torch.no_grad():
        trunk(torch.ones(1, 2))
    assert balancer._capture.take() == []


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_model_copied_with_its_balancer_goes_on(copied: Any) -> None:
    """As a trainer does that starts its processes by pickling the model."""
    trunk = nn.Linear(2, 2)
    model = copied(copied(nn.ModuleDict({"trunk": trunk, "balancer": eq.MGDA(num_tasks=2, shared=trunk)})))
    features = model["trunk"](torch.ones(1, 2))
    model["balancer"]([features[0, 0] + 1.0, features[0, 1]]).backward()
    assert model["trunk"].weight.grad is not None and trunk.weight.grad is None


def test_a_module_copied_without_its_balancer_keeps_no_outputs() -> None:
    trunk = nn.Linear(2, 2)
    balancer = eq.LS(num_tasks=2, shared=trunk)
    alone = copy.deepcopy(trunk)
    alone(torch.ones(1, 2))
    hook = next(iter(alone._forward_hooks.values()))
    assert balancer._capture.take() == [] and hook.take() == []


def test_nested_outputs_are_found() -> None:
    class Trunk(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, Any]:
            return {"deep": (x * 2, [x * 3]), "count": 4, "plain": torch.ones(1)}

    trunk = Trunk()
    balancer = eq.LS(num_tasks=2, shared=trunk)
    trunk(torch.ones(1, requires_grad=True))
    assert [t.item() for t in balancer._capture.take()] == [2.0, 3.0]


def test_forgotten_epochs_are_said_once() -> None:
    class Epochal(eq.LS):
        uses_epochs = True

    silent, loud = Epochal(num_tasks=1, epoch_steps=10), Epochal(num_tasks=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(999):
            loud(scalars(1.0)), silent(scalars(1.0))
        silent(scalars(1.0))
    with pytest.warns(UserWarning, match=r"1,000 steps passed without start_epoch\(\)"):
        loud(scalars(1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loud(scalars(1.0))


def test_latched_failures_name_the_task() -> None:
    """What CUDA and compiled steps do: go on, keep state, and raise when asked."""
    balancer = eq.LS(tasks=("seg", "depth"))
    compiled = torch.compile(lambda losses: balancer(losses), fullgraph=True, backend="eager")
    before = copy.deepcopy(balancer.state_dict())
    losses = scalars(1.0, torch.nan)
    scalar = compiled(losses)
    scalar.backward()
    assert scalar.item() == 0.0 and losses[0].grad is not None and losses[0].grad.item() == 0.0
    assert all(torch.equal(t, before[n]) for n, t in balancer.state_dict().items())
    with pytest.raises(ValueError, match="task 'depth'"):
        balancer.check()
    balancer.check()  # said once
    compiled(scalars(1.0, torch.inf))
    with pytest.raises(ValueError, match="task 'depth'"):
        balancer.start_epoch()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=3, max_size=3),
    st.lists(st.booleans(), min_size=3, max_size=3),
)
def test_any_losses_are_right_or_refused(values: list[float], present: list[bool]) -> None:
    balancer = eq.LS(num_tasks=3)
    losses = scalars(*values)
    here = [v for v, p in zip(values, present, strict=True) if p]
    try:
        scalar = balancer(losses, present=present)
    except ValueError as error:
        assert not here or not all(map(torch.isfinite, map(torch.tensor, here))), error
        return
    expected = torch.tensor(here).sum()
    torch.testing.assert_close(scalar.detach(), expected, rtol=1e-5, atol=1e-30)


def test_reading_keeps_what_was_given() -> None:
    losses = scalars(1.0, 2.0)
    values, mask, kept = read(losses, ("0", "1"), False, None)
    assert mask is None and kept[0] is losses[0] and values.tolist() == [1.0, 2.0]
    values, mask, _ = read([losses[0], None], ("0", "1"), False, None)
    assert mask is not None and mask.tolist() == [True, False] and values.tolist() == [1.0, 1.0]
