"""Gradient surgery."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Unpack

from equipoise.gradient.base import Combination, Game, GradientBalancer, GradientOptions
from equipoise.gradient.solvers.common import TINY
from equipoise.random import make_seed, permutation


class PCGrad(GradientBalancer):
    """Gradient surgery: the sum of the task gradients, each projected away from those it conflicts with.

    Each task's gradient visits the other tasks in a random order of its own; where its inner product with
    the visited task's original gradient is negative, its projection on that gradient is taken off. All of
    it happens on coefficients, with the Gram matrix.
    The heads get the plain sum of the losses.

    Not taken over from the reference code: a task is visited by itself too there (self-projection fires when the
    projected gradient has turned against its own), which the paper skips; Python's generator draws the
    order, so that ranks and resumed runs differ. Here it is a function of the seed and the step.

    seed: where the orders start; None takes a seed from torch's global generator.

    >>> import torch, equipoise as eq
    >>> x = torch.tensor([1.0, 1.0], requires_grad=True)
    >>> eq.PCGrad(num_tasks=2, seed=0)([x[0] + x[1], -x[0]], shared=[x]).backward()
    >>> x.grad
    tensor([-0.5000,  1.5000])
    """

    permutation_equivariant = False  # a task's order goes with its place

    def __init__(
        self, num_tasks: int | None = None, *, seed: int | None = None, **options: Unpack[GradientOptions]
    ) -> None:
        super().__init__(num_tasks, **options)
        self.seed: Tensor
        self.register_buffer("seed", make_seed(seed))

    def combine(self, game: Game) -> Combination:
        weights = project(game.gram, permutation(self.seed, self.step, (self.num_tasks, self.num_tasks)))
        return Combination(weights, weights)


def project(gram: Tensor, order: Tensor) -> Tensor:
    """The sum of the projected gradients as coefficients of the original ones.

    order: [K, K], row i the tasks in the order in which task i visits them.

    >>> import torch
    >>> G = torch.tensor([[2.0, -1.0], [-1.0, 1.0]])
    >>> project(G, torch.tensor([[0, 1], [1, 0]]))
    tensor([1.5000, 2.0000])
    """
    tasks = torch.arange(gram.shape[0], device=gram.device).unsqueeze(-1)
    shorten = torch.where(order == tasks, 0.0, 1 / gram.diagonal()[order].clamp(min=TINY))
    products = gram.clone()  # of each task's projected gradient with the original ones
    rows, taken = torch.empty_like(gram), torch.empty_like(gram)  # in place: K new matrices would break up the memory
    for place, (visited, inverse) in enumerate(zip(order.unbind(1), shorten.split(1, 1), strict=True)):  # type: ignore[no-untyped-call]
        share = products.gather(1, visited.unsqueeze(1)).clamp_(max=0.0).mul_(inverse)
        products.addcmul_(share, torch.index_select(gram, 0, visited, out=rows), value=-1.0)
        taken[:, place : place + 1] = share
    eye = torch.eye(gram.shape[0], dtype=gram.dtype, device=gram.device)
    return eye.scatter_add(1, order, -taken).sum(0)
