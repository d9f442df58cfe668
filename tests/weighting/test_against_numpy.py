"""Every loss-only method against a slow reference in numpy, written from its formulas, over random runs.

A run has tasks that come and go, epochs, second looks and large scales. Each reference is a generator that is sent
(losses, present, epoch begins) and yields (value, weights); FAMO's is also sent the losses after the step.
"""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp, softmax

import equipoise as eq
from equipoise.random import normal


class Reference:
    """`step(ls, here, begins)` -> value and weights; `ls` and `here` of all K tasks, weights 0 where absent."""

    def __init__(self, k):
        self.k = k
        self.t = -1
        self.start()

    def start(self):
        pass

    def __call__(self, ls, here, begins):
        self.t += 1
        value, at = self.step(ls[here], np.flatnonzero(here), begins)
        weights = np.zeros(self.k)
        weights[here] = at
        return value, weights


class LS(Reference):
    def step(self, ls, at, begins):
        return ls.sum(), np.ones(len(ls))


class STL(Reference):
    def step(self, ls, at, begins):
        return ls[at == 0].sum(), (at == 0).astype(float)


class SI(Reference):
    def step(self, ls, at, begins):
        return np.log(ls).sum(), 1 / ls


class GLS(Reference):
    def step(self, ls, at, begins):
        value = ls.prod() ** (1 / len(ls))
        return value, value / (len(ls) * ls)


class RLW(Reference):
    def step(self, ls, at, begins):
        z = normal(torch.tensor(3), torch.tensor(self.t), (self.k,), torch.float64).numpy()[at]
        return softmax(z) @ ls, softmax(z)


class DWA(Reference):
    def start(self):
        self.epochs = [[] for _ in range(self.k)]  # of each task, the losses of each epoch it was in
        self.open = np.zeros(self.k, bool)

    def step(self, ls, at, begins):
        if begins:
            self.open[:] = False
        ratio = []
        for i in at:
            done = self.epochs[i][: len(self.epochs[i]) - self.open[i]]
            ratio.append(np.mean(done[-1]) / np.mean(done[-2]) if len(done) >= 2 else 1.0)
        for i, x in zip(at, ls, strict=True):
            if not self.open[i]:
                self.epochs[i].append([])
                self.open[i] = True
            self.epochs[i][-1].append(x)
        weights = len(ls) * softmax(np.array(ratio) / 2)
        return weights @ ls, weights


class UW(Reference):
    def step(self, ls, at, begins):
        s = 0.3
        return 0.5 * (np.exp(-s) * ls + s).sum(), np.full(len(ls), 0.5 * np.exp(-s))


class GO4Align(Reference):
    groups, rate = 2, 0.005

    def start(self):
        self.p = np.full(self.k, 1 / self.k)

    def step(self, ls, at, begins):
        mass = self.p[at].sum()
        p = self.p[at] * np.exp(-self.rate * (ls - ls.min()))
        self.p[at] = p = mass * (p / p.sum())
        x = ls.sum() / ls * p
        weights = best_groups(x, self.groups)
        return weights @ ls, weights


class GO4AlignFour(GO4Align):
    groups = 4


def best_groups(x, groups):
    """Every way to cut the sorted values into at most `groups` runs; the least squared error wins."""
    order, best = np.argsort(x), None
    for count in range(min(groups, len(x))):
        for cuts in combinations(range(1, len(x)), count):
            means = np.concatenate([np.full(len(run), run.mean()) for run in np.split(x[order], cuts)])
            error = (((x[order] - means) / x.max()) ** 2).sum()
            if best is None or error < best[0] * (1 - 1e-9):
                best = error, means
    result = np.empty_like(x)
    result[order] = best[1]
    return result


class STCH(Reference):
    mu, warmup = 0.5, 1

    def start(self):
        self.epoch = -1
        self.seen = [[] for _ in range(self.k)]

    def step(self, ls, at, begins):
        self.epoch += begins
        for i, x in zip(at, ls, strict=True):
            if self.epoch == self.warmup or (self.epoch > self.warmup and not self.seen[i]):
                self.seen[i].append(x)
        if self.epoch <= self.warmup:
            return np.log(ls).sum(), 1 / ls
        y = np.log(ls / [np.mean(self.seen[i]) for i in at]) / self.mu
        return self.mu * len(ls) * logsumexp(y), len(ls) * softmax(y) / ls


class FAMO(Reference):
    gamma, lr = 0.01, 0.025

    def start(self):
        self.w, self.m, self.v, self.n = (np.zeros(self.k) for _ in range(4))
        self.before = None

    def step(self, ls, at, begins):
        z = softmax(self.w[at])
        d = ls + 1e-8
        c = (z / d).sum()
        self.before = dict(zip(at, d, strict=True))
        return z @ np.log(d) / c, z / d / c

    def after(self, ls, here):
        at = [i for i in np.flatnonzero(here) if self.before and i in self.before]
        if not at:
            return
        delta = np.log([self.before[i] for i in at]) - np.log(ls[at] + 1e-8)
        z = softmax(self.w[at])
        g = z * (delta - z @ delta) + self.gamma * self.w[at]
        self.n[at] += 1
        self.m[at] = 0.9 * self.m[at] + 0.1 * g
        self.v[at] = 0.999 * self.v[at] + 0.001 * g**2
        mean, deviation = self.m[at] / (1 - 0.9 ** self.n[at]), np.sqrt(self.v[at] / (1 - 0.999 ** self.n[at]))
        self.w[at] -= self.lr * mean / (deviation + 1e-8)
        self.before = None


class FAMONext(FAMO):
    """The next batch's losses stand in for the second look."""

    def __call__(self, ls, here, begins):
        if self.before is not None:
            self.after(ls, here)
        return super().__call__(ls, here, begins)


TABLE = {
    "ls": ("ls", {}, LS),
    "stl": ("stl", {"task": 0}, STL),
    "si": ("si", {}, SI),
    "gls": ("gls", {}, GLS),
    "rlw": ("rlw", {"seed": 3}, RLW),
    "dwa": ("dwa", {}, DWA),
    "uw": ("uw", {"init": 0.3}, UW),
    "go4align": ("go4align", {"step": 0.005}, GO4Align),
    "go4align-4": ("go4align", {"step": 0.005, "groups": 4}, GO4AlignFour),
    "stch": ("stch", {"mu": 0.5, "warmup": 1}, STCH),
    "famo": ("famo", {}, FAMO),
    "famo-next": ("famo", {"second_look": "next"}, FAMONext),
}


@st.composite
def runs(draw):
    """K, and steps of (losses, present, losses after, whether an epoch begins)."""
    k = draw(st.integers(1, 6))
    loss = st.integers(-2000, 2000).map(lambda n: 10.0 ** (n / 500))
    row = st.lists(loss, min_size=k, max_size=k).map(np.array)
    here = st.lists(st.sampled_from([True, True, True, False]), min_size=k, max_size=k).map(np.array)
    step = st.tuples(row, here.filter(any), row, here.filter(any), st.sampled_from([False, False, True]))
    return k, draw(st.lists(step, min_size=1, max_size=8))


@pytest.mark.parametrize("name", TABLE)
@settings(max_examples=40, deadline=None)
@given(run=runs())
def test_against_numpy(name, run):
    k, steps = run
    method, options, reference = TABLE[name]
    balancer, slow = eq.make(method, k, **options).double(), reference(k)
    for number, (losses, here, after, here_after, begins) in enumerate(steps):
        if begins:
            balancer.start_epoch()
        leaf = torch.tensor(losses, requires_grad=True)
        scalar = balancer(leaf, present=None if here.all() else torch.tensor(here))
        scalar.backward()
        value, weights = slow(losses, here, begins or number == 0)
        scale = np.abs(weights * losses).sum() + abs(value)
        np.testing.assert_allclose(scalar.item(), value, rtol=1e-6, atol=1e-9 * scale)
        np.testing.assert_allclose(leaf.grad, weights, rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(balancer.weights, weights, rtol=1e-6, atol=1e-12)
        if balancer.needs_after_step:
            balancer.after_step(torch.tensor(after), present=torch.tensor(here_after))
            slow.after(after, here_after)
