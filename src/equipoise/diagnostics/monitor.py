"""`Monitor`: watches a balancer from inside an existing training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.balancer import Balancer
from equipoise.capture import Capture, tensors_in
from equipoise.diagnostics import rules
from equipoise.diagnostics.advice import advise
from equipoise.diagnostics.diagnosis import Diagnosis, is_fixed, plain
from equipoise.diagnostics.gradients import gram_of
from equipoise.diagnostics.look import Look, look_at, seen_of
from equipoise.diagnostics.pull import factors_of
from equipoise.losses import Batch, read

HISTORY = 200  # looks kept; of more every second one goes, and from then on half as many are taken
SHARE = 0.01  # of the time, what looking at gradients may cost
GUESSES = {True: 1.0, False: 0.025}  # of a step a task, at parameters and at features, before the first was timed


class Monitor:
    """Looks at every 100th step of a balancer: losses, weights, gradients, and what goes wrong.

        monitor = eq.Monitor(balancer)
        ...the training loop, as it was...
        print(monitor.report())

    A forward hook on the balancer; nothing in the loop, the balancer's state or the random numbers changes. Steps in
    between ask nothing of the device. Steps in eval mode, without gradients, or inside a compiled region or a CUDA
    graph are not seen.

    Where the gradients come from: a gradient method's are there already. For other methods they are taken at what
    the call got as `shared`, or at what the module `shared` returned, as rarely as it takes to stay below 1 % of the
    time; without `shared` the losses and weights are all there is. (`shared` as a generator is used up by the
    balancer: pass a list.)

    history: one dictionary of plain numbers a look, at most 200 of them: of more, every second one goes.
    every: looks at each so many-th step.  shared: a module, for methods that take no `shared`.

    >>> import torch, equipoise as eq
    >>> balancer = eq.LDC(num_tasks=2)
    >>> monitor = eq.Monitor(balancer, every=2)
    >>> w = torch.nn.Parameter(torch.tensor([1.0, 1.0]))
    >>> for _ in range(4):
    ...     balancer([w[0] ** 2, (w[1] - 30) ** 2], shared=[w]).backward()
    >>> [row["step"] for row in monitor.history], monitor.report().look.discrepancy.max
    ([2, 4], 841.0)
    """

    def __init__(self, balancer: Balancer, every: int = 100, *, shared: nn.Module | None = None) -> None:
        if not isinstance(balancer, Balancer):
            raise TypeError(f"`balancer` must be a Balancer; found {type(balancer).__name__}.")
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"`every` must be a whole number of at least 1; found {every!r}.")
        self.balancer = balancer
        self.every = every
        self.history: list[dict[str, Any]] = []
        self.steps = 0
        self._stride = every
        self._absent = [0] * balancer.num_tasks
        self._masked: Tensor | None = None  # steps in which `present=` left a task out, on the device
        self._fell: Tensor | None = None  # steps in which the solver fell back, on the device
        self._looks: list[Look] = []  # the last few, for rules that need several
        self._with_gradients: list[Look] = []  # the last few of those
        self._cannot: str | None = None  # why gradients cannot be taken here
        self._began: float | None = None
        self._spent = 0.0  # seconds that looking at gradients took
        self._last: float | None = None  # and what the last time took
        self._waits = False  # whether gradients could be had and were too dear so far
        self._capture = Capture()
        if shared is not None:
            self._capture.attach(shared)
        self._handle = balancer.register_forward_hook(self._see, with_kwargs=True)

    def close(self) -> None:
        """Stop looking; what was seen stays."""
        self._handle.remove()
        self._capture.attached = False

    def report(self) -> Diagnosis:
        """What was seen: the newest look, the newest gradients, and every finding once."""
        tasks = self.balancer.tasks
        if not self._looks:
            nothing = Look([math.nan] * len(tasks), [False] * len(tasks))
            what = f"Nothing was seen yet: {self.steps} steps passed, and the first look is at step {self._stride}."
            return Diagnosis(tasks, nothing, None, (), what, self.steps)
        look = self._looks[-1]
        if look.conflict is None and self._with_gradients and not look.bad_gradients:
            old = self._with_gradients[-1]
            if old.present == look.present:
                look = replace(look, conflict=old.conflict, stationarity=old.stationarity)
        findings = rules.of_step(tasks, look)
        fixed = is_fixed(self.balancer)
        findings += rules.of_weights(tasks, self._looks, fixed=fixed)
        findings += rules.of_pull(tasks, self._with_gradients, fixed=fixed)
        fell = 0 if self._fell is None else int(self._fell)
        findings += rules.of_training(tasks, self.steps, fell, self._absences())
        if self._cannot is not None:
            findings.append(rules.Finding("no-look", self._cannot))
        elif self._waits and look.conflict is None:
            text = (
                f"Gradients were not taken yet: so early that is over {SHARE:.0%} of the time. eq.diagnose takes them."
            )
            findings.append(rules.Finding("no-look", text))
        return Diagnosis(tasks, look, None, tuple(findings), advise(look, findings), self.steps)

    def state_dict(self) -> dict[str, Any]:
        """What was seen so far, as plain values: the balancer's own state does not hold it."""
        fell = 0 if self._fell is None else int(self._fell)
        return {
            "steps": self.steps, "stride": self._stride, "absent": self._absences(), "fell_back": fell,
            "history": list(self.history),
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there; rules that need several looks wait for new ones."""
        if len(state["absent"]) != len(self._absent):
            raise ValueError(f"the state is of {len(state['absent'])} tasks; this monitor has {len(self._absent)}.")
        self.steps, self._stride = state["steps"], state["stride"]
        self._absent, self._masked = list(state["absent"]), None
        self._fell = torch.tensor(state["fell_back"], device=self.balancer.step.device)
        self.history = list(state["history"])
        self._looks, self._with_gradients = [], []

    # What happens at a step.

    def _see(self, balancer: Balancer, args: tuple[Any, ...], kwargs: Mapping[str, Any], scalar: Tensor) -> None:
        if torch.compiler.is_compiling() or not (balancer.training and torch.is_grad_enabled()):
            return
        if scalar.is_cuda and torch.cuda.is_current_stream_capturing():
            return
        caught = self._capture.take()
        if balancer.skipped:
            return
        if self._began is None:
            self._began = time.perf_counter()
        self.steps += 1
        losses = args[0] if args else kwargs["losses"]
        present = kwargs.get("present")
        self._count(losses, present)
        if self.steps % self._stride == 0:
            shared = args[1] if len(args) > 1 else kwargs.get("shared")
            self._look(losses, present, caught or _listed(shared), scalar)

    def _count(self, losses: Any, present: Tensor | Sequence[bool] | None) -> None:
        """Who is absent and whether the solver fell back, without asking the device."""
        holes: list[int] = []
        if not isinstance(losses, Tensor):
            tasks = self.balancer.tasks
            given = [losses.get(task) for task in tasks] if isinstance(losses, Mapping) else losses
            holes = [i for i, loss in enumerate(given) if loss is None]
        if present is None:
            for i in holes:
                self._absent[i] += 1
        else:
            out = ~torch.as_tensor(present)
            for i in holes:
                out[i] = True
            self._masked = out.long() if self._masked is None else self._masked + out
        fell = self.balancer.status.get("regularised")
        if isinstance(fell, Tensor):
            self._fell = fell.long() if self._fell is None else self._fell + fell

    def _absences(self) -> list[int]:
        masked = [0] * len(self._absent) if self._masked is None else self._masked.tolist()
        return [a + b for a, b in zip(self._absent, masked, strict=True)]

    def _look(self, losses: Any, present: Any, shared: list[Tensor], scalar: Tensor) -> None:
        balancer = self.balancer
        values, mask, given = read(losses, balancer.tasks, balancer._named, present)
        batch = Batch(values, mask, None, given, None)
        seen = seen_of(balancer)
        pull = factors_of(scalar, given)
        if pull is not None:
            seen["pull"] = pull
        seen["router_gradient"] = _router_gradient(balancer, scalar)
        began = time.perf_counter()
        gram = self._gram(batch, shared, began)
        look = look_at(batch, gram, step=self.steps, **seen)
        if gram is not None:
            self._last = time.perf_counter() - began
            self._spent += self._last
        if look.conflict is not None:
            self._with_gradients = [*self._with_gradients[1 - rules.WINDOW :], look]
        self._looks = [*self._looks[1 - rules.WINDOW :], look]
        self._remember(look)

    def _gram(self, batch: Batch, shared: list[Tensor], now: float) -> Tensor | None:
        """The Gram matrix: the balancer's own, or taken here if that is known, possible and not too dear by now."""
        own: Tensor | None = getattr(self.balancer, "_gram", None)
        if own is None and (not shared or self._cannot is not None):
            return None
        assert self._began is not None
        passed = now - self._began
        price = self._last
        if price is None:  # a pass of the trunk a task, or of a head
            at_parameters = any(tensor.is_leaf for tensor in shared)
            price = 0.0 if own is not None else passed / self.steps * GUESSES[at_parameters] * len(batch.losses)
        self._waits = self._spent + price > SHARE * passed
        if self._waits:
            return None
        if own is not None:
            return own.cpu()
        try:
            return gram_of(batch, shared).cpu()  # waits for the device, so that the time is what it took
        except (RuntimeError, ValueError, TypeError) as error:  # looking on must never stop a training run
            self._cannot = f"Gradients could not be taken: {error}"
            return None

    def _remember(self, look: Look) -> None:
        if len(self.history) == HISTORY:
            self._stride *= 2
            self.history = [row for row in self.history if row["step"] % self._stride == 0]
        spread, conflict, point = look.discrepancy, look.conflict, look.stationarity
        self.history.append(
            plain({
                "step": look.step,
                "losses": look.losses,
                "weights": look.weights,
                "pull": look.pull,
                "discrepancy": None if spread is None else spread._asdict(),
                "gradient_norms": None if conflict is None else conflict.norms.tolist(),
                "conflicting": None if conflict is None else conflict.conflicting,
                "opposed": None if conflict is None else conflict.opposed,
                "lowest_cosine": None if conflict is None else conflict.lowest,
                "stationarity": None if point is None else point.value,
                "router_gradient": look.router_gradient,
                "status": dict(look.status),
            })
        )  # fmt: skip


def _listed(shared: Any) -> list[Tensor]:
    """The tensors that a call got as `shared`; none of a generator, which the balancer has used up."""
    if isinstance(shared, (Tensor, list, tuple, dict)):
        return list(tensors_in(shared))
    return []


def _router_gradient(balancer: Balancer, scalar: Tensor) -> float | None:
    """The norm of the router's gradient; None without a router."""
    router = getattr(balancer, "router", None)
    if not isinstance(router, nn.Module) or not scalar.requires_grad:
        return None
    own = [parameter for parameter in router.parameters() if parameter.requires_grad]
    if not own:
        return None
    taken = torch.autograd.grad(scalar, own, retain_graph=True, allow_unused=True)
    return math.sqrt(sum(float(gradient.double().square().sum()) for gradient in taken if gradient is not None))
