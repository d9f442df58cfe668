"""Measurements on anybody's model: discrepancy, conflict, stationarity, cost, and what they mean."""

from equipoise.diagnostics.conflict import Conflict, conflict
from equipoise.diagnostics.diagnosis import Diagnosis, diagnose
from equipoise.diagnostics.discrepancy import Discrepancy, discrepancy
from equipoise.diagnostics.monitor import Monitor
from equipoise.diagnostics.stationarity import Stationarity, pareto_stationarity, stationarity
from equipoise.diagnostics.theory import LowerLevel, lower_level

__all__ = [
    "Conflict",
    "Diagnosis",
    "Discrepancy",
    "LowerLevel",
    "Monitor",
    "Stationarity",
    "conflict",
    "diagnose",
    "discrepancy",
    "lower_level",
    "pareto_stationarity",
    "stationarity",
]
