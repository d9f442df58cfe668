"""The benchmarks of the paper: one package each, with the data, the model and the protocol."""

from __future__ import annotations

from importlib import import_module

from equipoise.losses import nearest
from equipoise.suites.suite import Suite

_SUITES = {
    "toy": ("equipoise.suites.toy", "Toy"),
    "qm9-sample": ("equipoise.suites.qm9.suite", "QM9Sample"),
    "qm9": ("equipoise.suites.qm9.suite", "QM9"),
    "celeba": ("equipoise.suites.celeba.suite", "CelebA"),
    "celeba-pack": ("equipoise.suites.celeba.suite", "CelebAPack"),
    "cityscapes": ("equipoise.suites.cityscapes.suite", "Cityscapes"),
    "cityscapes-offset": ("equipoise.suites.cityscapes.suite", "CityscapesOffset"),
    "nyuv2": ("equipoise.suites.nyuv2.suite", "NYUv2"),
    "nyuv2-pack": ("equipoise.suites.nyuv2.suite", "NYUv2Pack"),
}


def suites() -> tuple[str, ...]:
    """The names `suite_class` knows.

    >>> "toy" in suites()
    True
    """
    return tuple(_SUITES)


def suite_class(name: str) -> type[Suite]:
    """The class behind a name, imported only now; an unknown name is answered with the nearest.

    >>> suite_class("toy").tasks
    ('first', 'second')
    """
    if name not in _SUITES:
        raise ValueError(f"there is no suite {name!r}; {nearest(name, suites())}")
    module, attribute = _SUITES[name]
    found: type[Suite] = getattr(import_module(module), attribute)
    return found
