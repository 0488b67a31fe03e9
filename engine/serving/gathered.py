"""Inputs of a gathered step: exact rows, and each sequence's history as a list of cache slots."""

import numpy as np
import torch

from engine.kernels.row_inputs import row_inputs_reference
from engine.model.batch import GatheredBatch
from engine.serving.plan import Plan
from engine.serving.step_inputs import NEWEST
from engine.serving.tables import Tables


def gathered_inputs(tables: Tables, plan: Plan) -> tuple[GatheredBatch, torch.Tensor, torch.Tensor]:
    """The batch, which of its rows are sampled, and the slots those belong to."""

    def ints(values: list[int] | np.ndarray) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=tables.device)

    *rows, history, visible = _decode_rows(tables, ints(plan.decodes), plan.longest_decode)
    tokens, all_positions, all_kv_slots = ([part] for part in rows)
    chunks, sample_rows, row = [], list(range(len(plan.decodes))), len(plan.decodes)
    for chunk in plan.chunks:
        end = chunk.start + chunk.count
        chunk_history = _history(tables, tables.block_table[chunk.slot], end)
        tokens.append(tables.tokens[chunk.slot, chunk.start : end])
        all_positions.append(torch.arange(chunk.start, end, device=tables.device))
        all_kv_slots.append(chunk_history[chunk.start :])
        chunks.append((row, row + chunk.count, chunk_history))
        row += chunk.count
        if chunk.sample:
            sample_rows.append(row - 1)
    batch = GatheredBatch(
        torch.cat(tokens),
        torch.cat(all_positions),
        torch.cat(all_kv_slots),
        history,
        visible,
        tuple(chunks),
    )
    return batch, ints(sample_rows), ints(plan.sampled_slots)


def _decode_rows(tables: Tables, slots: torch.Tensor, longest: int) -> tuple[torch.Tensor, ...]:
    """Tokens, positions and KV slots (B,) of each slot's newest token; history, visible (B, longest)."""
    newest = torch.full_like(slots, NEWEST)
    # A finished slot's queued steps write its newest token's KV again, into blocks it still holds.
    tokens, positions, kv_slots = row_inputs_reference(
        slots, newest, tables.length, tables.tokens, tables.block_table, tables.block_size
    )
    history = _history(tables, tables.block_table[slots], longest)
    visible = torch.arange(longest, device=tables.device) <= positions[:, None]
    # A masked value still meets a zero weight, and 0 · NaN is NaN: what is not visible is read from
    # block 0, which stays zero, never from blocks that somebody else has written.
    history = torch.where(visible, history, 0)
    return tokens, positions, kv_slots, history, visible


def _history(tables: Tables, blocks: torch.Tensor, length: int) -> torch.Tensor:
    """Cache slots (…, length) of positions 0 … length-1, from rows of the block table (…, blocks)."""
    size = tables.block_size
    needed = blocks[..., : -(-length // size)]
    offsets = torch.arange(size, device=tables.device)
    return (needed[..., None] * size + offsets).flatten(-2)[..., :length]
