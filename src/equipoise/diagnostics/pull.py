"""By what a balancer multiplies each task's gradient: that of the loss as it comes, before any normalisation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from equipoise.balancer import Balancer
from equipoise.losses import Batch


def factors_of(scalar: Tensor, given: tuple[Tensor | None, ...] | Tensor) -> list[float] | None:
    """How much the scalar moves with each loss; None where it does not pass through the losses (a carrier)."""
    here = [given] if isinstance(given, Tensor) else [loss for loss in given if loss is not None]
    if not scalar.requires_grad:
        return None
    taken = torch.autograd.grad(scalar, here, retain_graph=True, allow_unused=True)
    if all(gradient is None for gradient in taken):
        return None
    if isinstance(given, Tensor):
        found: list[float] = taken[0].tolist()
        return found
    values = iter(0.0 if gradient is None else gradient.item() for gradient in taken)
    return [0.0 if loss is None else next(values) for loss in given]


def pull_of(balancer: Balancer, batch: Batch, shared: Sequence[Tensor]) -> list[float] | None:
    """The same of a balancer that is not in the losses' graph: its objective, once more, in eval mode and untraced.

    A gradient method's weights are the factors already. None where the balancer cannot take these losses.
    """
    if balancer.needs_shared:
        weights: list[float] = balancer.weights.tolist()
        return weights
    losses = batch.losses.detach().clone().requires_grad_()
    refused = balancer._refused(batch.values)
    if not bool(batch.values.isfinite().all()) or (refused is not None and bool(refused.any())):
        return None
    kept = [(buffer, buffer.clone()) for buffer in balancer.buffers()]
    status, training = dict(balancer.status), balancer.training
    balancer.eval()
    try:
        with torch.enable_grad():
            scalar, _ = balancer.objective(Batch(losses, batch.present, None, losses, None), list(shared) or None)
            return factors_of(scalar, losses)
    except (ValueError, RuntimeError):  # a `shared` that is not for it, a result out of range
        return None
    finally:
        balancer.train(training)
        balancer.status = status
        for buffer, value in kept:
            buffer.data.copy_(value)  # unseen by autograd
