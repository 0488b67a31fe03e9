"""What each row of a step computes, looked up in the device tables."""

import torch
import triton
import triton.language as tl

_ROWS = 32  # a program's: one warp, and a decode step of any size is a handful of programs


def row_inputs(
    slots: torch.Tensor,
    places: torch.Tensor,
    length: torch.Tensor,
    tokens: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Token, position and cache slot of each row, each (T,) int64.

    slots: (T,) int64, the row's sequence slot; places: (T,) int64, its position, or a negative number for
    the newest one. length: (sequence slots,), tokens: (sequence slots, positions) and block_table: (sequence
    slots, blocks), all int64; length may be a column of a wider table.
    """
    operation = row_inputs_triton if slots.is_cuda else row_inputs_reference
    return operation(slots, places, length, tokens, block_table, block_size)


def row_inputs_reference(
    slots: torch.Tensor,
    places: torch.Tensor,
    length: torch.Tensor,
    tokens: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    positions = torch.where(places >= 0, places, length[slots] - 1)
    kv_slots = block_table[slots, positions // block_size] * block_size + positions % block_size
    return tokens[slots, positions], positions, kv_slots


def row_inputs_triton(
    slots: torch.Tensor,
    places: torch.Tensor,
    length: torch.Tensor,
    tokens: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """All tensors but `length` must be contiguous."""
    rows = slots.shape[0]
    found = torch.empty(3, rows, dtype=torch.int64, device=slots.device)
    _row_inputs_kernel[triton.cdiv(rows, _ROWS),](
        slots, places, length, tokens, block_table, found, rows, length.stride(0), tokens.stride(0),
        block_table.stride(0), BLOCK_SIZE=block_size, BLOCK=_ROWS, num_warps=1,
    )  # fmt: skip
    token, position, kv_slot = found
    return token, position, kv_slot


@triton.jit(
    do_not_specialize=["rows", "length_stride", "tokens_stride", "table_stride"],
    do_not_specialize_on_alignment=["slots", "places", "length", "tokens", "block_table", "found"],
)
def _row_inputs_kernel(
    slots,
    places,
    length,
    tokens,
    block_table,
    found,
    rows,
    length_stride,
    tokens_stride,
    table_stride,
    BLOCK_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    slot = tl.load(slots + row, mask=inside, other=0)
    place = tl.load(places + row, mask=inside, other=0)
    newest = tl.load(length + slot * length_stride, mask=inside, other=1) - 1
    position = tl.where(place >= 0, place, newest)
    token = tl.load(tokens + slot * tokens_stride + position, mask=inside, other=0)
    block = tl.load(block_table + slot * table_stride + position // BLOCK_SIZE, mask=inside, other=0)
    tl.store(found + row, token, mask=inside)
    tl.store(found + rows + row, position, mask=inside)
    tl.store(found + 2 * rows + row, block * BLOCK_SIZE + position % BLOCK_SIZE, mask=inside)
