"""Gradient methods as others run them: torchjd's engines, LibMTL's MGDA, and the loops people write by hand.

Every peer is a function from a problem to what happens between the zeroing of gradients and the optimizer's step.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torchjd.aggregation as aggregation
from torch import Tensor, nn
from torchjd.autogram import Engine
from torchjd.autojac import backward, jac_to_grad, mtl_backward

HAS_LIBMTL = importlib.util.find_spec("LibMTL") is not None
Leave = Callable[[], None]


class Problem(Protocol):
    num_tasks: int
    trunk: nn.Module
    heads: nn.ModuleList

    def features(self) -> Tensor: ...
    def losses(self, features: Tensor) -> list[Tensor]: ...


def torchjd_autojac(problem: Problem) -> Leave:
    """The Jacobian of all losses for the trunk's parameters, the sum of the losses for the heads."""
    aggregator, shared = aggregation.MGDA(), list(problem.trunk.parameters())

    def leave() -> None:
        features = problem.features()
        mtl_backward(problem.losses(features), features=features)
        jac_to_grad(shared, aggregator)

    return leave


def torchjd_autojac_features(problem: Problem) -> Leave:
    """The Jacobian for the features, and one backward from there."""
    aggregator, heads = aggregation.MGDA(), list(problem.heads.parameters())

    def leave() -> None:
        features = problem.features()
        cut = features.detach().requires_grad_()
        losses = problem.losses(cut)
        backward(losses, inputs=[cut], retain_graph=True)
        jac_to_grad([cut], aggregator)
        torch.stack(losses).sum().backward(inputs=heads)
        features.backward(cut.grad)

    return leave


def torchjd_autogram(problem: Problem) -> Leave:
    """The trunk's Gram matrix without its Jacobian; then one weighted backward."""
    engine, weighting = Engine(problem.trunk, batch_dim=None), aggregation.MGDAWeighting()

    def leave() -> None:
        losses = torch.stack(problem.losses(problem.features()))
        losses.backward(weighting(engine.compute_gramian(losses)))

    return leave


def nash_mtl_style(problem: Problem) -> Leave:
    """K backwards through the trunk, flattened and stacked; then a weighted backward of everything."""
    shared = list(problem.trunk.parameters())

    def leave() -> None:
        losses = problem.losses(problem.features())
        rows = [
            torch.cat([g.flatten() for g in torch.autograd.grad(loss, shared, retain_graph=True)]) for loss in losses
        ]
        jacobian = torch.stack(rows)
        weights = frank_wolfe(jacobian @ jacobian.T)
        sum(w * loss for w, loss in zip(weights, losses, strict=True)).backward()

    return leave


def cagrad_style(problem: Problem) -> Leave:
    """K full backwards into .grad, copied out and zeroed between; the result is written over .grad."""
    shared = list(problem.trunk.parameters())

    def leave() -> None:
        losses = problem.losses(problem.features())
        size = sum(p.numel() for p in shared)
        grads = torch.zeros(size, problem.num_tasks)
        for k, loss in enumerate(losses):
            loss.backward(retain_graph=True)
            start = 0
            for p in shared:
                grads[start : start + p.numel(), k].copy_(p.grad.view(-1))
                start += p.numel()
                p.grad = None
        combined = grads @ frank_wolfe(grads.T @ grads)
        start = 0
        for p in shared:
            p.grad = combined[start : start + p.numel()].view(p.shape).clone()
            start += p.numel()

    return leave


def features_by_hand(problem: Problem) -> Leave:
    """The least that the features ask for: K head backwards, the Gram matrix, one trunk backward."""

    def leave() -> None:
        features = problem.features()
        rows = []
        for head, loss in zip(problem.heads, problem.losses(features), strict=True):
            own = list(head.parameters())
            row, *gradients = torch.autograd.grad(loss, [features, *own], retain_graph=True)
            rows.append(row.flatten())
            for p, gradient in zip(own, gradients, strict=True):
                p.grad = gradient
        jacobian = torch.stack(rows)
        weights = frank_wolfe(jacobian @ jacobian.T)
        features.backward((weights @ jacobian).view_as(features))

    return leave


def bare_backwards(problem: Problem) -> Leave:
    """K backwards and nothing else: no method with a whole Jacobian can take less."""
    shared = list(problem.trunk.parameters())

    def leave() -> None:
        for head, loss in zip(problem.heads, problem.losses(problem.features()), strict=True):
            targets = [*shared, *head.parameters()]
            gradients = torch.autograd.grad(loss, targets, retain_graph=True)
            for p, gradient in zip(targets, gradients, strict=True):
                p.grad = gradient

    return leave


def frank_wolfe(gram: Tensor) -> Tensor:
    """Ten steps towards the least norm: a cheap solver, so that the loops around it are what is timed."""
    weights = torch.full((len(gram),), 1.0 / len(gram))
    for _ in range(10):
        product = gram @ weights
        toward = product.argmin()
        gap = weights @ product - product[toward]
        bend = weights @ product - 2 * product[toward] + gram[toward, toward]
        size = (gap / bend.clamp(min=1e-20)).clamp(0, 1)
        weights = weights * (1 - size)
        weights[toward] += size
    return weights * len(gram)


def libmtl(problem: Problem, at_features: bool) -> Leave:
    """LibMTL's own MGDA, given what its trainer would give it."""
    if "LibMTL" not in sys.modules:
        sys.modules["LibMTL"] = _without_torchvision("LibMTL")
    from LibMTL.weighting import MGDA

    class Harness(MGDA):
        def __init__(self) -> None:
            super().__init__()
            self.task_num, self.device = problem.num_tasks, torch.device("cpu")
            self.task_name = [str(k) for k in range(problem.num_tasks)]
            self.rep_grad, self.rep_tasks = at_features, {}

        def get_share_params(self) -> Any:
            return problem.trunk.parameters()

        def zero_grad_share_params(self) -> None:
            for p in problem.trunk.parameters():
                if p.grad is not None:
                    p.grad.zero_()

    harness = Harness()

    def leave() -> None:
        features = problem.features()
        if at_features:  # each head reads its own copy of the features, as in LibMTL's architectures
            harness.rep = features
            copies = [features.detach().clone().requires_grad_() for _ in harness.task_name]
            harness.rep_tasks = dict(zip(harness.task_name, copies, strict=True))
            losses = problem.losses_of_copies(copies)
        else:
            losses = problem.losses(features)
        harness.backward(losses, mgda_gn="none")

    return leave


def _without_torchvision(name: str) -> types.ModuleType:
    """The package without its `__init__`, which imports torchvision for models that are not asked for here."""
    package = types.ModuleType(name)
    package.__path__ = list(importlib.util.find_spec(name).submodule_search_locations)
    return package


def peers(where: str) -> dict[str, Callable[[Problem], Leave]]:
    """By name, for "features" or "parameters"."""
    found: dict[str, Callable[[Problem], Leave]]
    if where == "features":
        found = {"torchjd autojac": torchjd_autojac_features, "by hand": features_by_hand}
    else:
        found = {
            "torchjd autojac": torchjd_autojac,
            "torchjd autogram": torchjd_autogram,
            "by hand, nash-mtl style": nash_mtl_style,
            "by hand, CAGrad style": cagrad_style,
            "K backwards alone": bare_backwards,
        }
    if HAS_LIBMTL:
        found["LibMTL MGDA"] = lambda problem: libmtl(problem, where == "features")
    return found
