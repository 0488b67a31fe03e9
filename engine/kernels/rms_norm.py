"""Root-mean-square normalisation (Zhang and Sennrich, 2019, arXiv:1910.07467)."""

import torch
import torch.nn.functional as F


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last axis.

    x: (..., H), weight: (H,), both of the model's dtype; the result has x's dtype. The mean is taken in
    fp32 (in fp64 for fp64 input) and the quotient is rounded before it meets the weight, as Llama
    checkpoints were trained; on a GPU one kernel does it all.
    """
    if x.is_cuda:
        return F.rms_norm(x, weight.shape, weight, eps)
    wide = x if x.dtype == torch.float64 else x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * normed.to(x.dtype)
