"""QM9: eleven properties of 130,831 molecules, the network and protocol of the published multi-task tables."""

from .data import load, load_permutation, load_sample, split, statistics
from .molecules import TASKS, Molecules
from .rich import enrich

__all__ = ["TASKS", "Molecules", "enrich", "load", "load_permutation", "load_sample", "split", "statistics"]
