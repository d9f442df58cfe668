"""Training runs: one run's configuration, folder and loop; comparisons, sweeps and the engines that carry them out."""
