"""What a step of a balancer may be given and may give: the checks of `Balancer.forward`, and what they say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.losses import SMALLEST, OutOfRange, all_finite, within_range

NON_FINITE, NON_POSITIVE, NOBODY = 1, 2, 4  # what `failed` latches for a task; NOBODY: all of them are absent


class Checked(nn.Module):
    """The part of `Balancer` that looks at losses and weights."""

    needs_positive: bool = False
    tasks: tuple[str, ...]
    on_nonfinite: str
    skipped: bool
    failed: Tensor
    last_weights: Tensor

    def check(self) -> None:
        """Raise if a bad loss was latched since the last look (one host sync on a GPU)."""
        failed = self.failed.to("cpu", copy=True)
        if not failed.any():
            return
        self.failed.zero_()
        self._complain(failed)

    def _check_losses(self, values: Tensor, mask: Tensor | None) -> Tensor | None:
        """Raise or mark a skip where the values can be looked at; else latch, and return whether all is well."""
        if values.is_cuda or torch.compiler.is_compiling():
            detached = self._as_state(values)
            bad = (~torch.isfinite(detached)).to(torch.uint8) * NON_FINITE
            refused = self._refused(detached)
            if refused is not None:
                bad = torch.where(refused > 0, refused, bad)
            if mask is not None:
                bad = torch.where(mask.any(), torch.where(mask, bad, 0), NOBODY)
            self.failed.copy_(torch.maximum(self.failed, bad.to(torch.uint8)))
            return ~(bad > 0).any()
        if self.skipped:
            self.skipped = False
        if mask is not None and not bool(mask.any()):
            self._complain(torch.full_like(self.failed, NOBODY))
        numbers, least = values.tolist(), self._least
        if within_range(numbers) and (least == -math.inf or min(numbers) >= least):
            return None  # the usual case, in one cheap look
        detached = self._as_state(values)
        if not all_finite(detached):
            if self.on_nonfinite == "raise":
                self._complain((~torch.isfinite(detached)).to(torch.uint8) * NON_FINITE, values.detach())
            self.skipped = True
            return None
        refused = self._refused(detached)
        if refused is not None:
            if mask is not None:
                refused = torch.where(mask, refused, 0)
            if refused.any():
                self._complain(refused, detached)
        return None

    def _check_result(self, scalar: Tensor, weights: Tensor, losses: Tensor) -> None:
        """Raise where finite losses have weights, or a scalar, beyond what their type holds."""
        if math.isfinite(scalar.item()) and within_range(weights.tolist()):
            return
        kept = self._as_state(weights)
        if math.isfinite(scalar.item()) and all_finite(kept):
            return
        good = torch.isfinite(kept)
        losses = losses.detach()
        task = int(losses.abs().argmax()) if good.all() else int((~good).nonzero()[0])
        raise OutOfRange(
            f"`losses` and their gradients must be of sizes whose weights and weighted sum {kept.dtype} holds; found "
            f"the weight {kept[task].item():g} for task {self.tasks[task]!r} (its loss is {losses[task].item():g}, all "
            f"are from {losses.min().item():g} to {losses.max().item():g}) and the sum {scalar.item():g}. "
            "on_nonfinite='skip' drops such steps."
        )

    def _complaints_of_state(self, state_dict: Mapping[str, Any], prefix: str) -> list[str]:
        """What is wrong with a state to load, besides its names."""
        found = []
        stored = state_dict.get(f"{prefix}last_weights")
        if isinstance(stored, Tensor) and stored.shape != self.last_weights.shape:
            found.append(f"the state is of a balancer of {stored.numel()} tasks; this one has {len(self.tasks)}.")
        for name, tensor in state_dict.items():
            if name.startswith(prefix) and isinstance(tensor, Tensor) and not tensor.is_meta and not all_finite(tensor):
                found.append(f"the state's `{name}` must be finite; found NaN or infinity in it.")
        return found

    def _as_state(self, values: Tensor) -> Tensor:
        """As numbers of the state's type, in which 1e300 may be infinite."""
        return values.detach().to(self.last_weights.dtype)

    @property
    def _least(self) -> float:
        """No finite loss of this size or more is refused; infinity where `_refused` must be asked."""
        return SMALLEST if self.needs_positive else -math.inf

    def _refused(self, values: Tensor) -> Tensor | None:
        """Why the method cannot take a finite loss, as what `failed` latches, 0 where it can; None: it takes any."""
        return (values < SMALLEST).to(torch.uint8) * NON_POSITIVE if self.needs_positive else None

    def _rule(self, reason: int) -> str:  # noqa: ARG002 (a method may refuse losses for more than one reason)
        """What a refused loss had to be."""
        return (
            f"must be above 0 for {type(self).__name__}, which takes its logarithm or divides by it "
            f"({SMALLEST:g} or more)"
        )

    def _complain(self, failed: Tensor, values: Tensor | None = None) -> None:
        task = int(failed.nonzero()[0])
        if failed[task] == NOBODY:
            raise ValueError("`losses` must have at least one task present; found every task absent.")
        found = "" if values is None else f"; found {values[task].item():g}"
        if failed[task] != NON_FINITE:
            raise ValueError(f"the loss of task {self.tasks[task]!r} {self._rule(int(failed[task]))}{found}.")
        if values is None and self.on_nonfinite == "skip":
            return
        raise ValueError(
            f"the loss of task {self.tasks[task]!r} must be finite{found} ({self.last_weights.dtype} is what the state "
            "holds). on_nonfinite='skip' drops such steps instead."
        )
