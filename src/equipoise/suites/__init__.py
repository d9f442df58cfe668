"""The benchmarks of the paper: one package each, with the data, the model and the protocol."""
