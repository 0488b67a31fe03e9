"""One file per operation: the PyTorch reference and, where it pays, the Triton kernel beside it."""
