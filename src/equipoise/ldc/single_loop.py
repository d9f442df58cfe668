"""LDC-MTL in a single loop: one backward of one scalar for the model and the router together."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import Self, Unpack

from equipoise.balancer import Balancer, CommonOptions, Shared
from equipoise.checks import NON_POSITIVE
from equipoise.distributed import join_losses, world_size
from equipoise.ldc.objective import log_ratio, lower, ratio, rescale
from equipoise.ldc.pairs import Pairs
from equipoise.ldc.presets import preset_options
from equipoise.ldc.router import FeatureRouter, SigmoidRouter, SoftmaxRouter, make_router
from equipoise.losses import ABSENT, LARGEST, SMALLEST, Batch, alike, nearest

NORMALIZATIONS = ("rescale", "log", "ratio")
TINY = 1e-12  # a smaller first loss is no unit to measure in
ZERO_FIRST = 3  # what `failed` latches for it


class LDC(Balancer):
    """Loss Discrepancy Control (arXiv 2502.08585), Algorithm 2: g + 0.1 f, weights that even the losses out.

    n are the losses normalised, sigma the router's weights, g = sum of sigma_i n_i, and
    f = sum over pairs of |tau_i n_i - tau_j n_j| the discrepancy. The scalar is g + discrepancy f, what the
    paper's experiments use, or f + penalty g, what the paper writes.

    router: "softmax" (free logits on the simplex), "sigmoid" (sigmoid(relu(w)): the authors' QM9),
        "sigmoid-free" (no relu: their CelebA), "softmax-clamped" (to [0.2, 0.8]), None (equal weights: what the
        gap term does alone), or a module that maps the shared features to K positive weights, as `FeatureRouter`.
    router_objective: what the router descends: "both" is Algorithm 2 as printed, in which g moves the weight to
        the smallest loss; "upper" is f alone (g sees the weights as constants), which makes sigma_i n_i equal.
    tau: "weights" (tau = sigma), "ones", or K preferences.
    normalize: n = l / |l0| with the first losses ("rescale"), log(l / l0) with the first of the epoch ("log"),
        l min(l0) / l0 ("ratio": the authors' NYU-v2 code), l / s with K scales s, or l (None).
    discrepancy: the factor of f, 0.1 unless `penalty` is given; penalty: the factor of g in f + penalty g.
    pairs: "chain" (i, i + 1), "shuffle" (the chain in a new order each step), "all", or a list of pairs. A chain
        depends on the order of the tasks for K > 2.
    smooth: above 0, |v| becomes sqrt(v^2 + smooth).  floor: mixes floor / K into the softmax router's weights.
    min_losses: K lower bounds, subtracted from the losses first.
    divide: g by the sum of the weights, "detached" or "attached", or not (None); "router": "detached" for
        sigmoid routers, None for the others.
    detach_features: whether the router's features are out of the graph.

    Weights of absent tasks are 0, their pairs are left out, and their l0 waits for them. Of several ranks, a
    `FeatureRouter` sees the features of all; another module's weights are averaged over the ranks (exact
    where they are means over samples), and so must be its gradients: put the balancer inside what DDP wraps.

    >>> import torch, equipoise as eq
    >>> balancer = eq.LDC(num_tasks=3)
    >>> w = torch.tensor(1.0, requires_grad=True)
    >>> balancer([w * 1.0, w * 10.0, w * 100.0])
    tensor(1., grad_fn=<AddBackward0>)
    >>> balancer.weights
    tensor([0.3333, 0.3333, 0.3333])
    """

    def __init__(
        self,
        num_tasks: int | None = None,
        *,
        router: str | nn.Module | None = "softmax",
        router_objective: Literal["upper", "both"] = "upper",
        tau: Literal["weights", "ones"] | Tensor | Sequence[float] = "weights",
        normalize: Literal["rescale", "log", "ratio"] | Tensor | Sequence[float] | None = "rescale",
        discrepancy: float | None = None,
        penalty: float | None = None,
        pairs: Literal["chain", "shuffle", "all"] | Sequence[Sequence[int]] = "chain",
        smooth: float = 0.0,
        floor: float = 0.0,
        min_losses: Tensor | Sequence[float] | None = None,
        divide: Literal["router", "detached", "attached"] | None = "router",
        detach_features: bool = True,
        **common: Unpack[CommonOptions],
    ) -> None:
        super().__init__(num_tasks, **common)
        self.g_factor, self.f_factor = _factors(discrepancy, penalty)
        self.router = make_router(router, self.num_tasks, floor)
        self.reads_features = self.router is not None and not isinstance(self.router, (SoftmaxRouter, SigmoidRouter))
        self.needs_shared = self.reads_features
        self.detach_features = detach_features
        self.router_objective = _choice("router_objective", router_objective, ("upper", "both"))
        self.tau = tau if isinstance(tau, str) else "given"
        _choice("tau", self.tau, ("weights", "ones", "given"))
        if router_objective == "upper" and self.tau != "weights" and self.router is not None:
            raise ValueError(
                "`router_objective='upper'` needs tau='weights': with other tau the discrepancy does not depend on "
                f"the router, which would never move; found tau={tau!r}. Use router_objective='both'."
            )
        if divide == "router":
            sigmoid = isinstance(self.router, SigmoidRouter) or getattr(self.router, "output", None) == "sigmoid"
            divide = "detached" if sigmoid else None
        elif divide is not None:
            _choice("divide", divide, ("router", "detached", "attached"))
        self.divide = divide
        self.normalize = normalize if isinstance(normalize, str) or normalize is None else "scales"
        if self.normalize is not None:
            _choice("normalize", self.normalize, (*NORMALIZATIONS, "scales"))
        self.needs_positive = self.normalize in ("log", "ratio")
        self.uses_epochs = self.normalize == "log"
        self.preferences: Tensor | None
        self.scales: Tensor | None
        self.min_losses: Tensor | None
        self._constant("preferences", None if isinstance(tau, str) else tau, "tau", 0.0)
        self._constant("scales", normalize if self.normalize == "scales" else None, "normalize", TINY)
        self._constant("min_losses", min_losses, "min_losses", -math.inf)
        self.first_losses: Tensor  # 0 until the task is first seen
        if self.normalize in NORMALIZATIONS:
            self.register_buffer("first_losses", torch.zeros(self.num_tasks))
        self.pairs = Pairs(self.num_tasks, pairs, smooth)
        shifted = self.min_losses is not None and bool(self.min_losses.any())
        self.scale_invariant = self.normalize in ("rescale", "log") and not shifted
        constants = (self.preferences, self.scales, self.min_losses)
        self.permutation_equivariant = self.num_tasks == 1 or (
            all(bool((c == c[0]).all()) for c in constants if c is not None)
            and (self.router is None or isinstance(self.router, SoftmaxRouter) or router == "sigmoid-free")
            and (self.pairs.symmetric or self.f_factor == 0.0)
        )

    @classmethod
    def preset(
        cls, name: str, num_tasks: int | None = None, *, tasks: Sequence[str] | None = None, **options: Any
    ) -> Self:
        """A published form, from the authors' code or the paper's table; `options` override its parts.

        "qm9", "celeba", "cityscapes", "nyuv2" (the paper's table) and "nyuv2-code" (what the code does). The last
        three read features: those of each task's last decoder block, 64 channels a task.

        >>> import equipoise as eq
        >>> eq.LDC.preset("qm9", num_tasks=11).normalize
        'log'
        """
        count = len(tasks) if tasks is not None else num_tasks
        return cls(num_tasks, tasks=tasks, **preset_options(name, count or 1, options))

    def objective(self, batch: Batch, shared: list[Tensor] | None) -> tuple[Tensor, Tensor]:
        n = self._normalised(batch.losses, batch.present, batch)
        sigma = self._sigma(batch.present, n, shared)
        weights = sigma.detach()
        g = self._lower(weights if self.router_objective == "upper" else sigma, n)
        f = self.pairs(self._compared(sigma, n), batch.present, self.step)
        if self.f_factor == 1.0:
            return torch.add(f, g, alpha=self.g_factor), weights
        return torch.add(g, f, alpha=self.f_factor), weights

    def _compared(self, sigma: Tensor, n: Tensor) -> Tensor:
        """u = tau n, whose gaps f adds up."""
        if self.tau == "weights":
            return sigma * n
        return n if self.preferences is None else n * self.preferences.to(n)

    def _lower(self, sigma: Tensor, n: Tensor) -> Tensor:
        """g, divided by the sum of the weights where the router asks for it."""
        g = lower(sigma, n)
        if self.divide is None:
            return g
        return g / (sigma.detach() if self.divide == "detached" else sigma).sum()

    def _normalised(self, losses: Tensor, present: Tensor | None, batch: Batch | None = None) -> Tensor:
        """n; with `batch`, the first losses of a task are kept."""
        if self.min_losses is not None:
            losses = losses - self.min_losses.to(losses)
            losses = losses if present is None else torch.where(present, losses, ABSENT)
        if self.normalize is None:
            return losses
        if self.scales is not None:
            return losses / self.scales.to(losses)
        seen = self.first_losses
        if batch is not None and batch.ok is None and self._all_seen():
            first = alike(seen, losses)
        else:
            if self.uses_epochs and batch is not None:
                seen = torch.where(self._epoch_begins(), 0.0, seen)
            first = torch.where(seen == 0.0, losses.detach(), seen.to(losses))
            if batch is not None and self.training:
                kept = first.to(seen)
                batch.keep(self.first_losses, kept if batch.present is None else torch.where(batch.present, kept, seen))
        if self.normalize == "rescale":
            return rescale(losses, first)
        if self.normalize == "log":
            return log_ratio(losses, first)
        known = seen != 0.0
        if batch is not None:
            known = torch.ones_like(known) if batch.present is None else known | batch.present
        return ratio(losses, first, known)

    def _all_seen(self) -> bool:
        """Whether every first loss is known, so that nothing is written: nearly all steps, where one may look."""
        return all(self.first_losses.tolist()) and not (self.uses_epochs and self._epoch_begins_here())

    def _sigma(self, present: Tensor | None, n: Tensor, shared: list[Tensor] | None) -> Tensor:
        """The router's weights, 0 for absent tasks."""
        if self.router is None:
            tasks = n.shape[0] if present is None else present.sum()
            sigma = torch.ones_like(n.detach()) / tasks
        elif not self.reads_features:
            sigma = self.router(present)
        elif shared is None:  # an evaluation whose features were not passed: the weights last applied
            sigma = self.last_weights
        else:
            features = [tensor.detach() for tensor in shared] if self.detach_features else shared
            if isinstance(self.router, FeatureRouter):
                sigma = self.router(*features, present=present, join=self._join)
            else:
                sigma = self.router(*features)
            if sigma.shape != n.shape:
                raise ValueError(f"`router` must return {n.shape[0]} weights; found shape {tuple(sigma.shape)}.")
            if not isinstance(self.router, FeatureRouter):
                sigma = self._join(sigma, 1)
        sigma = alike(sigma, n)
        return sigma if present is None else torch.where(present, sigma, 0.0)

    def _shared_tensors(self, shared: Shared | None) -> list[Tensor] | None:
        return None if shared is None and not torch.is_grad_enabled() else super()._shared_tensors(shared)

    def _join(self, means: Tensor, samples: int) -> Tensor:
        """Means over this rank's samples to means over those of all ranks; the gradient stays local."""
        if world_size(self._group) == 1:
            return means
        return join_losses(means, None, torch.full_like(means, samples), self._group)[0]

    @property
    def _least(self) -> float:
        if self.min_losses is not None:
            return math.inf
        return TINY if self.normalize == "rescale" else super()._least

    def _refused(self, values: Tensor) -> Tensor | None:
        if self.min_losses is not None:
            values = values - self.min_losses.to(values)
        if self.needs_positive:
            return (values < SMALLEST).to(torch.uint8) * NON_POSITIVE
        if self.normalize == "rescale":
            return ((values.abs() < TINY) & (self.first_losses == 0.0)).to(torch.uint8) * ZERO_FIRST
        return None

    def _rule(self, reason: int) -> str:
        if reason == ZERO_FIRST:
            return f"must be at least {TINY:g} in size at first for normalize='rescale', which divides by it"
        if reason == NON_POSITIVE and self.min_losses is not None:
            return f"must be above its `min_losses` for normalize={self.normalize!r}"
        return super()._rule(reason)

    def _constant(self, name: str, given: Any, option: str, lowest: float) -> None:
        """Register K numbers that an option gave, which are configuration and not state."""
        if given is not None:
            numbers = torch.as_tensor(given).detach().clone()
            numbers = numbers if numbers.is_floating_point() else numbers.float()
            if numbers.shape != (self.num_tasks,) or not bool(((numbers >= lowest) & torch.isfinite(numbers)).all()):
                rule = {0.0: "0 or more", TINY: "above 0"}.get(lowest, "finite")
                raise ValueError(f"`{option}` must be {self.num_tasks} numbers, each {rule}; found {given!r}.")
            given = numbers
        self.register_buffer(name, given, persistent=False)


def _factors(discrepancy: float | None, penalty: float | None) -> tuple[float, float]:
    """The factors of g and f."""
    if discrepancy is not None and penalty is not None:
        raise ValueError(
            "give `discrepancy` (g + discrepancy f) or `penalty` (f + penalty g), not both; "
            f"found discrepancy={discrepancy!r} and penalty={penalty!r}."
        )
    if penalty is None:
        discrepancy = 0.1 if discrepancy is None else discrepancy
        if not 0.0 <= discrepancy <= LARGEST:
            raise ValueError(f"`discrepancy` must be from 0 to {LARGEST:g}; found {discrepancy!r}.")
        return 1.0, float(discrepancy)
    if not 0.0 < penalty <= LARGEST:
        raise ValueError(f"`penalty` must be above 0 and at most {LARGEST:g}; found {penalty!r}.")
    if penalty < 1.0:
        warnings.warn(
            f"penalty={penalty:g} is the factor of the weighted losses in f + penalty g; the paper's experiments, "
            "with 0.01 to 0.1, multiply the discrepancy: that is `discrepancy`.",
            stacklevel=3,
        )
    return float(penalty), 1.0


def _choice(option: str, found: str, known: tuple[str, ...]) -> Any:
    if found not in known:
        raise ValueError(f"`{option}` must be one of {known}; found {found!r}: {nearest(str(found), known)}")
    return found
