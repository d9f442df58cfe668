"""Balance the losses of a multi-task PyTorch model."""
