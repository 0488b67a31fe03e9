"""Root-mean-square normalisation (Zhang and Sennrich, 2019, arXiv:1910.07467)."""

import torch
import triton
import triton.language as tl

from engine.kernels.triton_types import wide_type


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last axis.

    x: (..., H), weight: (H,), both of the model's dtype; the result has x's dtype. The mean is taken in
    fp32 (in fp64 for fp64 input) and the quotient is rounded before it meets the weight, as Llama
    checkpoints were trained; on a GPU one kernel does it all.
    """
    return rms_norm_triton(x, weight, eps) if x.is_cuda else rms_norm_reference(x, weight, eps)


def add_rms_norm(
    hidden: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The residual sum and its norm: hidden + delta, rounded to their dtype, and rms_norm of that.

    hidden, delta: (T, H), weight: (H,). Returns two (T, H).
    """
    if hidden.is_cuda:
        return add_rms_norm_triton(hidden, delta, weight, eps)
    return add_rms_norm_reference(hidden, delta, weight, eps)


def rms_norm_reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x if x.dtype == torch.float64 else x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * normed.to(x.dtype)


def add_rms_norm_reference(
    hidden: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    summed = hidden + delta
    return summed, rms_norm_reference(summed, weight, eps)


def rms_norm_triton(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    x = x.contiguous()
    normed = torch.empty_like(x)
    _launch(x, x, weight, x, normed, eps, add=False)
    return normed


def add_rms_norm_triton(
    hidden: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """hidden and delta must be contiguous."""
    summed, normed = torch.empty_like(hidden), torch.empty_like(hidden)
    _launch(hidden, delta, weight, summed, normed, eps, add=True)
    return summed, normed


def _launch(
    hidden: torch.Tensor,
    delta: torch.Tensor,
    weight: torch.Tensor,
    summed: torch.Tensor,
    normed: torch.Tensor,
    eps: float,
    add: bool,
) -> None:
    width = weight.shape[0]
    block = triton.next_power_of_2(width)
    _rms_norm_kernel[hidden.numel() // width,](
        hidden, delta, weight, summed, normed,
        EPS=eps, WIDTH=width, BLOCK=block, ADD=add, WIDE=wide_type(hidden.dtype), num_warps=row_warps(block),
    )  # fmt: skip


def row_warps(block: int) -> int:
    """Warps for a program that holds one row of `block` elements.

    256 elements a warp are 8, or 16 bytes of bf16, a thread: one load of full width. Past 16 warps a thread
    takes several loads, which hides their latency as well as more warps would.
    """
    return max(1, min(16, block // 256))


@triton.jit
def _rms_norm_kernel(
    hidden,
    delta,
    weight,
    summed,
    normed,
    EPS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
    WIDE: tl.constexpr,
):
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    place = tl.program_id(0).to(tl.int64) * WIDTH + column
    x = tl.load(hidden + place, mask=inside, other=0)
    if ADD:
        dtype = x.dtype
        x = (x.to(WIDE) + tl.load(delta + place, mask=inside, other=0).to(WIDE)).to(dtype)
        tl.store(summed + place, x, mask=inside)
    wide = x.to(WIDE)
    quotient = (wide * tl.rsqrt(tl.sum(wide * wide, axis=0) / WIDTH + EPS)).to(x.dtype)
    scaled = tl.load(weight + column, mask=inside, other=0).to(WIDE) * quotient.to(WIDE)
    tl.store(normed + place, scaled.to(x.dtype), mask=inside)
