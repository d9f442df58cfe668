"""The methods that need no more than the Gram matrix, against exact solutions of their equations."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import equipoise as eq
from gradient.gram_cases import CASES, agree, cases, each_size, regularised, take
from gradient.helpers import oracle, step


@each_size
@pytest.mark.parametrize("where", ["parameters", "features"])
def test_mgda(tasks: int, where: str) -> None:
    exact = oracle("mgda")[f"K{tasks}__exact__d"]
    for case in cases(tasks):
        balancer = eq.MGDA(tasks)
        found, heads, said = take(balancer, case, where)
        agree(found, tasks * exact[case.index], case)
        assert balancer.status["residual"] < 1e-9 and not said
        assert bool(balancer.status["stationary"]) == (exact[case.index].norm() < 1e-9 * case.longest)
        moving = case.jacobian.norm(dim=1) > 0
        torch.testing.assert_close(heads, torch.where(moving, balancer.weights, 1.0))
        assert heads.min() >= 0
        plain, ones, _ = take(eq.MGDA(tasks, heads="sum"), case, where)
        assert torch.equal(plain, found) and torch.equal(ones, torch.ones_like(ones))


@each_size
@pytest.mark.parametrize("normalize", ["l2", "loss"])
def test_mgda_normalised(tasks: int, normalize: Any) -> None:
    """w is the min-norm point of the divided gradients, the step is made of the gradients themselves."""
    for case in cases(tasks):
        scale = case.jacobian.norm(dim=1) if normalize == "l2" else case.losses
        scale = torch.where(scale > 0, scale, 1.0).unsqueeze(1)
        divided = case._replace(jacobian=case.jacobian / scale)
        if normalize == "l2" and case.kind == "zero":
            continue  # a zero gradient has no direction: it has left
        plain = eq.MGDA(tasks)
        take(plain, divided)
        balancer = eq.MGDA(tasks, normalize=normalize)
        found, _, _ = take(balancer, case)
        agree(divided.jacobian.T @ balancer.weights, divided.jacobian.T @ plain.weights, divided)
        agree(found, case.jacobian.T @ balancer.weights, case)


@each_size
def test_pcgrad(tasks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = oracle("pcgrad")
    for case in cases(tasks):
        order = torch.from_numpy(expected[f"K{tasks}__perms"][case.index]).long()
        monkeypatch.setattr("equipoise.gradient.pcgrad.permutation", lambda *_, order=order: order)
        balancer = eq.PCGrad(tasks, seed=0)
        found, heads, _ = take(balancer, case)
        agree(found, expected[f"K{tasks}__noself__d"][case.index], case)
        assert torch.equal(heads, torch.ones_like(heads))


def test_pcgrad_draws_an_order_a_step() -> None:
    """Orders differ from step to step and seed to seed, not from run to run, and in conflict they show."""
    case = list(cases(11))[CASES["names_K11"].tolist().index("conflict")]
    one, again, other = eq.PCGrad(11, seed=1), eq.PCGrad(11, seed=1), eq.PCGrad(11, seed=2)
    runs = [[take(balancer, case)[0] for _ in range(3)] for balancer in (one, again, other)]
    assert all(torch.equal(a, b) for a, b in zip(runs[0], runs[1], strict=True))
    distinct = {tuple(vector.tolist()) for vector in [*runs[0], *runs[2]]}
    assert len(distinct) == 6


@each_size
@pytest.mark.parametrize("c", [0.2, 0.4, 0.8])
def test_cagrad(tasks: int, c: float) -> None:
    expected = oracle("cagrad")
    status = expected[f"K{tasks}__c{c}__exact_status"]
    for case in cases(tasks):
        balancer = eq.CAGrad(tasks, c=c)
        found, heads, said = take(balancer, case)
        degenerate = status[case.index] != "ok" and case.kind != "zero"  # a zero gradient leaves
        assert regularised(balancer, said) == degenerate
        if degenerate:
            agree(found, case.jacobian.sum(0) / (1 + c * c), case)
        elif case.kind != "zero":
            agree(found, tasks * expected[f"K{tasks}__c{c}__exact_d"][case.index] / (1 + c * c), case)
        assert torch.equal(heads, torch.ones_like(heads))


def test_cagrad_rescale() -> None:
    case = next(cases(5))
    d = 5 * oracle("cagrad")["K5__c0.4__exact_d"][0]
    for rescale, divisor in ((0, 1.0), (1, 1.16), (2, 1.4)):
        agree(take(eq.CAGrad(5, rescale=rescale), case)[0], d / divisor, case)
    agree(take(eq.CAGrad(5, c=0.0), case)[0], case.jacobian.sum(0), case)


@each_size
def test_imtlg(tasks: int) -> None:
    exact = oracle("imtlg")[f"K{tasks}__exact__w"]
    for case in cases(tasks):
        balancer = eq.IMTLG(tasks, heads="weighted")
        found, heads, said = take(balancer, case)
        assert not regularised(balancer, said)
        moving = case.jacobian.norm(dim=1) > 0
        if not exact[case.index].isnan().any():
            agree(found, case.jacobian.T @ exact[case.index], case)
            torch.testing.assert_close(heads, exact[case.index], rtol=1e-6, atol=1e-6)
        units = case.jacobian[moving] / case.jacobian[moving].norm(dim=1, keepdim=True)
        projections = units @ found
        assert projections.max() - projections.min() < 1e-9 * case.longest
        assert balancer.weights.sum().item() == pytest.approx(1.0)
        _, plain, _ = take(eq.IMTLG(tasks), case)
        assert torch.equal(plain, torch.ones_like(plain))


@each_size
@pytest.mark.parametrize("where", ["parameters", "features"])
def test_nashmtl(tasks: int, where: str) -> None:
    exact = oracle("nashmtl")[f"K{tasks}__exact__alpha"]
    for case in cases(tasks):
        free, clipped = eq.NashMTL(tasks, max_norm=None), eq.NashMTL(tasks)
        found, heads, said = take(free, case, where)
        short, same_heads, _ = take(clipped, case, where)
        degenerate = exact[case.index].isnan().any().item() and case.kind != "zero"
        assert regularised(free, said) == degenerate
        assert torch.equal(heads, same_heads)
        size = found.norm().item()
        agree(short, found * min(1.0, 1 / (size + 1e-6)), case._replace(jacobian=found[None]))
        assert torch.isfinite(found).all()
        if not degenerate and case.kind != "zero":
            torch.testing.assert_close(heads, exact[case.index], rtol=1e-6, atol=0)
            agree(found, case.jacobian.T @ exact[case.index], case)
            assert size == pytest.approx(tasks**0.5, rel=1e-6)


@pytest.mark.parametrize("tasks", [2, 3, 5, 11])
@pytest.mark.parametrize("every", [1, 3])
def test_nashmtl_over_steps(tasks: int, every: int) -> None:
    inputs, expected = oracle("seq_inputs"), oracle("nashmtl_seq")[f"K{tasks}__exact_alpha"]
    balancer = eq.NashMTL(tasks, every=every).double()
    for t in range(len(expected)):
        jacobian = inputs[f"K{tasks}__J"][t]
        if expected[t].isnan().any():
            continue  # a zero gradient
        solved = expected[t - t % every]
        found, heads = step(balancer, jacobian, inputs[f"K{tasks}__losses"][t])
        torch.testing.assert_close(heads, solved, rtol=1e-6, atol=0)
        d = jacobian.T @ solved
        torch.testing.assert_close(found, d * min(1.0, 1 / (d.norm().item() + 1e-6)), rtol=1e-6, atol=1e-9)


@each_size
@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
def test_fairgrad(tasks: int, alpha: float) -> None:
    exact = oracle("fairgrad")[f"K{tasks}__a{alpha}__exact__w"]
    for case in cases(tasks):
        balancer = eq.FairGrad(tasks, alpha=alpha)
        found, heads, said = take(balancer, case)
        degenerate = exact[case.index].isnan().any().item() and case.kind != "zero"
        assert regularised(balancer, said) == degenerate
        assert torch.isfinite(found).all() and torch.equal(heads, torch.ones_like(heads))
        if not degenerate and case.kind != "zero":
            torch.testing.assert_close(balancer.weights, tasks * exact[case.index], rtol=1e-6, atol=0)
            agree(found, tasks * case.jacobian.T @ exact[case.index], case)


def test_fairgrad_clips() -> None:
    case = next(cases(5))
    found, _, _ = take(eq.FairGrad(5, max_norm=0.25), case)
    whole, _, _ = take(eq.FairGrad(5), case)
    agree(found, whole * 0.25 / whole.norm(), case, 1e-5)


@each_size
def test_no_solution_is_regularised(tasks: int) -> None:
    """Two opposite gradients: the weights solve G + delta tr(G) / K I instead."""
    opposite = list(cases(tasks))[CASES[f"names_K{tasks}"].tolist().index("opposite")]
    gram = opposite.jacobian @ opposite.jacobian.T
    gram = gram + 1e-8 * gram.trace() / tasks * torch.eye(tasks, dtype=torch.float64)
    nash = eq.NashMTL(tasks, max_norm=None)
    _, _, said = take(nash, opposite)
    assert len(said) == 1 and "NashMTL has no solution" in said[0]
    torch.testing.assert_close(gram @ nash.alpha, 1 / nash.alpha, rtol=1e-6, atol=0)
    _, _, said = take(nash, opposite)
    assert not said and bool(nash.status["regularised"])  # said once
    fair = eq.FairGrad(tasks)
    take(fair, opposite)
    w = fair.weights / tasks
    torch.testing.assert_close(gram @ w, w**-0.5, rtol=1e-6, atol=0)


@each_size
def test_upgrad_dualproj_alignedmtl_config(tasks: int) -> None:
    expected = oracle("aligned_upgrad_dualproj_config")
    for case in cases(tasks):
        at = case.index
        rows = case.jacobian.T * tasks
        if case.kind != "tiny":  # the reference takes gradients this small as zero
            agree(take(eq.UPGrad(tasks), case)[0], rows @ expected[f"K{tasks}__upgrad__w"][at], case)
            agree(take(eq.DualProj(tasks), case)[0], rows @ expected[f"K{tasks}__dualproj__w"][at], case)
        for scale in ("min", "median", "rmse"):
            balancer = eq.AlignedMTL(tasks, scale=scale)
            agree(take(balancer, case)[0], rows @ expected[f"K{tasks}__aligned_{scale}__w"][at], case)
            full = expected[f"K{tasks}__aligned__rank"][at] == tasks - (case.kind == "zero")
            assert bool(balancer.status["regularised"]) != full
        balancer = eq.ConFIG(tasks)
        found, _, said = take(balancer, case)
        degenerate = bool(expected[f"K{tasks}__config__degenerate"][at])
        assert regularised(balancer, said) == degenerate
        agree(found, torch.zeros_like(found) if degenerate else expected[f"K{tasks}__config__d"][at], case)
