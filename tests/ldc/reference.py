"""LDC-MTL by loops over tasks and pairs, with gradients written out by hand: slow, and sharing nothing with src."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np


@dataclass
class Answer:
    total: float
    f: float
    g: float
    sigma: np.ndarray
    dl: np.ndarray
    dw: np.ndarray
    closest: float  # the smallest gap: near 0 the slope is a matter of rounding


def softmax(w):
    e = np.exp(w - np.max(w))
    return e / e.sum()


def router(name, w, present, floor=0.0):
    """sigma over all tasks (0 where absent) and its Jacobian with respect to the logits."""
    k = len(w)
    here = [i for i in range(k) if present[i]]
    sigma, jacobian = np.zeros(k), np.zeros((k, k))
    if name is None:
        sigma[here] = 1 / len(here)
        return sigma, jacobian
    if name.startswith("softmax"):
        p = softmax(np.array([w[i] for i in here]))
        for a, i in enumerate(here):
            sigma[i] = (1 - floor) * p[a] + floor / len(here)
            for b, j in enumerate(here):
                jacobian[i, j] = (1 - floor) * p[a] * ((i == j) - p[b])
            if name == "softmax-clamped":
                if not 0.2 <= sigma[i] <= 0.8:
                    jacobian[i] = 0
                sigma[i] = min(max(sigma[i], 0.2), 0.8)
        return sigma, jacobian
    for i in here:
        x = max(w[i], 0.0) if name == "sigmoid" else w[i]
        sigma[i] = 1 / (1 + math.exp(-x))
        alive = 1.0 if name == "sigmoid-free" or w[i] > 0 else 0.0
        jacobian[i, i] = sigma[i] * (1 - sigma[i]) * alive
    return sigma, jacobian


def normalised(how, losses, first, present):
    """n and dn / dl, for the tasks present."""
    n, slope = np.zeros(len(losses)), np.zeros(len(losses))
    smallest = min(first[i] for i in range(len(losses)) if present[i])
    for i, loss in enumerate(losses):
        if not present[i]:
            continue
        if how is None:
            n[i], slope[i] = loss, 1.0
        elif how == "rescale":
            n[i], slope[i] = loss / abs(first[i]), 1 / abs(first[i])
        elif how == "log":
            n[i], slope[i] = math.log(loss / first[i]), 1 / loss
        else:
            n[i], slope[i] = loss * smallest / first[i], smallest / first[i]
    return n, slope


def pair_list(pairs, present):
    """The pairs compared, and the factor of their sum."""
    here = [i for i in range(len(present)) if present[i]]
    if pairs == "chain":
        return list(itertools.pairwise(here)), 1.0
    if pairs == "all":
        both = [(i, j) for i in here for j in here if i < j]
        return both, 2 / len(here)
    return [(i, j) for i, j in pairs if present[i] and present[j]], 1.0


def ldc(
    losses,
    w,
    first=None,
    *,
    router_name="softmax",
    router_objective="upper",
    tau="weights",
    normalize="rescale",
    g_factor=1.0,
    f_factor=0.1,
    pairs="chain",
    smooth=0.0,
    floor=0.0,
    divide=None,
    present=None,
):
    k = len(losses)
    present = [True] * k if present is None else present
    first = losses if first is None else first
    sigma, jacobian = router(router_name, w, present, floor)
    n, slope = normalised(normalize, losses, first, present)
    whole = sum(sigma) if divide else 1.0
    g = sum(sigma[i] * n[i] for i in range(k)) / whole
    dn = np.array([g_factor * sigma[i] / whole for i in range(k)])
    dsigma = np.zeros(k)
    if router_objective == "both":
        for i in range(k):
            dsigma[i] += g_factor * n[i] / whole
            if divide == "attached":
                dsigma[i] -= g_factor * g / whole
    t = sigma if isinstance(tau, str) and tau == "weights" else np.ones(k) if isinstance(tau, str) else np.asarray(tau)
    f, both, closest = 0.0, pair_list(pairs, present), math.inf
    for i, j in both[0]:
        v = t[i] * n[i] - t[j] * n[j]
        size = math.sqrt(v * v + smooth)
        closest = min(closest, size)
        f += both[1] * size
        slope_v = f_factor * both[1] * (v / size if size > 0 else 0.0)
        dn[i] += slope_v * t[i]
        dn[j] -= slope_v * t[j]
        if isinstance(tau, str) and tau == "weights":
            dsigma[i] += slope_v * n[i]
            dsigma[j] -= slope_v * n[j]
    return Answer(g_factor * g + f_factor * f, f, g, sigma, dn * slope, jacobian.T @ dsigma, closest)
