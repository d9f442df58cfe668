"""The forms of LDC behind the published tables."""

from __future__ import annotations

from typing import Any

from equipoise.ldc.router import FeatureRouter
from equipoise.losses import nearest

DECODER_CHANNELS = 64  # of each task's last decoder block in SegNet-MTAN

_PRESETS: dict[str, dict[str, Any]] = {
    "qm9": {"router": "sigmoid", "normalize": "log", "tau": "weights", "discrepancy": 0.05},
    "celeba": {"router": "sigmoid-free", "normalize": None, "tau": "weights", "discrepancy": 0.01},
    "cityscapes": {"normalize": None, "tau": "ones", "discrepancy": 0.1},
    "nyuv2": {"normalize": None, "tau": "ones", "discrepancy": 0.05},
    "nyuv2-code": {"normalize": "ratio", "tau": "weights", "discrepancy": 0.05, "divide": "attached"},
}


def preset_options(name: str, num_tasks: int, overrides: dict[str, Any]) -> dict[str, Any]:
    """The options of `LDC` for a preset, with the caller's own in place of some.

    >>> from equipoise.ldc.presets import preset_options
    >>> preset_options("celeba", 40, {})["discrepancy"]
    0.01
    """
    if name not in _PRESETS:
        raise ValueError(f"there is no preset {name!r}; {nearest(str(name), tuple(_PRESETS))}")
    options = {"router_objective": "both", **_PRESETS[name]}
    if "penalty" in overrides:
        del options["discrepancy"]
    if "router" not in options and "router" not in overrides:
        options["router"] = FeatureRouter(DECODER_CHANNELS * num_tasks, num_tasks, bounds=(0.2, 0.8))
        options["detach_features"] = False
    return {**options, **overrides}
