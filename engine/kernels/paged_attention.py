"""Attention over a paged KV cache: PyTorch reference for decode rows and for prompt chunks.

A layer's cache is one tensor per K and V of shape (slots, kv_heads, D), where slot = block · block_size +
offset: a sequence's token at position p lives at block_table[p // block_size] · block_size + p % block_size.
"""

import torch
import torch.nn.functional as F


def write_kv(cache: torch.Tensor, kv_slots: torch.Tensor, values: torch.Tensor) -> None:
    """Store values: (T, kv_heads, D) at the slots kv_slots: (T,) int64 of one layer's cache, in place."""
    cache.index_copy_(0, kv_slots, values)


def decode_attention(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    history: torch.Tensor,
    visible: torch.Tensor,
) -> torch.Tensor:
    """One query token per sequence against its whole history.

    query: (B, heads, D). history: (B, L) int64, the cache slots of positions 0 … L-1 of each sequence.
    visible: (B, L) bool, which of them exist. Returns (B, heads, D). The heads of a KV group are the
    rows of one small matrix product, so K and V are read once per group.
    """
    batch, heads, dim = query.shape
    keys, values = k_cache[history], v_cache[history]
    kv_heads = keys.shape[2]
    out = F.scaled_dot_product_attention(
        query.reshape(batch, kv_heads, heads // kv_heads, dim),
        keys.transpose(1, 2),
        values.transpose(1, 2),
        attn_mask=visible[:, None, None, :],
    )
    return out.reshape(batch, heads, dim)


def chunk_attention(
    query: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, history: torch.Tensor
) -> torch.Tensor:
    """A chunk of one prompt against everything up to itself, causal, aligned bottom-right.

    query: (n, heads, D) of the last n positions; history: (L,) int64, the cache slots of positions
    0 … L-1, L >= n. Returns (n, heads, D).
    """
    n, length = query.shape[0], history.shape[0]
    keys, values = k_cache[history], v_cache[history]
    causal = torch.ones(n, length, dtype=torch.bool, device=query.device).tril(length - n)
    out = F.scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        keys.transpose(0, 1)[None],
        values.transpose(0, 1)[None],
        attn_mask=None if n == length else causal,
        is_causal=n == length,
        enable_gqa=True,
    )
    return out[0].transpose(0, 1)
