"""LDC compiles whole, in every form, and costs the same number of operators for any number of tasks."""

import copy

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import equipoise as eq
from ldc.helpers import FORMS, close, losses_at, make

every_form = pytest.mark.parametrize("form", FORMS)


@every_form
def test_compiles_whole_and_once(form):
    """One graph, absent tasks given by a mask, the numbers of eager."""
    torch._dynamo.reset()
    balancer = make(3, **FORMS[form])
    twin = copy.deepcopy(balancer)
    run = torch.compile(lambda losses, here: balancer(losses, present=here), fullgraph=True, backend="aot_eager")
    masks = [[True, True, True], [True, False, True], [True, True, True], [False, True, False]]
    try:
        for t, mask in enumerate(masks):
            leaf, other = (torch.tensor(losses_at(t), requires_grad=True) for _ in range(2))
            if t == 2:
                balancer.start_epoch(), twin.start_epoch()
            scalar, expected = run(leaf, torch.tensor(mask)), twin(other, present=torch.tensor(mask))
            scalar.backward(), expected.backward()
            close(scalar.item(), expected.item(), 1e-12)
            close(leaf.grad, other.grad, 1e-12)
            torch.compiler.set_stance("fail_on_recompile")
    finally:
        torch.compiler.set_stance("default")
    for name, value in twin.state_dict().items():
        close(balancer.state_dict()[name].double(), value.double(), 1e-12)


class Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


@every_form
@pytest.mark.parametrize("masked", [False, True])
def test_operators_do_not_grow_with_tasks(form, masked):
    counts = []
    for k in (3, 60):
        options = dict(FORMS[form])
        for name in ("normalize", "min_losses"):
            if isinstance(options.get(name), tuple):
                options[name] = options[name] * (k // 3)
        balancer = make(k, **options)
        losses = torch.tensor(losses_at(0, [1.0] * k), requires_grad=True)
        mask = {"present": torch.arange(k) % 3 != 1} if masked else {}
        with Operators() as operators:
            balancer(losses, **mask).backward()
        counts.append(operators.count)
    assert counts[0] == counts[1]
    assert counts[0] < (55 if form == "default" and not masked else 130)


def test_zero_first_loss_is_latched_where_raising_would_wait():
    """Compiled (as on a GPU) the step is dropped and kept out of the state; check() names the task."""
    torch._dynamo.reset()
    balancer = eq.LDC(tasks=("seg", "depth"))
    run = torch.compile(lambda losses: balancer(losses), fullgraph=True, backend="aot_eager")
    leaf = torch.tensor([1.0, 0.0], requires_grad=True)
    scalar = run(leaf)
    scalar.backward()
    assert scalar.item() == 0 and leaf.grad.abs().max() == 0
    assert balancer.first_losses.tolist() == [0, 0] and balancer.step == 0
    with pytest.raises(ValueError, match="task 'depth' must be at least 1e-12 in size at first"):
        balancer.check()
    run(torch.tensor([1.0, 2.0], requires_grad=True))
    run(torch.tensor([1.0, 0.0], requires_grad=True))  # zero later on is fine
    balancer.check()
    assert balancer.first_losses.tolist() == [1, 2]
