"""One decode step over a paged cache, as the engine's kernels take it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kernels.decode_attention import rotated_decode_attention
from engine.kernels.paged_attention import paged_attention_reference, paged_attention_triton
from engine.kernels.rope import apply_rope
from harness.attention.accuracy import Truth, truth_of
from harness.attention.formulas import Shape
from harness.attention.timing import Operation

# Parts of a history where a row's bits must not depend on its batch: long enough that most take one.
INVARIANT_PART = 1024
PAGED = {"triton": paged_attention_triton, "reference": paged_attention_reference}
FUSED = {"triton_fused": None, "triton_invariant": INVARIANT_PART}


@dataclass(frozen=True)
class Cache:
    """Sequences of equal length, whose blocks lie in random order, and the last position of each.

    qkv: (B, (H + 2·K)·D), before rotation by cos and sin: (S, D). query: (B, H, D), rotated; the rotated key
    and the value are in the cache too.
    """

    shape: Shape
    block_size: int
    qkv: Tensor
    cos: Tensor
    sin: Tensor
    query: Tensor
    keys: Tensor
    values: Tensor
    block_table: Tensor
    positions: Tensor
    items: Tensor

    @property
    def last_slots(self) -> Tensor:
        """Rows of keys and values that hold the last positions."""
        last = self.shape.seq - 1
        return self.block_table[:, last // self.block_size] * self.block_size + last % self.block_size

    def step(self, impl: str) -> Operation:
        """Attention of all queries, each an item of one row; the fused steps rotate and write as well."""
        slots = torch.arange(self.shape.batch, device=self.query.device)
        if impl in FUSED:
            return self._fused_step(slots, FUSED[impl])
        return Operation(
            lambda _: PAGED[impl](
                self.query, self.keys, self.values, self.block_table, self.block_size, slots, self.positions,
                self.items, 1,
            )
        )  # fmt: skip

    def _fused_step(self, slots: Tensor, part_positions: int | None) -> Operation:
        kv_slots = self.last_slots
        rows = self.shape.batch * self.shape.kv_heads
        arrivals = torch.zeros(rows, dtype=torch.int32, device=self.query.device)
        return Operation(
            lambda _: rotated_decode_attention(
                self.qkv, self.cos, self.sin, self.positions, kv_slots, slots, self.items, self.block_table,
                self.block_size, self.keys, self.values, self.shape.heads, arrivals, part_positions,
            )
        )  # fmt: skip

    def truth(self) -> Truth:
        """Of the last sequence and KV head."""
        seen = torch.arange(self.shape.seq, device=self.query.device)
        history = self.block_table[-1][seen // self.block_size] * self.block_size + seen % self.block_size
        query = self.query[-1, -self.shape.group :, None]
        key, value = (cache[history, -1][None] for cache in (self.keys, self.values))
        return truth_of("decode", False, query, key, value, torch.zeros_like(query))

    def cut(self, out: Tensor) -> list[Tensor]:
        """The part of a result (B, H, D) that `truth` is of: (heads, 1, D)."""
        return [out[-1, -self.shape.group :, None]]


def random_cache(shape: Shape, block_size: int, dtype: torch.dtype, device: str, seed: int) -> Cache:
    """Normally distributed; block 0 stays unused, as in the engine."""
    generator = torch.Generator(device).manual_seed(seed)
    blocks = -(-shape.seq // block_size)
    order = 1 + torch.randperm(shape.batch * blocks, generator=generator, device=device)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, device=device, dtype=dtype)

    slots = (1 + shape.batch * blocks) * block_size
    rows = torch.arange(shape.batch, dtype=torch.int32, device=device)
    angles = 2 * math.pi * torch.rand(shape.seq, shape.head_dim // 2, generator=generator, device=device)
    cos, sin = (turn(angles).repeat(1, 2).to(dtype) for turn in (torch.cos, torch.sin))
    qkv = normal(shape.batch, shape.heads + 2 * shape.kv_heads, shape.head_dim)
    query, key, value = qkv.split([shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
    angle = cos[-1:], sin[-1:]
    cache = Cache(
        shape=shape,
        block_size=block_size,
        qkv=qkv.flatten(1),
        cos=cos,
        sin=sin,
        query=apply_rope(query, *angle),
        keys=normal(slots, shape.kv_heads, shape.head_dim),
        values=normal(slots, shape.kv_heads, shape.head_dim),
        block_table=order.view(shape.batch, blocks),
        positions=torch.full((shape.batch,), shape.seq - 1, device=device),
        items=torch.stack([rows, torch.ones_like(rows)], dim=1),
    )
    cache.keys[cache.last_slots] = apply_rope(key, *angle)
    cache.values[cache.last_slots] = value
    return cache
