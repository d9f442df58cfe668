"""What a run should remember of the machine, and what it used of it."""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch

import equipoise


def environment(device: str) -> dict[str, Any]:
    """Versions, processor and thread count: what may change a result's last bits."""
    found: dict[str, Any] = {
        "equipoise": equipoise.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
    }
    if torch.device(device).type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
    return found


def reset_peak_memory(device: torch.device) -> None:
    """Start counting the peak anew (on a CPU where Linux allows it)."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory(device: torch.device) -> int:
    """Bytes: of the device's allocator on CUDA, else the process's largest resident size."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024


def synchronize(device: torch.device) -> None:
    """Wait for the device, so that a clock read next means something."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
