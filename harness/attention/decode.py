"""One decode step over a paged cache, as the engine's kernel takes it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kernels.paged_attention import paged_attention_reference, paged_attention_triton
from harness.attention.accuracy import Truth, truth_of
from harness.attention.formulas import Shape
from harness.attention.timing import Operation

STEPS = {"triton": paged_attention_triton, "reference": paged_attention_reference}


@dataclass(frozen=True)
class Cache:
    """Sequences of equal length, whose blocks lie in random order, and the query of each at its end."""

    shape: Shape
    block_size: int
    query: Tensor
    keys: Tensor
    values: Tensor
    block_table: Tensor
    positions: Tensor
    items: Tensor

    def step(self, impl: str) -> Operation:
        """Attention of all queries, each an item of one row."""
        slots = torch.arange(self.shape.batch, device=self.query.device)
        return Operation(
            lambda _: STEPS[impl](
                self.query, self.keys, self.values, self.block_table, self.block_size, slots, self.positions,
                self.items, 1,
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
    return Cache(
        shape=shape,
        block_size=block_size,
        query=normal(shape.batch, shape.heads, shape.head_dim),
        keys=normal(slots, shape.kv_heads, shape.head_dim),
        values=normal(slots, shape.kv_heads, shape.head_dim),
        block_table=order.view(shape.batch, blocks),
        positions=torch.full((shape.batch,), shape.seq - 1, device=device),
        items=torch.stack([rows, torch.ones_like(rows)], dim=1),
    )
