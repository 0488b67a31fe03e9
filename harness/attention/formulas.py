"""Shapes of attention, and the work that is credited for them.

Symbols: B sequences, H query and K key/value heads, S positions, D numbers a head, w bytes a number.

    forward   4 B H S^2 D FLOP, half of it when causal: two matmuls of 2 S^2 D a head
    backward  2.5 times the forward: five matmuls, also where a kernel runs seven
    decode    4 B H S D FLOP and 2 w B K S D bytes: one query a sequence, keys and values read once

The convention of FlashAttention-2 (Dao, 2023), in which published figures are given. Packed sequences have
the sum of l^2 over their lengths in the place of B S^2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Direction = Literal["forward", "backward", "decode"]
BACKWARD_OVER_FORWARD = 2.5


@dataclass(frozen=True)
class Shape:
    """A problem. `lengths` are those of packed sequences, () where all have `seq` positions."""

    causal: bool
    head_dim: int
    heads: int
    kv_heads: int
    seq: int
    batch: int
    lengths: tuple[int, ...] = ()

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.heads // self.kv_heads

    @property
    def tokens(self) -> int:
        return sum(self.lengths) or self.batch * self.seq

    @property
    def pairs(self) -> int:
        """Pairs of query and key, mask apart."""
        return sum(length**2 for length in self.lengths) or self.batch * self.seq**2


def packed(lengths: tuple[int, ...], causal: bool, heads: int, kv_heads: int, head_dim: int) -> Shape:
    """Sequences of these lengths without padding."""
    return Shape(causal, head_dim, heads, kv_heads, max(lengths), len(lengths), lengths)


def dense_twin(shape: Shape) -> Shape:
    """Equal sequences with about the FLOPs and the tokens of packed ones."""
    batch = max(1, round(shape.tokens**2 / shape.pairs))
    seq = round((shape.pairs / batch) ** 0.5)
    return Shape(shape.causal, shape.head_dim, shape.heads, shape.kv_heads, seq, batch)


def flops(direction: Direction, shape: Shape) -> float:
    """Operations credited."""
    if direction == "decode":
        return 4.0 * shape.batch * shape.heads * shape.seq * shape.head_dim
    forward = 4.0 * shape.heads * shape.pairs * shape.head_dim / (2 if shape.causal else 1)
    return forward * (BACKWARD_OVER_FORWARD if direction == "backward" else 1)


def decode_bytes(shape: Shape, bytes_per_number: int) -> int:
    """Bytes of keys and values that one decode step must read."""
    return 2 * bytes_per_number * shape.batch * shape.kv_heads * shape.seq * shape.head_dim
