"""The gated activation of a Llama MLP."""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from engine.kernels.triton_types import wide_type

# 8 bf16 elements, 16 bytes, for each thread of 4 warps: one load of full width per tensor and thread.
_BLOCK = 1024
_WARPS = 4


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) · up of gate_up: (T, 2·I), the gate's I columns first; (T, I), same dtype.

    silu(x) = x / (1 + exp(-x)), in fp32 inside (fp64 for fp64) and rounded before it meets `up`.
    """
    return silu_mul_triton(gate_up) if gate_up.is_cuda else silu_mul_reference(gate_up)


def silu_mul_reference(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def silu_mul_triton(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up must be contiguous."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
    _silu_mul_kernel[rows, triton.cdiv(width, _BLOCK)](
        gate_up, out, WIDTH=width, BLOCK=_BLOCK, WIDE=wide_type(gate_up.dtype), num_warps=_WARPS
    )
    return out


@triton.jit
def _silu_mul_kernel(gate_up, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    gate = tl.load(gate_up + row * 2 * WIDTH + column, mask=inside, other=0)
    up = tl.load(gate_up + row * 2 * WIDTH + WIDTH + column, mask=inside, other=0)
    result = gated(gate, up, WIDE)
    tl.store(out + row * WIDTH + column, result, mask=inside)


@triton.jit
def gated(gate, up, WIDE: tl.constexpr):
    """silu(gate) · up, computed in WIDE, silu rounded to the gate's type before the product, as it is."""
    x = gate.to(WIDE)
    silu = (x / (1 + tl.exp(-x))).to(gate.dtype)
    return (silu.to(WIDE) * up.to(WIDE)).to(gate.dtype)
