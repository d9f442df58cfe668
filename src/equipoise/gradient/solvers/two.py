"""Two tasks on the CPU, in Python's own numbers.

The solvers' answer for any number of tasks is right here too, but inside a training step, whose matrix products
have emptied the caches, its hundred and more operators cost twenty times what this does (0.7 ms beside 0.05 ms).
None means that the case is not plain (a task out of the game, no solution): the solver for any number then takes it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from equipoise.gradient.solvers.common import Solution, may_look

_SAME = 1e-12  # of the squared norms: tells gradients apart that differ by more than the rounding of their products
_STEPS = 60


def _read(gram: Tensor, active: Tensor) -> tuple[float, float, float, float] | None:
    """|g_1|^2, g_1 . g_2 and |g_2|^2 in units of their mean squared norm, and that unit."""
    if gram.shape != (2, 2) or not may_look(gram) or not all(active.tolist()):
        return None
    (a, c), (_, b) = gram.tolist()
    unit = a / 2 + b / 2
    if not unit > 0 or not min(a, b) > 0:
        return None
    a, b, c = a / unit, b / unit, c / unit
    most = math.sqrt(a * b)
    return a, min(max(c, -most), most), b, unit  # rounding may have taken c beyond


def min_norm_of_two(gram: Tensor, active: Tensor) -> Solution | None:
    """`min_norm`: the parabola's lowest point, clipped to the segment."""
    read = _read(gram, active)
    if read is None:
        return None
    a, c, b, _ = read
    first = min(max((b - c + _SAME * b) / (a + b - 2 * c + _SAME * (a + b)), 0.0), 1.0)
    second = 1 - first
    of_a, of_b = first * a + second * c, first * c + second * b  # g_i . d
    square = max(first * of_a + second * of_b, 0.0)
    length = first * math.sqrt(a) + second * math.sqrt(b)
    nothing = max(1e-12 * length * length, 1e-24 * max(a, b))
    return _solution(gram, first, second, max(square - of_a, square - of_b, 0.0), square <= nothing)


def fair_of_two(gram: Tensor, active: Tensor, alpha: float) -> Solution | None:
    """`fair`: with r the quotient of the unit gradients' weights, (cos + r) r^p = q (1 + cos r), whose logarithm rises
    with log r: Newton steps on it, kept inside what is known to hold the root."""
    read = _read(gram, active)
    if read is None:
        return None
    a, c, b, unit = read
    p = 1 / alpha
    first, second = math.sqrt(a), math.sqrt(b)
    cosine = c / (first * second)
    wanted = (p - 1) * math.log(second / first)  # log q
    end = wanted / (p if cosine > 0 else 1 + p)
    at = wanted / (1 + p)
    low, high = min(end, 0.0), max(end, 0.0)
    for _ in range(_STEPS):
        r = math.exp(at)
        up, down = cosine + r, 1 + cosine * r
        if up <= 0 or down <= 0:  # outside: the root is nearer to equal weights
            low, high = (at, high) if at < 0 else (low, at)
            at = (low + high) / 2
            continue
        miss = math.log(up / down) + p * at - wanted
        low, high = (at, high) if miss < 0 else (low, at)
        step = miss / (r * (1 - cosine * cosine) / (up * down) + p)
        at = at - step if low <= at - step <= high else (low + high) / 2
        if abs(step) <= 1e-15 * max(1.0, abs(at)):
            break
    r = math.exp(at)
    down = 1 + cosine * r
    if not down > 0:
        return None
    weight = math.exp(((p - 1) * math.log(first) - math.log(down)) / (1 + p))
    w, v = weight / first, r * weight / second
    of_a, of_b = w * a + v * c, w * c + v * b  # w^-p and v^-p
    if not min(of_a, of_b) > 0:
        return None
    residual = max(abs(math.log(of_a) + p * math.log(w)), abs(math.log(of_b) + p * math.log(v)))
    length = w * first + v * second
    if not (residual < 1e-10 and w * of_a + v * of_b > 1e-13 * length * length):
        return None
    scale = unit ** (-1 / (1 + p))
    return _solution(gram, w * scale, v * scale, residual, False)


def _solution(gram: Tensor, first: float, second: float, residual: float, degenerate: bool) -> Solution:
    numbers = gram.new_tensor([first, second, residual])
    return Solution(numbers[:2], numbers[2], torch.tensor(degenerate))
