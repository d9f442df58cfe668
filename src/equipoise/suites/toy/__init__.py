"""The toy problem: two losses of a point in the plane, five starts, one Pareto front."""

from equipoise.suites.toy.problem import BALANCED, SCALES, STARTS, pareto_front, toy_losses
from equipoise.suites.toy.suite import Toy

__all__ = ["BALANCED", "SCALES", "STARTS", "Toy", "pareto_front", "toy_losses"]
