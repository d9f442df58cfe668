"""Examples in modules whose optional dependency is missing are left out."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("triton") else ["equipoise/suites/qm9/kernels.py"]
