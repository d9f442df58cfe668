"""The methods by name."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from equipoise.balancer import Balancer
from equipoise.gradient.alignedmtl import AlignedMTL
from equipoise.gradient.cagrad import CAGrad
from equipoise.gradient.config import ConFIG
from equipoise.gradient.dbmtl import DBMTL
from equipoise.gradient.dualproj import DualProj
from equipoise.gradient.fairgrad import FairGrad
from equipoise.gradient.graddrop import GradDrop
from equipoise.gradient.gradnorm import GradNorm
from equipoise.gradient.imtlg import IMTLG
from equipoise.gradient.mgda import MGDA
from equipoise.gradient.moco import MoCo
from equipoise.gradient.nashmtl import NashMTL
from equipoise.gradient.pcgrad import PCGrad
from equipoise.gradient.upgrad import UPGrad
from equipoise.ldc.double_loop import DoubleLoopLDC
from equipoise.ldc.single_loop import LDC
from equipoise.losses import nearest
from equipoise.weighting.dwa import DWA
from equipoise.weighting.famo import FAMO
from equipoise.weighting.gls import GLS
from equipoise.weighting.go4align import GO4Align
from equipoise.weighting.ls import LS
from equipoise.weighting.rlw import RLW
from equipoise.weighting.si import SI
from equipoise.weighting.stch import STCH
from equipoise.weighting.stl import STL
from equipoise.weighting.uw import UW

_METHODS: dict[str, type[Balancer]] = {
    "ldc": LDC,
    "ldc-double": DoubleLoopLDC,
    "ls": LS,
    "si": SI,
    "rlw": RLW,
    "dwa": DWA,
    "uw": UW,
    "famo": FAMO,
    "go4align": GO4Align,
    "stl": STL,
    "gls": GLS,
    "stch": STCH,
    "dbmtl": DBMTL,
    "graddrop": GradDrop,
    "gradnorm": GradNorm,
    "moco": MoCo,
    "aligned-mtl": AlignedMTL,
    "cagrad": CAGrad,
    "config": ConFIG,
    "dualproj": DualProj,
    "fairgrad": FairGrad,
    "imtl-g": IMTLG,
    "mgda": MGDA,
    "nash-mtl": NashMTL,
    "pcgrad": PCGrad,
    "upgrad": UPGrad,
}


def methods() -> tuple[str, ...]:
    """The names `make` knows.

    >>> import equipoise as eq
    >>> "ls" in eq.methods()
    True
    """
    return tuple(_METHODS)


def method_class(name: str) -> type[Balancer]:
    """The class behind a name; an unknown one is answered with the nearest."""
    if name not in _METHODS:
        raise ValueError(f"there is no method {name!r}; {nearest(name, methods())}")
    return _METHODS[name]


def make(name: str, num_tasks: int | None = None, *, tasks: Sequence[str] | None = None, **options: Any) -> Balancer:
    """Build a method by name, with the options of its class; `preset` starts from a published form, where it has some.

    >>> import equipoise as eq
    >>> eq.make("ls", num_tasks=3)
    LS(num_tasks=3)
    >>> eq.make("ldc", num_tasks=40, preset="celeba").f_factor
    0.01
    """
    method = method_class(name)
    known = option_names(method)
    for option in options:
        if option not in known:
            raise TypeError(f"{method.__name__} has no option `{option}`; {nearest(option, known)}")
    if "preset" in options:
        found: Balancer = method.preset(options.pop("preset"), num_tasks, tasks=tasks, **options)  # type: ignore[attr-defined]
        return found
    return method(num_tasks, tasks=tasks, **options)


def option_names(method: type[Balancer]) -> list[str]:
    """The keywords a method's constructor takes, its bases' included."""
    names: dict[str, None] = {}
    for cls in method.__mro__:
        if "__init__" in vars(cls) and issubclass(cls, Balancer):
            for parameter in inspect.signature(cls.__init__).parameters.values():
                if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                    names[parameter.name] = None
    if hasattr(method, "preset"):
        names["preset"] = None
    return [name for name in names if name not in ("self", "num_tasks", "tasks")]
