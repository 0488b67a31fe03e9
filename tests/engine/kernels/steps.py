"""Made-up steps for paged attention: sequences, their blocks, caches with NaN wherever nobody looks."""

from dataclasses import dataclass

import torch

from tests.engine.kernels.measured import Place


@dataclass(frozen=True)
class Sequence:
    """`rows` new tokens behind `before` known ones; the first `shared` blocks are the first sequence's."""

    before: int
    rows: int
    shared: int = 0


@dataclass(frozen=True)
class Heads:
    """Query heads, KV heads and their width."""

    heads: int
    kv_heads: int
    dim: int


@dataclass(frozen=True)
class Step:
    """The arguments of paged_attention, and which rows belong to an item."""

    query: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    block_table: torch.Tensor
    block_size: int
    slots: torch.Tensor
    positions: torch.Tensor
    items: torch.Tensor
    longest_item: int

    def arguments(self) -> tuple[object, ...]:
        return tuple(vars(self).values())


PAD_ROWS = 3


def step(
    place: Place,
    heads: Heads,
    sequences: list[Sequence],
    longest_item: int,
    block_size: int = 16,
    table_width: int = 24,
) -> Step:
    """The rows of all sequences, then PAD_ROWS rows of no item; padding items lie between the others.

    Blocks lie in random order. Cache slots that hold no token of a sequence are NaN, and so is the block that
    the unused entries of the table name.
    """
    blocks = -(-max(s.before + s.rows for s in sequences) // block_size)
    assert blocks <= table_width
    pool = iter((torch.randperm(len(sequences) * blocks) + 1).tolist())
    table = torch.zeros(len(sequences) + 1, table_width, dtype=torch.int64)
    cache_slots = (len(sequences) * blocks + 1) * block_size
    k_cache, v_cache = torch.full((2, cache_slots, heads.kv_heads, heads.dim), float("nan"))
    slots, positions, items = [], [], []
    for slot, sequence in enumerate(sequences):
        length = sequence.before + sequence.rows
        assert sequence.shared * block_size <= min(length, sequences[0].before + sequences[0].rows)
        for i in range(-(-length // block_size)):
            table[slot, i] = table[0, i] if i < sequence.shared else next(pool)
        index = torch.arange(length)
        own = table[slot, index // block_size] * block_size + index % block_size
        k_cache[own] = torch.randn(length, heads.kv_heads, heads.dim)
        v_cache[own] = torch.randn(length, heads.kv_heads, heads.dim)
        for first in range(0, sequence.rows, longest_item):
            items.append((len(slots) + first, min(longest_item, sequence.rows - first)))
            if len(items) % 2:
                items.append((0, 0))
        slots += [slot] * sequence.rows
        positions += range(sequence.before, length)
    slots += [len(sequences)] * PAD_ROWS
    positions += [0] * PAD_ROWS
    device = place.device
    return Step(
        query=place.normal(len(slots), heads.heads, heads.dim),
        k_cache=k_cache.to(device, place.dtype),
        v_cache=v_cache.to(device, place.dtype),
        block_table=table.to(device),
        block_size=block_size,
        slots=torch.tensor(slots, device=device),
        positions=torch.tensor(positions, device=device),
        items=torch.tensor(items, dtype=torch.int32, device=device),
        longest_item=longest_item,
    )


def plain_attention(step: Step, dtype: torch.dtype) -> torch.Tensor:
    """Row by row: softmax(q·K / sqrt(D))·V in dtype, each operation rounded; rows of no item are zeros."""
    out = torch.zeros_like(step.query, dtype=dtype)
    group = step.query.shape[1] // step.k_cache.shape[1]
    rows = [r for first, number in step.items.tolist() for r in range(first, first + number)]
    for row in rows:
        seen = torch.arange(int(step.positions[row]) + 1, device=step.query.device)
        blocks = step.block_table[step.slots[row]]
        history = blocks[seen // step.block_size] * step.block_size + seen % step.block_size
        keys = step.k_cache[history].to(dtype).repeat_interleave(group, dim=1)
        values = step.v_cache[history].to(dtype).repeat_interleave(group, dim=1)
        query = step.query[row].to(dtype)[:, None]
        scores = query @ keys.permute(1, 2, 0) / query.shape[-1] ** 0.5
        out[row] = (scores.softmax(-1) @ values.transpose(0, 1))[:, 0]
    return out
