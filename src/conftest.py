"""Examples in modules whose optional dependency is missing are left out."""

from importlib.util import find_spec

# The callbacks have no examples that run without their trainers, which take seconds to import.
collect_ignore = ["equipoise/integrations/lightning.py", "equipoise/integrations/transformers.py"]
if not find_spec("triton"):
    collect_ignore += ["equipoise/suites/qm9/kernels.py", "equipoise/suites/qm9/launch.py"]
if not find_spec("rdkit"):
    collect_ignore += ["equipoise/suites/qm9/perception.py", "equipoise/suites/qm9/rich.py"]
