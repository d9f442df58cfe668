"""The contract every method keeps, row by row: input, absent tasks, state, precision, bad losses, compiling."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from typing import Any

import pytest
import torch

import equipoise as eq
from contract.table import CASES, IDS, LOSS_ONLY, ROWS, K, Problem, Row, close, same, warm

each = pytest.mark.parametrize(("row", "where"), CASES, ids=IDS)


def test_every_method_has_a_row() -> None:
    assert {row.name for row in ROWS} == set(eq.methods())


@each
def test_scalar_from_every_form(row: Row, where: str) -> None:
    torch.manual_seed(5)
    names = tuple("abc")
    balancer, problem = row.make(tasks=names), Problem()
    expected = None
    for form in (list, tuple, torch.stack, lambda ls: dict(zip(names, ls, strict=True))):
        fresh = copy.deepcopy(balancer)
        losses, features = problem.losses()
        scalar = fresh(form(losses), problem.shared(where, features))
        assert scalar.shape == () and torch.isfinite(scalar)
        found = {**problem.gradients(scalar, fresh), "scalar": scalar.detach(), "weights": fresh.weights}
        assert all(torch.isfinite(g).all() for g in found.values())
        assert any(g.abs().max() > 0 for n, g in found.items() if n.startswith("trunk"))
        expected = expected or found
        close(found, expected)
    assert fresh.weights.shape == (K,) and not fresh.weights.requires_grad


@each
def test_one_task(row: Row, where: str) -> None:
    balancer, problem = row.make(1), Problem(1)
    for step in range(3):
        found = problem.gradients(problem.scalar(balancer, where, step), balancer)
        assert all(torch.isfinite(g).all() for g in found.values())
        assert found["heads.0.weight"].abs().max() > 0


@each
def test_absent_task_leaves_no_mark(row: Row, where: str) -> None:
    """None, a False in `present` and a missing key are one thing, and the absent loss's value is nothing."""
    torch.manual_seed(5)
    names = tuple("abc")
    trained, problem = row.make(tasks=names), Problem()
    problem.train(trained, where, range(2))
    present = torch.tensor([True, False, True])
    calls = {
        "none": lambda ls: (([ls[0], None, ls[2]],), {}),
        "key": lambda ls: (({"a": ls[0], "c": ls[2]},), {}),
        "mask": lambda ls: ((torch.stack(ls),), {"present": present}),
        "other value": lambda ls: ((torch.stack([ls[0], ls[1] * 1e6, ls[2]]),), {"present": [True, False, True]}),
        "nan": lambda ls: ((torch.stack([ls[0], (ls[1] * torch.nan).detach(), ls[2]]),), {"present": present}),
    }
    results = {}
    for name, call in calls.items():
        balancer = copy.deepcopy(trained)
        losses, features = problem.losses(2)
        args, options = call(losses)
        scalar = balancer(*args, shared=problem.shared(where, features), **options)
        found = problem.gradients(scalar, balancer)
        assert found["heads.1.weight"].abs().max() == 0
        assert balancer.weights[1] == 0
        results[name] = {**found, "scalar": scalar.detach(), **balancer.state_dict()}
    for found in results.values():
        close(found, results["none"])
    with pytest.raises(ValueError, match="at least one task present"):
        trained([None, None, None], shared=problem.shared(where, features))


@each
def test_only_task_present(row: Row, where: str) -> None:
    balancer, problem = warm(row, where)
    losses, features = problem.losses()
    found = problem.gradients(balancer([None, losses[1], None], problem.shared(where, features)), balancer)
    assert all(torch.isfinite(g).all() for g in found.values())
    assert balancer.weights[[0, 2]].abs().max() == 0


@each
def test_resume_is_exact(row: Row, where: str) -> None:
    """2n steps equal n steps, save, load into a fresh object (other seed), n more: to the bit, weights_only."""
    balancer, problem = warm(row, where, steps=3)
    file = io.BytesIO()
    torch.save(balancer.state_dict(), file)
    file.seek(0)
    torch.manual_seed(77)
    fresh, again = row.make(), problem.clone()
    fresh.load_state_dict(torch.load(file, weights_only=True))
    trace = problem.train(balancer, where, range(3, 7))
    other = again.train(fresh, where, range(3, 7))
    assert all(torch.equal(a, b) for a, b in zip(trace, other, strict=True))
    same(again.net.state_dict(), problem.net.state_dict())
    same(fresh.state_dict(), balancer.state_dict())


@each
def test_copies_go_on_alike(row: Row, where: str) -> None:
    balancer, problem = warm(row, where)
    copies = [copy.deepcopy(balancer), pickle.loads(pickle.dumps(balancer))]
    problems = [problem.clone() for _ in copies]
    problem.train(balancer, where, range(3, 5))
    for twin, twin_problem in zip(copies, problems, strict=True):
        twin_problem.train(twin, where, range(3, 5))
        same(twin_problem.net.state_dict(), problem.net.state_dict())
        same(twin.state_dict(), balancer.state_dict())


@each
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_low_precision(row: Row, where: str, dtype: torch.dtype) -> None:
    torch.manual_seed(5)
    balancer, problem = row.make(), Problem(dtype=dtype)
    exact, reference = copy.deepcopy(balancer), Problem()
    problem.train(balancer.to(dtype), where, range(3))
    state = [t for t in balancer.state_dict().values() if t.is_floating_point()]
    assert all(t.dtype in (torch.float32, torch.float64) for t in state)
    reference.train(exact, where, range(3))
    pairs = list(zip(problem.net.parameters(), reference.net.parameters(), strict=True))
    assert all(torch.isfinite(p).all() and p.dtype == dtype for p, _ in pairs)
    difference = [(p.double() - q).abs().max() for p, q in pairs]
    assert max(difference) < (1e-4 if dtype == torch.float32 else 0.2)


@each
def test_moves_whole(row: Row, where: str) -> None:
    balancer, _ = warm(row, where)
    moved = copy.deepcopy(balancer).to("meta")
    assert all(t.is_meta for t in [*moved.parameters(), *moved.buffers()])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@each
def test_on_gpu_without_sync(row: Row, where: str) -> None:
    torch.manual_seed(5)
    balancer, problem = row.make(), Problem()
    twin, reference = copy.deepcopy(balancer), problem.clone()
    balancer.cuda(), problem.net.cuda()
    problem.x, problem.y = problem.x.cuda(), problem.y.cuda()
    problem.train(balancer, where, range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own: the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        losses, features = problem.losses(2)
        balancer(losses, problem.shared(where, features)).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    reference.train(twin, where, range(2))
    for p, q in zip(problem.net.parameters(), reference.net.parameters(), strict=True):
        close(p.detach().cpu(), q.detach(), 1e-6)


@each
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_bad_loss(row: Row, where: str, bad: float) -> None:
    for rule in ("raise", "skip"):
        torch.manual_seed(5)
        balancer, problem = row.make(tasks=tuple("abc"), on_nonfinite=rule), Problem()
        problem.train(balancer, where, range(2))
        before = copy.deepcopy(balancer.state_dict())
        losses, features = problem.losses()
        problem.clear(balancer)
        given: Any = [losses[0], losses[1] * bad, losses[2]]
        if rule == "raise":
            with pytest.raises(ValueError, match="task 'b'"):
                balancer(given, problem.shared(where, features))
        else:
            (balancer(given, problem.shared(where, features)) * 8).backward()
            assert balancer.skipped
            assert all(g.abs().max() == 0 for g in problem.left(balancer).values())
        same(balancer.state_dict(), before)
        scalar = problem.scalar(balancer, where, 1)  # and the next step is an ordinary one
        assert torch.isfinite(scalar) and not balancer.skipped


@each
def test_evaluation_changes_nothing(row: Row, where: str) -> None:
    balancer, problem = warm(row, where)
    before = copy.deepcopy(balancer.state_dict())
    balancer.eval()
    problem.scalar(balancer, where)
    same(balancer.state_dict(), before)


@each
def test_validation_without_gradients_needs_no_shared(row: Row, where: str) -> None:
    """A trainer's validation step has no graph; the scalar has the value it would have with one."""
    balancer, problem = warm(row, where)
    balancer.eval()
    before = copy.deepcopy(balancer.state_dict())
    with torch.no_grad():
        losses, _ = problem.losses()
        scalar = balancer(losses)
    same(balancer.state_dict(), before)
    assert scalar.shape == () and torch.isfinite(scalar)
    assert balancer.weights.abs().max() > 0
    if not balancer.needs_shared:
        close(scalar, problem.scalar(balancer, where).detach())
    elif getattr(balancer, "heads", None) == "sum":
        close(scalar, torch.stack(losses).sum())
    elif getattr(balancer, "heads", None) == "weighted":
        close(scalar, torch.dot(balancer.weights.double(), torch.stack(losses)))


@pytest.mark.parametrize("row", LOSS_ONLY, ids=str)
def test_compiles_whole_and_once(row: Row) -> None:
    """No graph break, no second compilation, the same numbers."""
    torch._dynamo.reset()
    torch.manual_seed(5)
    balancer = row.make()
    twin = copy.deepcopy(balancer)
    problem = Problem(dtype=torch.float32)
    reference = problem.clone()
    compiled = torch.compile(lambda losses: balancer(losses), fullgraph=True, backend="aot_eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about its compiler
        for step in range(4):
            if step % 2 == 0:
                balancer.start_epoch(), twin.start_epoch()
            scalar = compiled(problem.losses(step)[0])
            plain = twin(reference.losses(step)[0])
            close(scalar.detach(), plain.detach(), 1e-5)
            close(problem.gradients(scalar, balancer), reference.gradients(plain, twin), 1e-5)
            for one, other in ((balancer, problem), (twin, reference)):
                with torch.no_grad():
                    for p in [*other.net.parameters(), *one.parameters()]:
                        if p.grad is not None:
                            p -= 0.02 * p.grad
                if one.needs_after_step:
                    one.after_step(other.losses(step)[0])
            if step == 1:
                torch.compiler.set_stance("fail_on_recompile")
    torch.compiler.set_stance("default")
    close(balancer.weights, twin.weights, 1e-5)
