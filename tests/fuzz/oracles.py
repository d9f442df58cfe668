"""What a method's first step must leave, by numpy and by the conditions that define its answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import equipoise as eq
from contract.table import Row
from equipoise.random import normal, permutation
from fuzz.problem import Case
from ldc.reference import ldc

Array = Any


def loss_weights(row: Row, balancer: eq.Balancer, v: Array, at: Array) -> Array | None:
    """The factor of each present loss, where it follows from the values alone."""
    n, name = len(v), row.name
    if name in ("ls", "stl"):
        fixed = balancer.fixed if name == "ls" else balancer.chosen
        return fixed.double().numpy()[at]
    if name in ("si", "stch"):
        return 1 / v
    if name == "gls":
        return np.exp(np.log(v).mean()) / (n * v)
    if name == "rlw":
        z = np.exp(normal(balancer.seed, torch.tensor(0), (balancer.num_tasks,), torch.float64).numpy()[at])
        return z / z.sum()
    if name == "dwa":
        return np.ones(n)
    if name == "uw":
        return np.full(n, 0.5)
    if name == "famo":
        ratio = 1 / (v + 1e-8)
        return ratio / ratio.sum()
    if name in ("ldc", "ldc-double") and row.options.get("pairs") != "shuffle":
        return ldc_weights(row, balancer, v)
    return None


def ldc_weights(row: Row, balancer: eq.LDC, v: Array) -> Array | None:
    keys = ("router_objective", "tau", "normalize", "pairs", "smooth", "floor")
    options = {key: row.options[key] for key in keys if key in row.options}
    if row.name == "ldc-double":
        options["router_objective"] = "both"
    logits = np.zeros(len(v)) if balancer.router is None else balancer.router.logits.detach().double().numpy()[: len(v)]
    router = row.options.get("router", "softmax")
    factors = {"g_factor": balancer.g_factor, "f_factor": balancer.f_factor}
    answer = ldc(v, logits, router_name=router, divide=balancer.divide, **factors, **options)
    how = options.get("normalize", "rescale")  # all n are 1 or 0 at first, or equal up to rounding, or the losses
    tied = how == "ratio" or (how is None and not options.get("smooth") and answer.closest < 1e-4 * np.abs(v).max())
    return None if tied else answer.dl


def check(row: Row, where: str, case: Case, balancer: eq.Balancer, shared: Array, weights: Array) -> None:
    """The shared gradient and the reported weights of a first step."""
    at = np.flatnonzero(case.here)
    jacobian, v = case.jacobian.double().numpy()[at], case.values.double().numpy()[at]
    tolerance = 2e-4 if case.values.dtype == torch.float32 else 1e-6  # weights are reported in float32
    assert (np.delete(weights, at) == 0).all()
    w = weights[at]
    if where == "losses":
        expected = loss_weights(row, balancer, v, at)
        if expected is not None:
            close(shared, expected @ jacobian, np.abs(expected) @ np.abs(jacobian), tolerance)
        elif row.name == "go4align" and v.max() <= 10:  # larger losses move the shares in one step
            x = v.sum() / v / len(case.here)
            assert abs(w.sum() - x.sum()) <= 1e-3 * x.sum()
            assert (np.diff(w[np.argsort(x)]) >= -1e-5 * x.max()).all()
        return
    if row.name not in ("graddrop", "moco", "dbmtl"):
        least = 1e-37 + 1e-43 * np.abs(jacobian).sum()  # weights are reported in float32
        close(shared, w @ jacobian, np.abs(w) @ np.abs(jacobian), tolerance, least)
    norms = np.linalg.norm(jacobian, axis=1)
    if norms.max() == 0:
        close(shared, 0 * shared, 0 * shared, tolerance)
        return
    moving = norms > 0
    if norms[moving].min() > 1e-4 * norms.max():
        gradients(row, where, case, balancer, shared / norms.max(), w, jacobian / norms.max(), v, at, norms.max())


def close(found: Array, expected: Array, size: Array, tolerance: float, least: float = 1e-37) -> None:
    """Entries agree, relative to the terms they are sums of, where those fit the type at all."""
    fits = size < (1e37 if tolerance > 1e-5 else 1e306)
    most = tolerance * (size[fits] + 1e-12 * size.max()) + least
    assert (np.abs(found - expected)[fits] <= most).all(), (found, expected)


def gradients(
    row: Row, where: str, case: Case, balancer: eq.Balancer, d: Array, w: Array, jacobian: Array, v: Array, at: Array,
    unit: float,
) -> None:  # fmt: skip
    """The conditions a direction must meet, with gradients and direction in units of the longest gradient."""
    n, gram = len(v), jacobian @ jacobian.T
    tolerance = 1e-3 if case.values.dtype == torch.float32 else 1e-6
    longest = np.abs(d).max() + 1.0
    active = gram.diagonal() > 0
    independent = np.linalg.matrix_rank(jacobian[active], 1e-3) == active.sum()
    degenerate = bool(balancer.status.get("regularised", torch.tensor(False)).any())
    if row.name == "mgda":
        share = w / n
        if row.options.get("normalize") == "loss" and v.max() > 1e4 * v.min():
            return  # the divided gradients are then of sizes whose squares float64 does not tell from 0
        if not active.all() and row.options.get("normalize") != "l2":
            assert np.abs(d).max() <= tolerance  # a task without gradient stops the others
            return
        assert share.min() >= -1e-9 and abs(share.sum() - 1) < 1e-5
        if not row.options.get("normalize"):
            least = share @ jacobian
            assert (jacobian @ least >= least @ least - tolerance).all()
    elif row.name in ("upgrad", "dualproj"):
        assert (jacobian @ d >= -2e-3 * longest * n).all()  # the ridge is 1e-4
    elif row.name == "imtl-g" and not degenerate and independent:
        units = jacobian[active] / np.sqrt(gram.diagonal()[active])[:, None]
        assert abs(w.sum() - 1) < 1e-3 * np.abs(w).sum() and np.ptp(units @ d) < tolerance * longest * np.abs(w).sum()
    elif row.name == "config" and not degenerate and independent:
        units = jacobian[active] / np.sqrt(gram.diagonal()[active])[:, None]
        assert np.ptp(units @ d) < tolerance * longest * n
    elif row.name == "cagrad" and not degenerate:
        c = row.options.get("c", 0.4)
        divisor = 1.0 if row.options.get("rescale", 1) == 0 else 1 + c * c
        size = active.sum()
        mean, found = jacobian.sum(0) / size, d * divisor / size
        assert np.linalg.norm(found - mean) <= c * np.linalg.norm(mean) + tolerance
        assert (jacobian @ found)[active].min() >= (jacobian @ mean)[active].min() - tolerance
    elif row.name == "nash-mtl" and not row.options and not degenerate:
        assert np.linalg.norm(d * unit) <= 1 + 1e-4
    elif row.name == "fairgrad" and not row.options and not degenerate and independent:
        share = w[active] / n * unit ** (4 / 3)  # w goes by the power -2 alpha / (1 + alpha) of the gradients
        pull = gram[np.ix_(active, active)] @ share
        assert np.allclose(pull * np.sqrt(share), 1, atol=1e-2)
    elif row.name == "pcgrad":
        order = permutation(balancer.seed, torch.tensor(0), (len(case.here),) * 2).numpy()
        expected = sum(projected(i, order[at[i]], jacobian, at) for i in range(n))
        assert np.abs(d - expected).max() <= tolerance * longest * n
    elif row.name == "graddrop" and "leak" not in row.options:
        up, down = np.maximum(jacobian, 0).sum(0), np.minimum(jacobian, 0).sum(0)
        assert np.minimum(np.abs(d - up), np.abs(d - down)).max() <= tolerance * n
    elif row.name == "gradnorm":
        assert np.allclose(w[active], 1, atol=1e-5)
    elif row.name == "dbmtl" and v.max() < 1e15:
        h = jacobian / v[:, None]
        sizes = np.linalg.norm(h, axis=1)
        expected = (h[active] / sizes[active, None]).sum(0) * sizes.max() * (0.1 if where == "parameters" else 1.0)
        assert np.abs(d - expected).max() <= tolerance * sizes.max() * n
    elif row.name == "moco" and not row.options and unit < 1e3 and n == len(case.here):
        share = onto_simplex(1 / n - 0.1 * (0.25 if where == "parameters" else 0.5) * unit**2 * gram @ np.ones(n) / n)
        assert np.abs(d - share @ jacobian * (0.5 if where == "parameters" else 1.0)).max() <= tolerance


def projected(task: int, order: Array, jacobian: Array, at: Array) -> Array:
    """A gradient, each projection taken off in turn."""
    g = jacobian[task].copy()
    place = {int(t): i for i, t in enumerate(at)}
    for other in order:
        i = place.get(int(other))
        if i is None or i == task or not jacobian[i].any():
            continue
        g -= min(0.0, g @ jacobian[i]) / (jacobian[i] @ jacobian[i]) * jacobian[i]
    return g


def onto_simplex(point: Array) -> Array:
    """By bisection for the threshold."""
    low, high = point.min() - 1.0, point.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(point - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(point - high, 0)
