"""FAMO: fast adaptive multitask optimization."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from typing_extensions import Unpack

from equipoise.balancer import Balancer, CommonOptions
from equipoise.checks import NON_POSITIVE
from equipoise.distributed import join_losses, world_size
from equipoise.losses import Batch, Losses, alike, label_counts, read

EPSILON = 1e-8
FEW = 64  # tasks whose weights move in plain Python, where a CPU holds them
FASTEST = 1e6  # beyond it the squares of Adam's gradients leave float32 within a few steps
BETA1, BETA2, ADAM_EPSILON = 0.9, 0.999, 1e-8


class FAMO(Balancer):
    """Weights z / (c D) with D = l - min_losses + 1e-8, z = softmax(w) and c = sum(z / D), so that they sum to 1.

    The scalar is sum(z log D) / c with z and c constant. After the optimizer's step the losses of the same batch
    tell how much each log D fell, and w moves by one step of Adam so that the tasks fall alike:

        loss = balancer([...]); loss.backward(); optimizer.step()
        with torch.no_grad():
            balancer.after_step([...the losses of the same batch, again...])

    w and its moments are buffers, so no optimizer is hidden. `after_step` looks at the last forward; without
    one since the last `after_step` it changes nothing. The reference keeps z in the graph of the loss, which has
    no effect there, and compares losses after `train()`-mode forwards; so does this.

    gamma: L2 decay of w (the authors' runs: 0.001, on Cityscapes 0.01, on the toy problem 0).
    lr: the rate of Adam on w.
    min_losses: K lower bounds of the losses, 0 by default.
    second_look: "same" waits for `after_step`; "next" takes the next batch's losses instead, an approximation
        that costs no second forward, and exact only where all batches are the same.

    >>> import torch, equipoise as eq
    >>> balancer = eq.FAMO(num_tasks=2)
    >>> total = balancer(torch.tensor([1.0, 4.0], requires_grad=True))
    >>> balancer.weights
    tensor([0.8000, 0.2000])
    >>> balancer.after_step(torch.tensor([0.5, 4.0]))
    >>> balancer.logits
    tensor([-0.0250,  0.0250])
    """

    def __init__(
        self,
        num_tasks: int | None = None,
        *,
        gamma: float = 0.01,
        lr: float = 0.025,
        min_losses: Tensor | Sequence[float] | None = None,
        second_look: Literal["same", "next"] = "same",
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(num_tasks, **common)
        for name, value in (("gamma", gamma), ("lr", lr)):
            if not 0 <= value <= FASTEST:
                raise ValueError(f"`{name}` must be at least 0 and at most {FASTEST:g}; found {value}.")
        if second_look not in ("same", "next"):
            raise ValueError(f"`second_look` must be 'same' or 'next'; found {second_look!r}.")
        least = torch.zeros(self.num_tasks) if min_losses is None else torch.as_tensor(min_losses).float().clone()
        if least.shape != (self.num_tasks,) or not bool(torch.isfinite(least).all()):
            raise ValueError(f"`min_losses` must be {self.num_tasks} finite numbers; found {min_losses!r}.")
        self._bounded = bool((least != 0).any())
        self.gamma = gamma
        self.lr = lr
        self.second_look = second_look
        self.needs_after_step = second_look == "same"
        self.permutation_equivariant = bool((least == least[0]).all())
        self.min_losses: Tensor
        self.logits: Tensor
        self.moment1: Tensor
        self.moment2: Tensor
        self.updates: Tensor
        self.before: Tensor
        self.awaited: Tensor
        self.register_buffer("min_losses", least)
        self.register_buffer("logits", torch.zeros(self.num_tasks))
        self.register_buffer("moment1", torch.zeros(self.num_tasks))
        self.register_buffer("moment2", torch.zeros(self.num_tasks))
        self.register_buffer("updates", torch.zeros(self.num_tasks))  # steps of Adam, a task's own
        self.register_buffer("before", torch.zeros(self.num_tasks))  # log D of the last forward
        self.register_buffer("awaited", torch.zeros(self.num_tasks, dtype=torch.bool))  # tasks to look at again

    def objective(self, batch: Batch, shared: list[Tensor] | None) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        logits = self.logits
        if self.training and not self.needs_after_step:
            logits = self._update(batch)
        excess = self._excess(batch.losses, batch.present)
        log = excess.log()
        z = batch.only(logits, -torch.inf).softmax(0)
        z = alike(z, log)
        ratio = z / excess.detach()
        c = ratio.sum()
        if self.training:
            batch.keep(self.before, log, per_task=True)
            batch.keep(self.awaited, torch.ones_like(self.awaited) if batch.present is None else batch.present)
        return torch.dot(z, log) / c, ratio / c

    def after_step(
        self,
        losses: Losses,
        *,
        present: Tensor | Sequence[bool] | None = None,
        counts: Tensor | Sequence[float] | None = None,
    ) -> None:
        """Move the weights by how much each loss fell; the forms of `forward`, but the losses need no graph."""
        if not (self.training and self.needs_after_step):
            return
        if torch.is_grad_enabled():
            with torch.no_grad():
                self.after_step(losses, present=present, counts=counts)
            return
        values, mask, given = read(losses, self.tasks, self._named, present)
        if world_size(self.process_group) > 1:
            values, mask, _ = join_losses(values, mask, label_counts(counts, values), self.process_group)
        ok = self._check_losses(values, mask)
        if self.skipped:
            return
        batch = Batch(values, mask, ok, given, None, [] if ok is None else None)
        self._update(batch)
        batch.keep(self.awaited, torch.zeros_like(self.awaited))
        batch.commit()

    def _update(self, batch: Batch) -> Tensor:
        """One step of Adam on the logits of the tasks that were looked at twice; returns the new logits."""
        now = alike(self._excess(batch.values, batch.present).log(), self.before)
        present: Tensor | None = self.awaited if batch.present is None else self.awaited & batch.present
        if batch.ok is None and all(self.awaited.tolist()):
            present = batch.present  # the usual case needs no masks
        twice = batch._replace(present=present)
        fell = twice.only(self.before - now)
        if batch.ok is None and present is None and self.num_tasks <= FEW:
            new = self._adam_of_few(fell)
        else:
            new = self._adam(twice, fell)
        for old, tensor in zip((self.logits, self.moment1, self.moment2, self.updates), new, strict=True):
            twice.keep(old, tensor, per_task=True)
        return new[0] if present is None else torch.where(present, new[0], self.logits)

    def _adam(self, twice: Batch, fell: Tensor) -> Sequence[Tensor]:
        """Logits, moments and numbers of updates after the log losses fell by `fell`."""
        z = twice.only(self.logits, -torch.inf).softmax(0)  # all nan when no task was, which is not kept
        gradient = z * (fell - torch.dot(z, fell)) + self.gamma * self.logits
        moment1 = torch.lerp(self.moment1, gradient, 1 - BETA1)
        moment2 = torch.lerp(self.moment2, gradient.square(), 1 - BETA2)
        updates = self.updates + 1
        mean = moment1 / -torch.expm1(updates * math.log(BETA1))
        deviation = (moment2 / -torch.expm1(updates * math.log(BETA2))).sqrt()
        logits = self.logits - self.lr * mean / (deviation + ADAM_EPSILON)
        return logits, moment1, moment2, updates

    def _adam_of_few(self, fell: Tensor) -> Sequence[Tensor]:
        """`_adam` in plain Python, where no task is absent: inside a step for a third of the time of operators."""
        logits, falls = self.logits.tolist(), fell.tolist()
        top = max(logits)
        z = [math.exp(w - top) for w in logits]
        total = sum(z)
        mean_fall = sum(map(operator.mul, z, falls)) / total
        after = []
        for w, share, fall, m1, m2, updates in zip(
            logits, z, falls, self.moment1.tolist(), self.moment2.tolist(), self.updates.tolist(), strict=True
        ):
            gradient = share / total * (fall - mean_fall) + self.gamma * w
            m1 += (1 - BETA1) * (gradient - m1)
            m2 += (1 - BETA2) * (gradient * gradient - m2)
            updates += 1
            mean = m1 / -math.expm1(updates * math.log(BETA1))
            deviation = math.sqrt(m2 / -math.expm1(updates * math.log(BETA2)))
            after.append((w - self.lr * mean / (deviation + ADAM_EPSILON), m1, m2, updates))
        return self.logits.new_tensor(after).unbind(1)

    def _excess(self, losses: Tensor, present: Tensor | None) -> Tensor:
        """How far the losses are above their bounds; 1 for absent tasks."""
        excess = losses + EPSILON if not self._bounded else losses - self.min_losses.to(losses) + EPSILON
        return excess if present is None else torch.where(present, excess, 1.0)

    @property
    def _least(self) -> float:
        return math.inf if self._bounded else 0.0

    def _refused(self, values: Tensor) -> Tensor:
        return (self._excess(values, None) <= 0).to(torch.uint8) * NON_POSITIVE

    def _rule(self, reason: int) -> str:  # noqa: ARG002 (there is one reason)
        return "must be above its `min_losses` for FAMO, which takes the logarithm of what is above them"

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._bounded = bool((self.min_losses != 0).any())
