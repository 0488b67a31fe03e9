"""Attention in plain PyTorch, the whole matrix of weights at once: the measure of the kernels."""

import math

import torch


def attention_reference(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, causal: bool, scale: float | None = None
) -> torch.Tensor:
    """softmax(query · keyᵀ · scale) · value per head, in the dtype of the inputs, any of them.

    query: (B, Sq, H, D); key, value: (B, Sk, Hkv, D), H a multiple of Hkv. causal: row i sees keys
    0 … i + Sk - Sq. scale: 1 / sqrt(D) if None. Returns (B, Sq, H, D); rows that see no key are zeros.
    """
    group = query.shape[2] // key.shape[2]
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    keys, values = (x.repeat_interleave(group, dim=2).transpose(1, 2) for x in (key, value))
    scores = query.transpose(1, 2) @ keys.transpose(-1, -2) * scale
    rows, columns = scores.shape[-2:]
    if causal:
        hidden = torch.ones(rows, columns, dtype=torch.bool, device=query.device).triu(columns - rows + 1)
        blind = hidden.all(dim=-1, keepdim=True)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1).masked_fill(blind, 0)
    else:
        weights = scores.softmax(dim=-1)
    return (weights @ values).transpose(1, 2).contiguous()


def packed_attention_reference(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    offsets_q: torch.Tensor,
    offsets_k: torch.Tensor,
    longest_q: int,
    longest_k: int,
    *,
    causal: bool,
    scale: float | None = None,
) -> torch.Tensor:
    """attention_reference of each packed sequence; the offsets are read back to the host.

    query: (T, H, D); key, value: (Tk, Hkv, D); offsets_q, offsets_k: (N + 1,). Returns (T, H, D). The longest
    lengths, which only the kernels need, are not looked at.
    """
    ends_q, ends_k = offsets_q.tolist(), offsets_k.tolist()
    parts = [
        attention_reference(
            query[None, begin_q:end_q], key[None, begin_k:end_k], value[None, begin_k:end_k],
            causal=causal, scale=scale,
        )[0]
        for begin_q, end_q, begin_k, end_k in zip(ends_q, ends_q[1:], ends_k, ends_k[1:], strict=False)
    ]  # fmt: skip
    return torch.cat(parts)
