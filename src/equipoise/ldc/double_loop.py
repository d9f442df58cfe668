"""LDC-MTL in a double loop: the paper's Algorithm 1, whose router descends the discrepancy at a solved lower level."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from equipoise.distributed import join_losses, world_size
from equipoise.ldc.single_loop import LDC
from equipoise.losses import Losses, read

Params: TypeAlias = Mapping[str, Tensor]
Closure: TypeAlias = Callable[[dict[str, Tensor]], Any]


class DoubleLoopLDC(LDC):
    """Algorithm 1 of LDC-MTL (arXiv 2502.08585): a second copy z of the model solves the lower level.

    Each step starts z at the model x, takes `inner_steps` steps z <- z - inner_lr grad_z g(W, z), and leaves

    - on the model the gradient of the objective (that of `LDC`: g + discrepancy f, or f + penalty g),
    - on the router the same objective's gradient, less grad_W g(W, z_N) times g's factor: the router descends
      f + penalty (g(W, x) - g(W, z_N)), how far x is from solving the lower level, not g itself.

    A step costs `inner_steps` + 1 passes of the model. `inner_lr` is the size actually stepped: the paper's beta in
    its text, beta lambda in its appendix. The appendix prints the inner loop from 0 to N; N steps are taken.

    `backward` is the method. Called like any balancer, on losses alone, there is no lower level to solve: the
    scalar and its gradient are those of the single loop, Algorithm 2 as printed (`LDC(router_objective="both")`).
    `router_objective="upper"` leaves nothing to correct and is refused, as is `router=None`.

    After `backward`, `status` holds the paper's two norms, "router_gradient" |grad_W g(W, x)| and
    "inner_router_gradient" |grad_W g(W, z_N)|, and their "ratio". The paper sees ratios above 100 and drops the
    second. On real molecules (docs/ldc-double.md) the median ratio is 145 with batches of 4, which 50 steps learn by
    heart, 8 with batches of 8, 1.1 with batches of 128, and below 1 with log losses.

    inner_steps: N.  inner_lr: the size of an inner step.  Every option of `LDC` besides.

    >>> import torch, equipoise as eq
    >>> model = torch.nn.Linear(2, 2)
    >>> x, y = torch.randn(8, 2), torch.randn(8, 2)
    >>> balancer = eq.DoubleLoopLDC(num_tasks=2, inner_steps=5, inner_lr=0.1)
    >>> def closure(params):
    ...     return list((torch.func.functional_call(model, params, x) - y).square().mean(0))
    >>> objective = balancer.backward(closure, dict(model.named_parameters()))
    >>> model.weight.grad is not None and balancer.router.logits.grad is not None
    True
    >>> sorted(balancer.status)
    ['inner_router_gradient', 'ratio', 'router_gradient']
    """

    def __init__(
        self,
        num_tasks: int | None = None,
        *,
        inner_lr: float,
        inner_steps: int = 50,
        **options: Any,
    ) -> None:
        options.setdefault("router_objective", "both")
        super().__init__(num_tasks, **options)
        if not (math.isfinite(inner_lr) and inner_lr > 0.0):
            raise ValueError(f"`inner_lr` must be a finite number above 0; found {inner_lr!r}.")
        if isinstance(inner_steps, bool) or not isinstance(inner_steps, int) or inner_steps < 1:
            raise ValueError(f"`inner_steps` must be a whole number of at least 1; found {inner_steps!r}.")
        if self.router is None or self.router_objective == "upper":
            raise ValueError(
                "DoubleLoopLDC corrects the router's gradient of g: it needs a router with "
                f"router_objective='both'; found router={self.router!r}, router_objective={self.router_objective!r}."
            )
        self.inner_lr = float(inner_lr)
        self.inner_steps = inner_steps

    def backward(self, closure: Closure, params: Params) -> Tensor:
        """One step of Algorithm 1: adds to `.grad` of `params` and of the router; returns the objective.

        closure: computes this batch's losses, or (losses, shared), with the parameters it is given, for instance by
            `torch.func.functional_call(model, params, x)`.
        params: the model's parameters by name, leaves; buffers may be among them. Inner steps work on copies of
            both, and what the modules that run keep elsewhere (BatchNorm statistics that are not in `params`) is
            put back after the inner loop: it moves once a step.

        The caller's optimizer steps. Of several ranks, the gradients left are already averaged.
        """
        leaves = {name: tensor for name, tensor in params.items() if tensor.requires_grad}
        if not leaves or not all(tensor.is_leaf for tensor in leaves.values()):
            raise ValueError("`params` must map names to leaf tensors, at least one of which requires a gradient.")
        own = list(self.parameters())
        z = {name: t.detach().clone().requires_grad_(t.requires_grad) for name, t in params.items()}
        with _modules_that_run() as ran:
            losses, shared = self._evaluate(closure, dict(params))
        total: Tensor = self(losses, shared)
        g = self._g(losses, shared)
        if self.skipped or not bool(torch.isfinite(g)):
            self.check()
            return total.detach()
        at_x = self._gradients(g, own, retain_graph=True)
        gradients = self._gradients(total, [*leaves.values(), *own])
        with _buffers_put_back(ran):
            for _ in range(self.inner_steps):
                self._inner_step(closure, z, leaves)
            g = self._g(*self._evaluate(closure, z))
            at_z = self._gradients(g, own)
        if not bool(torch.isfinite(g)):
            raise ValueError(f"`inner_lr` must be small enough for g to stay finite; found {self.inner_lr:g}.")
        for param, gradient in zip([*leaves.values(), *own], gradients, strict=True):
            param.grad = gradient if param.grad is None else param.grad + gradient
        for param, gradient in zip(own, at_z, strict=True):
            assert param.grad is not None
            param.grad -= self.g_factor * gradient
        norms = [torch.cat([part.flatten() for part in gradient]).norm() for gradient in (at_x, at_z)]
        self.status = {
            "router_gradient": norms[0],
            "inner_router_gradient": norms[1],
            "ratio": norms[0] / norms[1],
        }
        return total.detach()

    def _inner_step(self, closure: Closure, z: dict[str, Tensor], trained: Iterable[str]) -> None:
        """z <- z - inner_lr grad_z g(W, z)."""
        leaves = {name: z[name] for name in trained}
        gradients = self._gradients(self._g(*self._evaluate(closure, z)), list(leaves.values()))
        for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
            z[name] = (leaf.detach() - self.inner_lr * gradient).requires_grad_()

    def _evaluate(self, closure: Closure, params: dict[str, Tensor]) -> tuple[Any, list[Tensor] | None]:
        """The losses, and what the router reads, if it does."""
        result = closure(params)
        losses, shared = result, None
        if isinstance(result, tuple) and len(result) == 2:
            first = result[0]
            if isinstance(first, (Mapping, Sequence)) or (isinstance(first, Tensor) and first.ndim > 0):
                losses, shared = result
        return losses, self._shared_tensors(shared)

    def _g(self, losses: Losses, shared: list[Tensor] | None) -> Tensor:
        """g at these losses; the state is read and not written."""
        values, mask, _ = read(losses, self.tasks, self._named, None)
        if world_size(self._group) > 1:
            values, mask, _ = join_losses(values, mask, None, self._group)
        n = self._normalised(values, mask)
        return self._lower(self._sigma(mask, n, shared), n)

    def _gradients(self, scalar: Tensor, inputs: Sequence[Tensor], retain_graph: bool = False) -> list[Tensor]:
        """Averaged over the ranks, as DDP does: losses and features are joined, so this is the joined batch's."""
        found = torch.autograd.grad(scalar, inputs, retain_graph=retain_graph, materialize_grads=True)
        ranks = world_size(self._group)
        if ranks > 1:
            for gradient in found:
                dist.all_reduce(gradient, group=self._group)
            found = tuple(gradient / ranks for gradient in found)
        return list(found)


@contextmanager
def _modules_that_run() -> Iterator[dict[nn.Module, None]]:
    """Collects the modules called inside the block."""
    ran: dict[nn.Module, None] = {}
    handle = register_module_forward_pre_hook(lambda module, inputs: ran.setdefault(module))  # noqa: ARG005
    try:
        yield ran
    finally:
        handle.remove()


@contextmanager
def _buffers_put_back(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Undoes what happens to the modules' buffers inside the block."""
    before = [(b, b.clone()) for module in modules for b in module.buffers(recurse=False)]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)
