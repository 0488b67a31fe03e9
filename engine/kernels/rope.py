"""Rotary position embedding (Su et al., 2021, arXiv:2104.09864), HuggingFace pairing: (i, i + D/2)."""

import math

import torch
import triton
import triton.language as tl

from engine.config import ModelConfig, RopeScaling
from engine.kernels.triton_types import wide_type

# A program turns so many pairs (i, i + D/2): with 64 threads, 8 bf16 elements, 16 bytes, a thread and half.
# Smaller programs would be mostly launch cost, larger ones leave processors idle in a decode step.
_PAIRS = 512
_WARPS = 2


def inverse_frequencies(config: ModelConfig, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The D/2 angular frequencies (radians per position), Llama 3 scaling applied where configured."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).to(dtype) / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    return frequencies if config.rope_scaling is None else _llama3_scaled(frequencies, config.rope_scaling)


def _llama3_scaled(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Llama 3.1's long-context rule: long wavelengths are divided by `factor`, short ones kept, the band
    between them interpolated (Llama 3 model card and reference implementation)."""
    wavelengths = 2 * math.pi / frequencies
    longest_kept = scaling.original_max_position_embeddings / scaling.high_freq_factor
    shortest_scaled = scaling.original_max_position_embeddings / scaling.low_freq_factor
    share = (scaling.original_max_position_embeddings / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    scaled = frequencies / scaling.factor
    banded = (1 - share) * scaled + share * frequencies
    result = torch.where(wavelengths > shortest_scaled, scaled, frequencies)
    middle = (wavelengths <= shortest_scaled) & (wavelengths >= longest_kept)
    return torch.where(middle, banded, result)


def rope_table(config: ModelConfig, length: int, dtype: torch.dtype, device: str) -> tuple[torch.Tensor, ...]:
    """cos and sin, each (length, D), for positions 0 … length-1.

    Angles are computed in fp32 (fp64 for an fp64 model) and rounded to `dtype` once.
    """
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    positions = torch.arange(length, dtype=wide)
    angles = torch.outer(positions, inverse_frequencies(config, wide))
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(device, dtype), angles.sin().to(device, dtype)


def apply_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate x: (T, heads, D) by the rows cos, sin: (T, D) of its tokens' positions."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos[:, None] + turned * sin[:, None]


def rope_and_write(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    kv_slots: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    heads: int,
) -> torch.Tensor:
    """Rotate the queries and keys of qkv by their positions; store keys and values in the cache.

    qkv: (T, (heads + 2·kv_heads)·D), queries first, then keys, then values. cos, sin: (positions, D) of
    rope_table. positions: (T,) int64, rows of the table. kv_slots: (T,) int64, rows of k_cache and v_cache:
    (cache slots, kv_heads, D), which are written in place. Returns the queries (T, heads, D).
    """
    operation = rope_and_write_triton if qkv.is_cuda else rope_and_write_reference
    return operation(qkv, cos, sin, positions, kv_slots, k_cache, v_cache, heads)


def rope_and_write_reference(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    kv_slots: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    heads: int,
) -> torch.Tensor:
    kv_heads, dim = k_cache.shape[1:]
    each = qkv.view(-1, heads + 2 * kv_heads, dim)
    rotated = apply_rope(each[:, : heads + kv_heads], cos[positions], sin[positions])
    k_cache.index_copy_(0, kv_slots, rotated[:, heads:])
    v_cache.index_copy_(0, kv_slots, each[:, heads + kv_heads :])
    return rotated[:, :heads]


def rope_and_write_triton(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    kv_slots: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    heads: int,
) -> torch.Tensor:
    """All tensors must be contiguous. Sums are not contracted, so that every bit is the reference's."""
    kv_heads, dim = k_cache.shape[1:]
    query = torch.empty(qkv.shape[0], heads, dim, dtype=qkv.dtype, device=qkv.device)
    half = triton.next_power_of_2(dim // 2)
    heads_a_program = max(1, _PAIRS // half)
    _rope_and_write_kernel[qkv.shape[0], triton.cdiv(heads + 2 * kv_heads, heads_a_program)](
        qkv, cos, sin, positions, kv_slots, query, k_cache, v_cache,
        HEADS=heads, KV_HEADS=kv_heads, DIM=dim, HALF_BLOCK=half, HEAD_BLOCK=heads_a_program,
        WIDE=wide_type(qkv.dtype), num_warps=_WARPS, enable_fp_fusion=False,
    )  # fmt: skip
    return query


@triton.jit(do_not_specialize_on_alignment=["positions", "kv_slots"])
def _rope_and_write_kernel(
    qkv,
    cos,
    sin,
    positions,
    kv_slots,
    query,
    k_cache,
    v_cache,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """One program turns HEAD_BLOCK heads of one row. The two halves of a cos or sin row are equal."""
    HALF: tl.constexpr = DIM // 2
    row = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEAD_BLOCK + tl.arange(0, HEAD_BLOCK))[:, None]
    pair = tl.arange(0, HALF_BLOCK)[None, :]
    inside = (head < HEADS + 2 * KV_HEADS) & (pair < HALF)
    source = qkv + (row * (HEADS + 2 * KV_HEADS) + head) * DIM + pair
    low = tl.load(source, mask=inside, other=0)
    high = tl.load(source + HALF, mask=inside, other=0)

    dtype = low.dtype
    angle = tl.load(positions + row) * DIM + pair
    c = tl.load(cos + angle, mask=pair < HALF, other=0).to(WIDE)
    s = tl.load(sin + angle, mask=pair < HALF, other=0).to(WIDE)
    x, y = low.to(WIDE), high.to(WIDE)
    turned_low = ((x * c).to(dtype).to(WIDE) - (y * s).to(dtype).to(WIDE)).to(dtype)
    turned_high = ((y * c).to(dtype).to(WIDE) + (x * s).to(dtype).to(WIDE)).to(dtype)

    is_query = inside & (head < HEADS)
    is_key = inside & (head >= HEADS) & (head < HEADS + KV_HEADS)
    is_value = inside & (head >= HEADS + KV_HEADS)
    kv_row = tl.load(kv_slots + row) * KV_HEADS
    to_query = query + (row * HEADS + head) * DIM + pair
    to_key = k_cache + (kv_row + head - HEADS) * DIM + pair
    to_value = v_cache + (kv_row + head - HEADS - KV_HEADS) * DIM + pair
    tl.store(to_query, turned_low, mask=is_query)
    tl.store(to_query + HALF, turned_high, mask=is_query)
    tl.store(to_key, turned_low, mask=is_key)
    tl.store(to_key + HALF, turned_high, mask=is_key)
    tl.store(to_value, low, mask=is_value)
    tl.store(to_value + HALF, high, mask=is_value)
