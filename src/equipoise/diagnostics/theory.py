"""What the theorem of LDC-MTL speaks of, as numbers of a model: the penalty's gap and the hypergradient's norms."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise.diagnostics.untouched import same_draws, untouched
from equipoise.ldc.single_loop import LDC, NORMALIZATIONS
from equipoise.losses import Batch, read

Params = Mapping[str, Tensor]
Closure = Callable[[dict[str, Tensor]], Any]


class LowerLevel(NamedTuple):
    """g at the model x and at z, which solves the lower level from there, and what follows from both.

    at_x, at_z: g(W, x) and g(W, z).
    model_gradient: |grad_x g(W, x)|; inner_model_gradient: |grad_z g(W, z)|, 0 where z solves the lower level.
    router_gradient: |grad_W g(W, x)|; inner_router_gradient: |grad_W g(W, z)|, which the single loop drops.
    hypergradient: |grad f + c (grad g(W, x) - grad g(W, z))| over W and x, the gradient of the penalised problem,
        f + lambda (g(W, x) - g(W, z)) divided by the balancer's factor of f (so c is lambda, or 1 / discrepancy);
        NaN without f.
    """

    at_x: float
    at_z: float
    model_gradient: float
    inner_model_gradient: float
    router_gradient: float
    inner_router_gradient: float
    hypergradient: float

    @property
    def gap(self) -> float:
        """The penalty's gap g(W, x) - g(W, z)."""
        return self.at_x - self.at_z


def lower_level(
    balancer: LDC,
    closure: Closure,
    params: Params,
    *,
    solution: Params | None = None,
    steps: int = 50,
    lr: float | None = None,
) -> LowerLevel:
    """Solve the lower level from the model as it is, and measure what is left; nothing of the model changes.

    balancer: an `LDC` or `DoubleLoopLDC` with a router.
    closure: computes the losses, or (losses, shared), with the parameters it is given, as `DoubleLoopLDC.backward`.
    params: the model's parameters by name; buffers may be among them.
    solution: z, where it is known; else `steps` gradient steps of size `lr` on g are taken from the model.

    First losses that the balancer has not seen yet are those of the model, here and for z.

    By the paper's lemma |G sigma|^2 <= 2 L_g gap, so a small gap at the true z is a proof of Pareto stationarity.

    >>> import torch, equipoise as eq
    >>> from equipoise.diagnostics import lower_level
    >>> balancer = eq.LDC(num_tasks=2, normalize=None)
    >>> def closure(params):
    ...     return [(params["x"] - 1).square().sum(), (params["x"] + 1).square().sum()]
    >>> found = lower_level(balancer, closure, {"x": torch.tensor([2.0], requires_grad=True)}, lr=0.25)
    >>> round(found.gap, 4), round(found.inner_model_gradient, 4)  # g is x^2 + 1 with equal weights
    (4.0, 0.0)
    """
    own = [parameter for parameter in balancer.parameters() if parameter.requires_grad]
    if balancer.router is None or not own:
        raise ValueError("`balancer` must have a router: without one there is no W to take gradients of.")
    if (solution is None) == (lr is None):
        raise ValueError(f"give `solution` or `lr`, and not both; found {solution!r} and {lr!r}.")
    names = [name for name, tensor in params.items() if tensor.requires_grad]
    x, z = _leaves(params, params), _leaves(solution or params, params)
    with untouched(), torch.enable_grad(), _first_losses(balancer, same_draws(partial(closure, dict(x)))):
        for _ in range(steps if lr is not None else 0):
            g = _g(balancer, same_draws(partial(closure, dict(z))))
            taken = torch.autograd.grad(g, [z[n] for n in names], materialize_grads=True)
            for name, gradient in zip(names, taken, strict=True):
                assert lr is not None
                z[name] = (z[name].detach() - lr * gradient).requires_grad_()
        g_z = _g(balancer, same_draws(partial(closure, dict(z))))
        of_z = _flat(g_z, [z[n] for n in names]), _flat(g_z, own)
        losses = same_draws(partial(closure, dict(x)))
        g_x, f_x = _g(balancer, losses), _f(balancer, losses)
        of_x = _flat(g_x, [x[n] for n in names]), _flat(g_x, own)
        of_f = _flat(f_x, [x[n] for n in names]), _flat(f_x, own)
    factor = balancer.g_factor / balancer.f_factor if balancer.f_factor else math.nan
    # z depends on W, but at the solution grad_z g = 0, so that g(W, z) moves with W only directly.
    upper = torch.cat([of_f[0] + factor * of_x[0], of_f[1] + factor * (of_x[1] - of_z[1])])
    norms = (of_x[0], of_z[0], of_x[1], of_z[1], upper)
    return LowerLevel(g_x.item(), g_z.item(), *(vector.norm().item() for vector in norms))


@contextmanager
def _first_losses(balancer: LDC, result: Any) -> Iterator[None]:
    """Measure x and z in the same units: what the balancer has not seen yet is seen at the model, for the moment."""
    if balancer.normalize not in NORMALIZATIONS:
        yield
        return
    batch, _ = _read(balancer, result)
    values = batch.values if balancer.min_losses is None else batch.values - balancer.min_losses.to(batch.values)
    seen = balancer.first_losses
    before = seen.clone()
    seen.copy_(torch.where(before == 0.0, values.to(before), before))
    try:
        yield
    finally:
        seen.copy_(before)


def _leaves(values: Params, like: Params) -> dict[str, Tensor]:
    """Copies that require gradients where the model's own do."""
    return {name: values[name].detach().clone().requires_grad_(like[name].requires_grad) for name in like}


def _read(balancer: LDC, result: Any) -> tuple[Batch, list[Tensor] | None]:
    """The losses, and what the router reads, if it does."""
    losses, shared = result, None
    if isinstance(result, tuple) and len(result) == 2:
        first = result[0]
        if isinstance(first, (Mapping, Sequence)) or (isinstance(first, Tensor) and first.ndim > 0):
            losses, shared = result
    values, mask, given = read(losses, balancer.tasks, balancer._named, None)
    return Batch(values, mask, None, given, None), balancer._shared_tensors(shared)


def _g(balancer: LDC, result: Any) -> Tensor:
    batch, shared = _read(balancer, result)
    n = balancer._normalised(batch.losses, batch.present)
    return balancer._lower(balancer._sigma(batch.present, n, shared), n)


def _f(balancer: LDC, result: Any) -> Tensor:
    batch, shared = _read(balancer, result)
    n = balancer._normalised(batch.losses, batch.present)
    sigma = balancer._sigma(batch.present, n, shared)
    gap: Tensor = balancer.pairs(balancer._compared(sigma, n), batch.present, balancer.step)
    return gap


def _flat(scalar: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    taken = torch.autograd.grad(scalar, inputs, retain_graph=True, allow_unused=True, materialize_grads=True)
    return torch.cat([gradient.flatten().double() for gradient in taken])
