"""Balance the losses of a multi-task PyTorch model.

Every method is a `Balancer`: an `nn.Module` that turns K losses into one scalar, whose `.backward()` leaves
the method's gradient on every parameter.
"""

from equipoise.balancer import Balancer
from equipoise.ldc.router import FeatureRouter
from equipoise.ldc.single_loop import LDC
from equipoise.registry import make, methods
from equipoise.weighting.ls import LS

__version__ = "0.1.0"

__all__ = [
    "LDC",
    "LS",
    "Balancer",
    "FeatureRouter",
    "make",
    "methods",
]
