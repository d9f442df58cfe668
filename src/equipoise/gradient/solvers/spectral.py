"""Weights from the eigenvalues of the Gram matrix."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from equipoise.gradient.solvers.common import TINY, Solution, normalise
from equipoise.gradient.solvers.eigen import eigen


def _eigen(gram: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues in rising order, vectors, and which are more than rounding."""
    values, vectors = eigen(gram)
    return values, vectors, values > values[-1] * gram.shape[0] * torch.finfo(gram.dtype).eps


def aligned(gram: Tensor, active: Tensor, scale: Literal["min", "median", "rmse"]) -> Solution:
    """The weights s V diag(lambda^-1/2) V' 1 that make the gradients orthogonal and equally long.

    lambda are the eigenvalues of G that are more than rounding, V their vectors; s^2 is the least, the median
    (the lower middle) or the mean of them. The residual is the largest off-diagonal entry of the Gram
    matrix of the aligned gradients against s^2, for gradients that do not depend on each other.

    >>> import torch
    >>> from equipoise.gradient.solvers import aligned
    >>> G = torch.diag(torch.tensor([1.0, 9.0], dtype=torch.float64))
    >>> aligned(G, torch.ones(2, dtype=torch.bool), scale="min").weights
    tensor([1.0000, 0.3333], dtype=torch.float64)
    """
    gram, _ = normalise(gram, active)
    inside = active.to(gram.dtype)
    values, vectors, kept = _eigen(gram)
    rank = kept.sum()
    size = gram.shape[0]
    if scale == "rmse":
        square = torch.where(kept, values, 0.0).sum() / rank.clamp(min=1)
    else:
        first = (size - rank).clamp(max=size - 1)
        place = first if scale == "min" else first + (rank - 1).clamp(min=0) // 2
        square = values.gather(0, place.unsqueeze(0)).squeeze(0)
    inverse = torch.where(kept, values.clamp(min=TINY).rsqrt(), 0.0)
    balance = (vectors * inverse) @ vectors.mT
    weights = square.clamp(min=0.0).sqrt() * (balance @ inside)
    residual = (balance @ gram @ balance - (vectors * kept) @ vectors.mT).abs().amax()
    return Solution(weights * inside, residual, rank < active.sum())


def equal_cosines(gram: Tensor, active: Tensor) -> Solution:
    """The coefficients of d = (sum_i g_i . u) u, u the unit vector along pinv(U) 1, U the unit gradients.

    u has the same cosine with every gradient when they do not depend on each other. Where pinv(U) 1 = 0
    there is no such direction: d = 0, and `degenerate` says so.
    The residual is the largest difference of U u from its mean, 0 unless gradients depend on each other.

    >>> import torch
    >>> from equipoise.gradient.solvers import equal_cosines
    >>> G = torch.diag(torch.tensor([1.0, 9.0], dtype=torch.float64))
    >>> equal_cosines(G, torch.ones(2, dtype=torch.bool)).weights
    tensor([2.0000, 0.6667], dtype=torch.float64)
    """
    gram, _ = normalise(gram, active)
    inside = active.to(gram.dtype)
    lengths = gram.diagonal().sqrt()
    inverse_lengths = torch.where(lengths > 0, 1 / lengths.clamp(min=TINY), 0.0)
    cosines = gram * inverse_lengths * inverse_lengths.unsqueeze(-1)
    values, vectors, kept = _eigen(cosines)
    inverse = torch.where(kept, 1 / values.clamp(min=TINY), 0.0)
    unit = vectors @ (inverse * (vectors.mT @ inside))
    same = cosines @ unit  # 1 in every entry when the gradients do not depend on each other
    square = torch.dot(unit, same)
    degenerate = ~(torch.dot(same, same) > 1e-12 * inside.sum())
    unit = torch.where(degenerate, 0.0, unit / torch.where(degenerate, 1.0, square))
    weights = unit * inverse_lengths * torch.dot(same, lengths)
    spread = ((same - same.sum() / inside.sum().clamp(min=1.0)) * inside).abs().amax()
    return Solution(weights, torch.where(degenerate, 0.0, spread), degenerate)
