"""How PyTorch's types map to those a Triton kernel computes in."""

import torch
import triton.language as tl


def wide_type(dtype: torch.dtype) -> tl.dtype:
    """The type of sums and functions over elements of `dtype`: fp32, or fp64 for fp64."""
    return tl.float64 if dtype == torch.float64 else tl.float32
