"""Attention over a paged KV cache: PyTorch references, and one Triton kernel for decode rows and chunks.

A layer's cache is one tensor per K and V of shape (slots, kv_heads, D), where slot = block · block_size +
offset: a sequence's token at position p lives at block_table[p // block_size] · block_size + p % block_size.
"""

import math

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from engine.kernels.triton_types import wide_type

# Rows of the query tile, the heads of a KV group times positions of one sequence. The tensor cores take no
# fewer than 16; 64 rows are one instruction of a Hopper warp group, and in a mixed step a decode item, which
# fills one of them, still waits for memory rather than for its padded products.
_FEWEST_TILE_ROWS = 16
_MOST_TILE_ROWS = 64
# Bytes of K in one tile; with V twice as many. Two tiles of each are 64 KB, so that a processor's 227 KB hold
# three programs of decode rows or two of prompt rows.
_K_TILE_BYTES = 16 << 10
_WARPS = 4  # one warp group, the unit of Hopper's matrix instruction
# Processors of an H200. Fewer programs leave some without work. Sequences differ in length, so that a split
# aims at two programs for each.
_PROCESSORS = 132
# Positions below which a further split gains less than the second kernel costs (four to eight tiles), and a
# bound on the partial results that one program combines.
_FEWEST_SPLIT_POSITIONS = 512
_MOST_SPLITS = 32


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


def paged_attention(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    slots: torch.Tensor,
    positions: torch.Tensor,
    items: torch.Tensor,
    longest_item: int,
) -> torch.Tensor:
    """Causal attention of a step's rows over the cache, read through the block table.

    query: (T, heads, D). k_cache, v_cache: (cache slots, kv_heads, D), the rows' own keys and values already
    written. block_table: (sequence slots, blocks) int64. slots, positions: (T,) int64, the sequence slot and
    the position of each row. items: (N, 2) int32, (first row, number of rows): rows of one sequence at
    consecutive positions; number 0 does nothing. longest_item: the largest number of rows an item may have.
    Returns (T, heads, D); rows of no item are zeros. A row attends to positions 0 … its own.
    """
    operation = paged_attention_triton if query.is_cuda else paged_attention_reference
    return operation(query, k_cache, v_cache, block_table, block_size, slots, positions, items, longest_item)


def paged_attention_reference(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    slots: torch.Tensor,
    positions: torch.Tensor,
    items: torch.Tensor,
    longest_item: int,
) -> torch.Tensor:
    """One chunk_attention an item; the items are read back to the host, so it cannot be captured."""
    out = torch.zeros_like(query)
    for first, number in items.tolist():
        if not number:
            continue
        last = first + number
        length = int(positions[last - 1]) + 1
        seen = torch.arange(length, device=query.device)
        blocks = block_table[slots[first]]
        history = blocks[seen // block_size] * block_size + seen % block_size
        out[first:last] = chunk_attention(query[first:last], k_cache, v_cache, history)
    return out


def rows_per_item(heads: int, kv_heads: int) -> int:
    """Rows of a prompt chunk that fill one query tile: the length of item that wastes the least.

    Two at least: items of at most one row are those of a step that only decodes.
    """
    return max(2, _MOST_TILE_ROWS * kv_heads // heads)


def tile_rows(group: int, longest_item: int, element_bytes: int) -> int:
    """Rows of the query tile for items of up to longest_item rows and `group` heads a KV head.

    Exact fp32 and fp64 products are no tensor-core work: their operands lie in registers, which hold 16 rows.
    """
    most = _MOST_TILE_ROWS if element_bytes == 2 else _FEWEST_TILE_ROWS
    wanted = triton.next_power_of_2(group * longest_item)
    return max(_FEWEST_TILE_ROWS, triton.next_power_of_2(group), min(most, wanted))


def tile_positions(dim_block: int, element_bytes: int) -> int:
    """Positions of a K or V tile whose rows are padded to dim_block elements."""
    return max(16, min(128, _K_TILE_BYTES // (dim_block * element_bytes)))


def pipeline_stages(block_m: int) -> int:
    """Stages that keep two tiles of K and V in shared memory, one used and one on its way.

    Triton spends three of five on reading the block table ahead of K and V. From 64 rows on the products are
    a warp group's, whose pipeline adds a tile by itself.
    """
    return 3 if block_m >= 64 else 5


def kv_splits(programs: int, longest_history: int) -> int:
    """Into how many parts every history is cut, a power of two.

    programs: query tiles times KV heads; longest_history: positions that the block table can name. One when
    the programs fill the processors.
    """
    if programs >= _PROCESSORS:
        return 1
    wanted = min(2 * _PROCESSORS // programs, longest_history // _FEWEST_SPLIT_POSITIONS, _MOST_SPLITS)
    return 1 << max(1, wanted).bit_length() - 1


def paged_attention_triton(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    slots: torch.Tensor,
    positions: torch.Tensor,
    items: torch.Tensor,
    longest_item: int,
    part_positions: int | None = None,
) -> torch.Tensor:
    """All tensors must be contiguous. part_positions: cut histories into parts of so many positions, a
    multiple of 128, not into as many as fill the GPU: a row's result then has the same bits in any company.
    """
    rows, heads, dim = query.shape
    kv_heads = k_cache.shape[1]
    block_m = tile_rows(heads // kv_heads, longest_item, query.itemsize)
    row_tiles = triton.cdiv(longest_item, block_m * kv_heads // heads)
    tiles = items.shape[0] * row_tiles
    table_width = block_table.shape[1]
    longest = table_width * block_size
    splits = kv_splits(tiles * kv_heads, longest)
    if part_positions:
        splits = triton.next_power_of_2(-(-longest // part_positions))
    dim_block = max(16, triton.next_power_of_2(dim))
    wide = wide_type(query.dtype)
    out = torch.zeros_like(query)
    partial, weight = out, out
    if splits > 1:
        sums = torch.float64 if query.dtype == torch.float64 else torch.float32
        partial = torch.empty(rows, heads, splits, dim, dtype=sums, device=query.device)
        weight = torch.empty(rows, heads, splits, dtype=sums, device=query.device)
    _attention_kernel[tiles, kv_heads, splits](
        query, k_cache, v_cache, block_table, slots, positions, items, out, partial, weight,
        table_width, row_tiles,
        SCALE=math.log2(math.e) / math.sqrt(dim), BLOCK_SIZE=block_size, KV_HEADS=kv_heads,
        GROUP=heads // kv_heads, DIM=dim, BLOCK_M=block_m, BLOCK_N=tile_positions(dim_block, query.itemsize),
        BLOCK_D=dim_block, SPLIT=splits > 1, PART_POSITIONS=part_positions or 0, WIDE=wide,
        num_warps=_WARPS, num_stages=pipeline_stages(block_m),
    )  # fmt: skip
    if splits > 1:
        _combine_kernel[items.shape[0] * longest_item, heads](
            partial, weight, items, out, longest_item,
            HEADS=heads, DIM=dim, BLOCK_D=dim_block, SPLITS=splits, num_warps=_WARPS,
        )  # fmt: skip
    return out


@triton.jit(
    do_not_specialize=["table_width", "row_tiles"],
    do_not_specialize_on_alignment=["block_table", "slots", "positions", "items"],
)
def _attention_kernel(
    query,
    k_cache,
    v_cache,
    block_table,
    slots,
    positions,
    items,
    out,
    partial,
    weight,
    table_width,
    row_tiles,
    SCALE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SPLIT: tl.constexpr,
    PART_POSITIONS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """One program: one tile of an item's rows, one KV head, one part of the history; online softmax.

    With SPLIT, partial: (T, heads, splits, D) takes the part's result and weight: (T, heads, splits) the
    logarithm to base 2 of its sum of exponentials, -inf where a row sees nothing of the part.
    """
    HEADS: tl.constexpr = KV_HEADS * GROUP
    TILE_ROWS: tl.constexpr = BLOCK_M // GROUP
    item = tl.program_id(0) // row_tiles
    skipped = tl.program_id(0) % row_tiles * TILE_ROWS
    kv_head = tl.program_id(1)
    first = tl.load(items + 2 * item) + skipped
    number = tl.minimum(tl.load(items + 2 * item + 1) - skipped, TILE_ROWS)
    if number <= 0:
        return
    start = tl.load(positions + first).to(tl.int32)
    table_row = block_table + tl.load(slots + first) * table_width

    lane = tl.arange(0, BLOCK_M)
    row = lane // GROUP
    is_row = row < number
    newest_seen = tl.where(is_row, start + row, -1)
    dims = tl.arange(0, BLOCK_D)
    in_dim = dims < DIM
    query_row = (first + row).to(tl.int64) * HEADS + kv_head * GROUP + lane % GROUP
    query_place = query_row[:, None] * DIM + dims[None, :]
    query_mask = is_row[:, None] & in_dim[None, :]
    q = tl.load(query + query_place, mask=query_mask, other=0)

    length = start + number
    part = PART_POSITIONS
    if PART_POSITIONS == 0:
        part = tl.cdiv(tl.cdiv(length, BLOCK_N), tl.num_programs(2)) * BLOCK_N
    begin = tl.program_id(2) * part
    end = tl.minimum(length, begin + part)
    best = tl.full((BLOCK_M,), float("-inf"), WIDE)
    total = tl.zeros((BLOCK_M,), WIDE)
    mixed = tl.zeros((BLOCK_M, BLOCK_D), WIDE)
    for tile in range(begin, end, BLOCK_N):
        position = tile + tl.arange(0, BLOCK_N)
        exists = position < end
        block = tl.load(table_row + position // BLOCK_SIZE, mask=exists, other=0)
        kv_row = (block * BLOCK_SIZE + position % BLOCK_SIZE) * KV_HEADS + kv_head
        k_place = kv_row[None, :] * DIM + dims[:, None]
        k = tl.load(k_cache + k_place, mask=exists[None, :] & in_dim[:, None], other=0)
        scores = tl.dot(q, k, input_precision="ieee", out_dtype=WIDE) * SCALE
        scores = tl.where(position[None, :] <= newest_seen[:, None], scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, axis=1))
        # A row that has seen nothing yet keeps -inf; 0 in its place gives weights of 0 instead of NaN.
        base = tl.where(new_best == float("-inf"), 0, new_best)
        p = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(best - base)
        total = total * shrink + tl.sum(p, axis=1)
        v_place = kv_row[:, None] * DIM + dims[None, :]
        v = tl.load(v_cache + v_place, mask=exists[:, None] & in_dim[None, :], other=0)
        mixed = mixed * shrink[:, None]
        mixed = tl.dot(p.to(v.dtype), v, acc=mixed, input_precision="ieee", out_dtype=WIDE)
        best = new_best

    result = mixed / tl.where(total == 0, 1, total)[:, None]
    if SPLIT:
        split_row = query_row * tl.num_programs(2) + tl.program_id(2)
        tl.store(partial + split_row[:, None] * DIM + dims[None, :], result, mask=query_mask)
        # log2 of a row that saw nothing is -inf, and so is its best.
        tl.store(weight + split_row, best + tl.log2(total), mask=is_row)
    else:
        tl.store(out + query_place, result.to(q.dtype), mask=query_mask)


@triton.jit(do_not_specialize=["longest_item"], do_not_specialize_on_alignment=["items"])
def _combine_kernel(
    partial,
    weight,
    items,
    out,
    longest_item,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """One program: the parts of one row and head, weighted by their sums of exponentials."""
    item = tl.program_id(0) // longest_item
    row_of_item = tl.program_id(0) % longest_item
    if row_of_item >= tl.load(items + 2 * item + 1):
        return
    row = (tl.load(items + 2 * item) + row_of_item).to(tl.int64) * HEADS + tl.program_id(1)
    split = row * SPLITS + tl.arange(0, SPLITS)
    dims = tl.arange(0, BLOCK_D)
    log_weight = tl.load(weight + split)
    share = tl.exp2(log_weight - tl.max(log_weight, axis=0))
    share = share / tl.sum(share, axis=0)
    parts = tl.load(partial + split[:, None] * DIM + dims[None, :], mask=(dims < DIM)[None, :], other=0)
    mixed = tl.sum(share[:, None] * parts, axis=0)
    tl.store(out + row * DIM + dims, mixed.to(out.dtype.element_ty), mask=dims < DIM)
