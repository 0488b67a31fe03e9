"""Attention as its formula says it, with the whole matrix of scores."""

from __future__ import annotations

import torch
from torch import Tensor


def naive(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
    """softmax(q k^T / sqrt(D)) v in the number format of the inputs; causal is aligned bottom-right.

    query: (..., R, D); key, value: (..., S, D). Returns (..., R, D).
    """
    rows, seq = query.shape[-2], key.shape[-2]
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    if causal:
        unseen = torch.ones(rows, seq, dtype=torch.bool, device=query.device).triu(seq - rows + 1)
        scores = scores.masked_fill(unseen, float("-inf"))
    return scores.softmax(dim=-1) @ value
