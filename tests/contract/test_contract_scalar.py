"""Whatever a trainer does to the scalar stays right, and what a method declares holds, row by row."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from contract.table import CASES, IDS, Problem, Row, close, same, warm

each = pytest.mark.parametrize(("row", "where"), CASES, ids=IDS)


@each
def test_scaled_scalar(row: Row, where: str) -> None:
    balancer, problem = warm(row, where)
    twin = copy.deepcopy(balancer)
    plain = problem.gradients(problem.scalar(balancer, where), balancer)
    scaled = problem.gradients(problem.scalar(twin, where) * 65536, twin)
    same(scaled, {name: g * 65536 for name, g in plain.items()})
    same(twin.state_dict(), balancer.state_dict())


@each
def test_accumulation(row: Row, where: str) -> None:
    """Two micro-batches, each scalar halved: the mean of what the two calls leave alone."""
    balancer, problem = warm(row, where)
    twin = copy.deepcopy(balancer)
    first = problem.gradients(problem.scalar(twin, where, 0), twin)
    second = problem.gradients(problem.scalar(twin, where, 1), twin)
    problem.clear(balancer)
    for step in range(2):
        (problem.scalar(balancer, where, step) / 2).backward()
    close(problem.left(balancer), {name: (first[name] + second[name]) / 2 for name in first})
    same(balancer.state_dict(), twin.state_dict())


@each
def test_other_terms_keep_their_gradient(row: Row, where: str) -> None:
    balancer, problem = warm(row, where)
    twin = copy.deepcopy(balancer)
    alone = problem.gradients(problem.scalar(twin, where), twin)
    term = lambda f: f.square().mean() + sum(p.pow(3).sum() for p in problem.net.parameters())  # noqa: E731
    extra = problem.gradients(term(problem.losses()[1]), twin)
    losses, features = problem.losses()
    both = problem.gradients(balancer(losses, problem.shared(where, features)) + term(features), balancer)
    close(both, {name: alone[name] + extra[name] for name in alone})


@each
def test_two_scalars_and_a_dropped_one(row: Row, where: str) -> None:
    balancer, problem = warm(row, where)
    twin = copy.deepcopy(balancer)
    first = problem.gradients(problem.scalar(twin, where, 0), twin)
    second = problem.gradients(problem.scalar(twin, where, 1), twin)
    both = problem.scalar(balancer, where, 0) + problem.scalar(balancer, where, 1)
    close(problem.gradients(both, balancer), {name: first[name] + second[name] for name in first})
    losses, features = problem.losses()
    balancer(losses, problem.shared(where, features))  # dropped
    found = problem.gradients(torch.stack(losses).sum(), balancer)
    same(found, problem.gradients(torch.stack(problem.losses()[0]).sum(), twin))


def _rescaled(row: Row, where: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The network after a few steps, plainly and with each loss multiplied by a constant of its own."""
    ends = []
    for factors in ([1.0, 1.0, 1.0], [4.0, 0.25, 1024.0]):
        torch.manual_seed(5)
        balancer, problem = row.make(), Problem()
        problem.train(balancer, where, range(4), lambda ls, f=factors: [c * x for c, x in zip(f, ls, strict=True)])
        ends.append(dict(problem.net.state_dict()))
    return ends[0], ends[1]


@each
def test_declared_scale_invariance(row: Row, where: str) -> None:
    """Declared exactly where it holds."""
    plain, scaled = _rescaled(row, where)
    invariant = all(torch.allclose(plain[n], scaled[n], rtol=1e-6, atol=1e-8) for n in plain)
    assert invariant == row.make().scale_invariant


@each
def test_declared_permutation_equivariance(row: Row, where: str) -> None:
    """Declared exactly where it holds: reordered tasks, reordered weights, the same network."""
    order = [2, 0, 1]
    ends, traces = [], []
    for take in ([0, 1, 2], order):
        torch.manual_seed(5)
        balancer, problem = row.make(), Problem()
        traces.append(problem.train(balancer, where, range(4), lambda ls, t=take: [ls[i] for i in t]))
        ends.append(problem.net.state_dict())
    equivariant = all(torch.allclose(ends[0][n], ends[1][n], rtol=1e-7, atol=1e-9) for n in ends[0])
    equivariant &= all(torch.allclose(a[order], b, rtol=1e-6, atol=1e-8) for a, b in zip(*traces, strict=True))
    assert equivariant == (row.make().permutation_equivariant or not row.order_shows)
