"""Matrix product of activations and a weight, shaped for the processor it runs on."""

import torch
import torch.nn.functional as F

# On a CPU a decode step reads each weight once for a handful of rows. MKL's product of a tall weight and
# few columns takes half the time of the same product with few rows (docs/lab_log.md).
FEW_ROWS = 32


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x: (T, K) times weight: (N, K) transposed; (T, N), contiguous."""
    if x.is_cuda or x.shape[0] > FEW_ROWS:
        return F.linear(x, weight)
    return (weight @ x.t()).t().contiguous()
