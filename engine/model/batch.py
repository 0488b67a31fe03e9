"""What one step reads, in two kinds: gathered, for any processor and dtype, and paged, for GPU kernels."""

from dataclasses import dataclass
from typing import Protocol

import torch

from engine.kernels.decode_attention import rotated_decode_attention
from engine.kernels.paged_attention import chunk_attention, decode_attention, paged_attention, write_kv
from engine.kernels.rope import apply_rope, rope_and_write

Rotation = tuple[torch.Tensor, torch.Tensor]
"""cos and sin of rotary positions, each (n, D)."""


class Batch(Protocol):
    """T rows, one token each. Both kinds have tokens, positions and kv_slots, where a row's K and V go: (T,)
    int64."""

    @property
    def tokens(self) -> torch.Tensor: ...

    def rotation(self, cos: torch.Tensor, sin: torch.Tensor) -> Rotation:
        """What attend() needs of the tables cos, sin: (positions, D); the same for all layers."""

    def attend(
        self, qkv: torch.Tensor, rotation: Rotation, k_cache: torch.Tensor, v_cache: torch.Tensor, heads: int
    ) -> torch.Tensor:
        """One layer's attention: (T, heads·D). K and V of the rows are written to the cache.

        qkv: (T, (heads + 2·kv_heads)·D), not yet rotated. k_cache, v_cache: (cache slots, kv_heads, D).
        """


@dataclass(frozen=True)
class GatheredBatch:
    """Decode rows first, then the rows of each prompt chunk; histories are copied out of the cache.

    history: (B, L) int64 and visible: (B, L) bool belong to the first B rows, one decode token each.
    chunks: for each prompt chunk its rows [first, last) and the cache slots (L_c,) int64 of its sequence up
    to the chunk's end.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    kv_slots: torch.Tensor
    history: torch.Tensor
    visible: torch.Tensor
    chunks: tuple[tuple[int, int, torch.Tensor], ...]

    def rotation(self, cos: torch.Tensor, sin: torch.Tensor) -> Rotation:
        return cos[self.positions], sin[self.positions]

    def attend(
        self, qkv: torch.Tensor, rotation: Rotation, k_cache: torch.Tensor, v_cache: torch.Tensor, heads: int
    ) -> torch.Tensor:
        kv_heads, dim = k_cache.shape[1:]
        each = qkv.view(-1, heads + 2 * kv_heads, dim)
        rotated = apply_rope(each[:, : heads + kv_heads], *rotation)
        query = rotated[:, :heads]
        write_kv(k_cache, self.kv_slots, rotated[:, heads:])
        write_kv(v_cache, self.kv_slots, each[:, heads + kv_heads :])
        parts = []
        if decodes := self.history.shape[0]:
            parts.append(decode_attention(query[:decodes], k_cache, v_cache, self.history, self.visible))
        for first, last, history in self.chunks:
            parts.append(chunk_attention(query[first:last], k_cache, v_cache, history))
        return torch.cat(parts).flatten(1)


@dataclass(frozen=True)
class PagedBatch:
    """Rows in any order; attention reads each history in place, through the block table.

    slots: (T,) int64, the row's sequence. items: (N, 2) int32, (first row, number of rows): rows of one
    sequence at consecutive positions, at most longest_item of them; number 0 is padding. Where longest_item
    is 1, item i is row i. block_table: (slots, blocks) int64. arrivals: (at least T·kv_heads,) int32 zeros, a
    kernel's own counters. Nothing here depends on a history's length, so one CUDA graph serves all.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    kv_slots: torch.Tensor
    slots: torch.Tensor
    items: torch.Tensor
    longest_item: int
    block_table: torch.Tensor
    block_size: int
    arrivals: torch.Tensor

    def rotation(self, cos: torch.Tensor, sin: torch.Tensor) -> Rotation:
        return cos, sin

    def attend(
        self, qkv: torch.Tensor, rotation: Rotation, k_cache: torch.Tensor, v_cache: torch.Tensor, heads: int
    ) -> torch.Tensor:
        if qkv.is_cuda and self.longest_item == 1:
            return rotated_decode_attention(
                qkv, *rotation, self.positions, self.kv_slots, self.slots, self.items, self.block_table,
                self.block_size, k_cache, v_cache, heads, self.arrivals,
            ).flatten(1)  # fmt: skip
        query = rope_and_write(qkv, *rotation, self.positions, self.kv_slots, k_cache, v_cache, heads)
        return paged_attention(
            query,
            k_cache,
            v_cache,
            self.block_table,
            self.block_size,
            self.slots,
            self.positions,
            self.items,
            self.longest_item,
        ).flatten(1)
