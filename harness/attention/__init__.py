"""The stage `attention`: kernels beside PyTorch's own and the GPU's measured limits, in one process."""
