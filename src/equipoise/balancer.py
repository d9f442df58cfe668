"""The contract: K losses in, one scalar out, whose `.backward()` leaves the method's gradient."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict

import torch
import torch.distributed as dist
from torch import Tensor, nn

from equipoise.capture import Capture, tensors_in
from equipoise.checks import Checked
from equipoise.distributed import alone, broadcast_from_first, join_losses, world_size
from equipoise.losses import Batch, Losses, OutOfRange, label_counts, read, task_names

Shared: TypeAlias = "Tensor | Sequence[Tensor] | Iterator[Tensor]"


class CommonOptions(TypedDict, total=False):
    """Options every method takes besides its own."""

    tasks: Sequence[str] | None
    on_nonfinite: Literal["raise", "skip"]
    shared: nn.Module | None
    epoch_steps: int | None
    process_group: dist.ProcessGroup | None


class Balancer(Checked):
    """Turns K losses into ONE scalar; `.backward()` on it leaves the method's gradient on every parameter.

    A method is a subclass with `objective`. Whatever a trainer does to a scalar loss (scaling, accumulating,
    adding terms, clipping after) stays right, since the result is an ordinary scalar of the graph.

    num_tasks: K; or tasks: the K names, which lets `losses` be a mapping.
    on_nonfinite: "raise" names the task whose loss is NaN or infinite; "skip" drops the step: the scalar is 0
        and reaches nothing, `skipped` is True. On CUDA, and while compiling, a step asks nothing of the device:
        the failure is latched, the step is dropped, and `check()` or `start_epoch()` raise.
    shared: the module whose outputs are the shared representation, caught as it runs.
    epoch_steps: steps in an epoch, for methods that look at epochs, in place of calling `start_epoch()`.
    process_group: the ranks whose losses are joined; by default all of an initialised torch.distributed. In `eval()`
        each rank looks at its own losses, and one may do so alone.
    """

    needs_shared: bool = False
    needs_after_step: bool = False
    #: Multiplying each task's loss by a positive constant of its own, from the first step on, changes no gradient.
    scale_invariant: bool = False
    #: Reordering the tasks reorders the weights and changes nothing else.
    permutation_equivariant: bool = True
    #: The method looks at epochs: `start_epoch()` or `epoch_steps=` tells it where they begin.
    uses_epochs: bool = False
    #: The method needs losses above zero (a logarithm or a quotient).
    needs_positive: bool = False

    def __init__(
        self,
        num_tasks: int | None = None,
        *,
        tasks: Sequence[str] | None = None,
        on_nonfinite: Literal["raise", "skip"] = "raise",
        shared: nn.Module | None = None,
        epoch_steps: int | None = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        self.tasks, self._named = task_names(num_tasks, tasks)
        self.num_tasks = len(self.tasks)
        if on_nonfinite not in ("raise", "skip"):
            raise ValueError(f"`on_nonfinite` must be 'raise' or 'skip'; found {on_nonfinite!r}.")
        if epoch_steps is not None and epoch_steps < 1:
            raise ValueError(f"`epoch_steps` must be at least 1; found {epoch_steps}.")
        self.on_nonfinite = on_nonfinite
        self.epoch_steps = epoch_steps
        self.process_group = process_group
        self.skipped = False  # whether the last step was dropped, where that is known without a sync
        self.status: dict[str, Any] = {}  # what the method has to say about its last step
        self._capture = Capture()
        if shared is not None:
            if not isinstance(shared, nn.Module):
                raise TypeError(
                    "`shared` of the constructor must be a module whose outputs are caught as it runs; tensors "
                    f"and parameters are passed with each call. Found {type(shared).__name__}."
                )
            self._capture.attach(shared)
        self._calls = 0  # forwards since the last start_epoch(), to warn when nobody calls it
        self._agreed = False  # whether the ranks start from rank 0's state
        self.last_weights: Tensor
        self.step: Tensor
        self.new_epoch: Tensor
        self.failed: Tensor
        self.register_buffer("last_weights", torch.ones(self.num_tasks))
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        self.register_buffer("new_epoch", torch.ones((), dtype=torch.bool))
        self.register_buffer("failed", torch.zeros(self.num_tasks, dtype=torch.uint8), persistent=False)
        if self.step.is_meta:
            raise ValueError(
                "a balancer must not be built on the meta device, where its state would be lost. Found it inside "
                "torch.device('meta'), as in a Hugging Face `from_pretrained`: add it to the model afterwards."
            )

    # What a method fills in.

    def objective(self, batch: Batch, shared: list[Tensor] | None) -> tuple[Tensor, Tensor]:
        """The scalar of this step, attached to the graph, and the weights it applied, detached."""
        raise NotImplementedError

    # What a caller uses.

    def forward(
        self,
        losses: Losses,
        shared: Shared | None = None,
        *,
        present: Tensor | Sequence[bool] | None = None,
        counts: Tensor | Sequence[float] | None = None,
    ) -> Tensor:
        """One scalar for this step's losses.

        losses: K scalars in the tasks' order, a tensor [K], or a mapping from task names; a task absent from
            this batch is None, False in `present`, or a missing key.
        shared: the shared representation or the shared parameters, for methods that need it.
        counts: labels per task on this rank, which makes the joined losses of several ranks exact.
        """
        group = self._group
        ranks = world_size(group)
        if ranks > 1:
            self._agree(group)
        values, mask, given = read(losses, self.tasks, self._named, present)
        if values.device != self.step.device:
            raise ValueError(
                f"`losses` must be on the balancer's device, {self.step.device}; found {values.device}: "
                "move the balancer with .to(device)."
            )
        labels = label_counts(counts, values)
        factor = None
        if ranks > 1:
            values, mask, factor = join_losses(values, mask, labels, group)
        ok = self._check_losses(values, mask)
        if self.skipped:
            return self._dropped(values)
        if ok is not None:
            values = torch.where(ok, values, 1.0)
        batch = Batch(values, mask, ok, given, factor, [] if ok is None else None)
        try:
            scalar, weights = self.objective(batch, self._shared_tensors(shared))
            if ok is None:
                self._check_result(scalar, weights, values)
            if self.training:
                self._advance(batch, weights)
        except OutOfRange:
            if self.on_nonfinite != "skip":
                raise
            self.skipped = True
            return self._dropped(values)
        return scalar if ok is None else torch.where(ok, scalar, 0.0)

    @property
    def weights(self) -> Tensor:
        """The weights last applied, [K], detached; an absent task's is 0. Ones before the first step."""
        return self.last_weights.clone()

    def start_epoch(self) -> None:
        """Say that a new epoch begins; raises what `check()` raises."""
        self.check()
        self.new_epoch.fill_(True)
        self._calls = 0

    def after_step(
        self,
        losses: Losses,
        *,
        present: Tensor | Sequence[bool] | None = None,
        counts: Tensor | Sequence[float] | None = None,
    ) -> None:
        """Look again at the same batch after the optimizer's step; only `needs_after_step` methods do."""

    def param_groups(self, lr: float | None = None, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        """The balancer's own parameters as optimizer groups, with their own rate and no decay."""
        params = list(self.parameters())
        if not params:
            return []
        group: dict[str, Any] = {"params": params, "weight_decay": weight_decay}
        if lr is not None:
            group["lr"] = lr
        return [group]

    def extra_repr(self) -> str:
        return f"tasks={self.tasks!r}" if self._named else f"num_tasks={self.num_tasks}"

    # The machinery.

    @property
    def _group(self) -> dist.ProcessGroup | None:
        """The ranks that are joined. In evaluation nothing is kept, so nobody is waited for."""
        return self.process_group if self.training else alone()

    def _agree(self, group: dist.ProcessGroup | None) -> None:
        """Start every rank from rank 0's parameters, buffers and seeds, once."""
        if self._agreed or torch.compiler.is_compiling():
            return
        broadcast_from_first([*self.parameters(), *self.buffers()], group)
        self._agreed = True

    def _dropped(self, values: Tensor) -> Tensor:
        """A zero that reaches nothing; under DDP, whose reducer waits for every gradient, one that reaches zeros."""
        if world_size(self._group) > 1:
            return torch.where(torch.isfinite(values), values, 0.0).sum() * 0.0
        return torch.zeros((), dtype=values.dtype, device=values.device, requires_grad=True)

    def _shared_tensors(self, shared: Shared | None) -> list[Tensor] | None:
        if shared is None:
            caught = self._capture.take()
            if caught:
                return caught
            if self.needs_shared:
                raise ValueError(
                    f"{type(self).__name__} needs `shared`: the shared representation or parameters with each "
                    "call, or the shared module once, to the constructor. Found none"
                    + (" (the module did not run with gradients on)." if self._capture.attached else ".")
                )
            return None
        self._capture.take()
        tensors = list(tensors_in(list(shared) if not isinstance(shared, (Tensor, dict)) else shared))
        if not tensors and self.needs_shared:
            raise ValueError("`shared` must hold at least one tensor; found none.")
        return tensors

    def _advance(self, batch: Batch, weights: Tensor) -> None:
        batch.keep(self.last_weights, weights)
        batch.keep(self.step, self.step + 1)
        if self.uses_epochs:
            batch.keep(self.new_epoch, torch.zeros_like(self.new_epoch))
        batch.commit()
        if self.uses_epochs and self.epoch_steps is None and not torch.compiler.is_compiling():
            self._calls += 1
            if self._calls == 1000:
                warnings.warn(
                    f"{type(self).__name__} looks at epochs, but 1,000 steps passed without start_epoch(): call it "
                    "at the start of each epoch, or give epoch_steps=.",
                    stacklevel=5,
                )

    def _epoch_begins(self) -> Tensor:
        """Whether this step is the first of an epoch, as a tensor."""
        if self.epoch_steps is None:
            return self.new_epoch
        return self.new_epoch | (self.step % self.epoch_steps == 0)

    def _epoch_begins_here(self) -> bool:
        """The same where the state may be looked at, for a quarter of the time."""
        begins = self.epoch_steps is not None and self.step.item() % self.epoch_steps == 0
        return begins or bool(self.new_epoch.item())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Balancer:
        """Move like any module, but stay at least float32 under .half() and .bfloat16()."""

        def at_least_float32(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            if moved.dtype in (torch.float16, torch.bfloat16) and tensor.dtype != moved.dtype:
                return tensor.to(moved.device)
            return moved

        super()._apply(at_least_float32, recurse)  # type: ignore[no-untyped-call]
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Process groups belong to a process, not to a pickle."""
        return {**self.__dict__, "process_group": None, "status": {}, "_agreed": False}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._capture.resume()

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Like any module's, but all or nothing: a state that does not fit leaves this one as it was."""
        modules = list(self.modules())
        before = [{n: t if t is None else t.clone() for n, t in m._buffers.items()} for m in modules]
        params = [p.detach().clone() for p in self.parameters()]
        try:
            return super().load_state_dict(state_dict, strict, assign)
        except BaseException:
            for module, tensors in zip(modules, before, strict=True):
                module._buffers.update(tensors)
            with torch.no_grad():
                for param, value in zip(self.parameters(), params, strict=True):
                    param.copy_(value)
            raise

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], strict: bool,
        missing_keys: list[str], unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        error_msgs += self._complaints_of_state(state_dict, prefix)
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
