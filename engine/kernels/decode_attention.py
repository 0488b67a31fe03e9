"""One layer's attention of decode rows, one a sequence: rotation, KV write and attention in one kernel.

In the same manner as paged_attention, with which it shares the layout of the cache.
"""

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from engine.kernels.programmatic import early_launch
from engine.kernels.triton_types import wide_type

# Rows of the query tile, the heads of a KV group: the tensor cores take no fewer than 16.
_FEWEST_TILE_ROWS = 16
_PROCESSORS = 132  # of an H200
# From so many programs on, four for each processor, they hide each other's waiting for memory.
_MANY = 4 * _PROCESSORS
_MOST_SPLITS = 16
_SPLIT_POSITIONS = 256  # below them a further part is not worth the exchange of its result


@dataclass(frozen=True)
class Tiles:
    """positions: of a K or V tile. stages: loads under way, in tiles. Without `product`, for a lone head, K
    and V go to registers and are multiplied there."""

    positions: int
    warps: int
    stages: int
    product: bool = True


def tiles(programs: int, group: int, dim_block: int, element_bytes: int) -> Tiles:
    """For `programs` of a part, a row and a KV head of `group` heads each.

    Measured on an H200 with heads of 64 in bf16 (docs/lab_log.md). Few programs: large tiles and several
    warps, since each is alone on its processor; a lone head does without shared memory, whose pipeline
    takes longer to fill than a short history to read. Many: one warp and tiles of 4 KB a program, so that
    nine share a processor.
    """
    row_bytes = dim_block * element_bytes
    if programs >= _MANY:
        return Tiles(positions=max(16, (4 << 10) // row_bytes), warps=1, stages=3)
    if group == 1:
        return Tiles(positions=max(16, (8 << 10) // row_bytes), warps=4, stages=1, product=False)
    return Tiles(positions=max(16, (16 << 10) // row_bytes), warps=4, stages=4)


def splits(batch: int, kv_heads: int, longest_history: int) -> int:
    """Into how many parts a history may be cut, a power of two; a short one takes fewer (the kernel decides).

    Programs that find nothing to do cost little, so that there may be four for each processor.
    """
    wanted = min(_MANY // (batch * kv_heads), longest_history // _SPLIT_POSITIONS, _MOST_SPLITS)
    return 1 << max(1, wanted).bit_length() - 1


def rotated_decode_attention(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    kv_slots: torch.Tensor,
    slots: torch.Tensor,
    items: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    heads: int,
    arrivals: torch.Tensor,
    part_positions: int | None = None,
) -> torch.Tensor:
    """What rope_and_write and paged_attention do, for rows that are one item each.

    qkv: (T, (heads + 2·kv_heads)·D), queries first, then keys, then values. cos, sin: (positions, D) of
    rope_table. positions, kv_slots, slots: (T,) int64. items: (T, 2) int32, row and 1, or number 0 for a row
    of padding: its result is zeros, and it writes nothing. block_table: (sequence slots, blocks) int64.
    k_cache, v_cache: (cache slots, kv_heads, D), written in place. arrivals: at least T·kv_heads int32 zeros,
    zeros again afterwards. part_positions: cut histories into parts of so many positions, a multiple of 128,
    with the same tiles whatever the batch: a row's result then has the same bits in any company. Returns
    (T, heads, D). All tensors must be contiguous, and on a GPU, or interpreted.
    """
    rows = qkv.shape[0]
    kv_heads, dim = k_cache.shape[1:]
    table_width = block_table.shape[1]
    longest = table_width * block_size
    parts = -(-longest // part_positions) if part_positions else splits(rows, kv_heads, longest)
    group = heads // kv_heads
    out = torch.empty(rows, heads, dim, dtype=qkv.dtype, device=qkv.device)
    partial, weight = out, out
    if parts > 1:
        sums = torch.float64 if qkv.dtype == torch.float64 else torch.float32
        partial = torch.empty(rows, heads, parts, dim, dtype=sums, device=qkv.device)
        weight = torch.empty(rows, heads, parts, dtype=sums, device=qkv.device)
    dim_block = max(16, triton.next_power_of_2(dim))
    tile = tiles(_MANY if part_positions else rows * kv_heads * parts, group, dim_block, qkv.itemsize)
    _decode_kernel[rows, kv_heads, parts](
        qkv, cos, sin, positions, kv_slots, slots, items, block_table, k_cache, v_cache, out, partial, weight,
        arrivals, table_width,
        SCALE=math.log2(math.e) / math.sqrt(dim), BLOCK_SIZE=block_size, KV_HEADS=kv_heads, GROUP=group,
        DIM=dim, BLOCK_M=max(_FEWEST_TILE_ROWS, triton.next_power_of_2(group)) if tile.product else 1,
        BLOCK_N=tile.positions, BLOCK_D=dim_block, PARTS=parts, PART_POSITIONS=part_positions or 0,
        WIDE=wide_type(qkv.dtype), STAGES=tile.stages, num_warps=tile.warps, **early_launch(qkv),
    )  # fmt: skip
    return out


@triton.jit
def _rotated(source, cos, sin, angle, dims, DIM: tl.constexpr, WIDE: tl.constexpr, mask):
    """Elements `dims` of a head at `source`, turned; each product is rounded, as rope_and_write does."""
    HALF: tl.constexpr = DIM // 2
    partner = tl.where(dims < HALF, dims + HALF, dims - HALF)
    x = tl.load(source + dims, mask=mask, other=0)
    y = tl.load(source + partner, mask=mask, other=0).to(WIDE)
    dtype = x.dtype
    c = tl.load(cos + angle + dims, mask=dims < DIM, other=0).to(WIDE)
    s = tl.load(sin + angle + dims, mask=dims < DIM, other=0).to(WIDE)
    along = (x.to(WIDE) * c).to(dtype).to(WIDE)
    across = (y * s).to(dtype).to(WIDE)
    return tl.where(dims < HALF, along - across, along + across).to(dtype)


@triton.jit(
    do_not_specialize=["table_width"],
    do_not_specialize_on_alignment=["positions", "kv_slots", "slots", "items", "block_table"],
)
def _decode_kernel(
    qkv,
    cos,
    sin,
    positions,
    kv_slots,
    slots,
    items,
    block_table,
    k_cache,
    v_cache,
    out,
    partial,
    weight,
    arrivals,
    table_width,
    SCALE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PARTS: tl.constexpr,
    PART_POSITIONS: tl.constexpr,
    WIDE: tl.constexpr,
    EARLY: tl.constexpr,
    STAGES: tl.constexpr,
):
    """One program: one row, one KV head, one part of the history; online softmax.

    The first part also turns and stores the row's own key and value, which it has in registers. A history
    that needs several parts is combined by the program that is done last: partial: (T, heads, parts, D) holds
    the parts' results and weight: (T, heads, parts) the logarithm to base 2 of their sums of exponentials.
    """
    HEADS: tl.constexpr = KV_HEADS * GROUP
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    part = tl.program_id(2)
    lane = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    in_dim = dims < DIM
    place = (row * HEADS + kv_head * GROUP + lane)[:, None] * DIM + dims[None, :]
    is_head = (lane < GROUP)[:, None] & in_dim[None, :]

    is_row = tl.load(items + 2 * row + 1) > 0
    history = tl.load(positions + row)
    table_row = block_table + tl.load(slots + row) * table_width
    kv_slot = tl.load(kv_slots + row)
    tiles = tl.cdiv(history, BLOCK_N)
    part_length = PART_POSITIONS
    if PART_POSITIONS == 0:
        part_length = tl.cdiv(tiles, PARTS) * BLOCK_N
    used = tl.maximum(1, tl.cdiv(tiles * BLOCK_N, tl.maximum(part_length, 1)))
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    if part >= used:
        return
    if not is_row:
        tl.store(out + place, tl.zeros((BLOCK_M, BLOCK_D), out.dtype.element_ty), mask=is_head)
        return

    angle = history * DIM
    source = qkv + row * (HEADS + 2 * KV_HEADS) * DIM
    q = _rotated(
        source + (kv_head * GROUP + lane)[:, None] * DIM, cos, sin, angle, dims[None, :], DIM, WIDE, is_head
    )
    best = tl.full((BLOCK_M,), float("-inf"), WIDE)
    total = tl.zeros((BLOCK_M,), WIDE)
    mixed = tl.zeros((BLOCK_M, BLOCK_D), WIDE)
    if part == 0:
        own_key = _rotated(source + (HEADS + kv_head) * DIM, cos, sin, angle, dims, DIM, WIDE, in_dim)
        own_value = tl.load(source + (HEADS + KV_HEADS + kv_head) * DIM + dims, mask=in_dim, other=0)
        own = (kv_slot * KV_HEADS + kv_head) * DIM + dims
        tl.store(k_cache + own, own_key, mask=in_dim)
        tl.store(v_cache + own, own_value, mask=in_dim)
        best = tl.sum(q.to(WIDE) * own_key[None, :].to(WIDE), axis=1) * SCALE
        total = tl.full((BLOCK_M,), 1, WIDE)
        mixed = tl.zeros((BLOCK_M, BLOCK_D), WIDE) + own_value[None, :].to(WIDE)

    begin = part * part_length
    end = tl.minimum(history, begin + part_length)
    if BLOCK_M == 1:
        query = tl.sum(q.to(WIDE), axis=0)
        one_best = tl.max(best, axis=0)
        one_total = tl.sum(total, axis=0)
        # The sum over positions is left open until the end: no exchange between threads for each tile.
        first = (tl.arange(0, BLOCK_N) == 0)[:, None]
        open_sum = tl.where(first, tl.sum(mixed, axis=0)[None, :], 0)
        for tile in tl.range(begin, end, BLOCK_N, num_stages=STAGES):
            position = tile + tl.arange(0, BLOCK_N)
            exists = position < end
            block = tl.load(table_row + position // BLOCK_SIZE, mask=exists, other=0)
            kv_row = (block * BLOCK_SIZE + position % BLOCK_SIZE) * KV_HEADS + kv_head
            kv_place = kv_row[:, None] * DIM + dims[None, :]
            mask = exists[:, None] & in_dim[None, :]
            k = tl.load(k_cache + kv_place, mask=mask, other=0)
            v = tl.load(v_cache + kv_place, mask=mask, other=0)
            scores = tl.sum(k.to(WIDE) * query[None, :], axis=1) * SCALE
            scores = tl.where(exists, scores, float("-inf"))
            new_best = tl.maximum(one_best, tl.max(scores, axis=0))
            p = tl.exp2(scores - new_best)
            shrink = tl.exp2(one_best - new_best)
            one_total = one_total * shrink + tl.sum(p, axis=0)
            open_sum = open_sum * shrink + p[:, None] * v.to(WIDE)
            one_best = new_best
        mixed = tl.sum(open_sum, axis=0)[None, :]
        best = tl.full((1,), 0, WIDE) + one_best
        total = tl.full((1,), 0, WIDE) + one_total
    else:
        for tile in tl.range(begin, end, BLOCK_N, num_stages=STAGES):
            position = tile + tl.arange(0, BLOCK_N)
            exists = position < end
            block = tl.load(table_row + position // BLOCK_SIZE, mask=exists, other=0)
            kv_row = (block * BLOCK_SIZE + position % BLOCK_SIZE) * KV_HEADS + kv_head
            k_place = kv_row[None, :] * DIM + dims[:, None]
            k = tl.load(k_cache + k_place, mask=exists[None, :] & in_dim[:, None], other=0)
            scores = tl.dot(q, k, input_precision="ieee", out_dtype=WIDE) * SCALE
            scores = tl.where(exists[None, :], scores, float("-inf"))
            new_best = tl.maximum(best, tl.max(scores, axis=1))
            p = tl.exp2(scores - new_best[:, None])
            shrink = tl.exp2(best - new_best)
            total = total * shrink + tl.sum(p, axis=1)
            v_place = kv_row[:, None] * DIM + dims[None, :]
            v = tl.load(v_cache + v_place, mask=exists[:, None] & in_dim[None, :], other=0)
            mixed = mixed * shrink[:, None]
            mixed = tl.dot(p.to(v.dtype), v, acc=mixed, input_precision="ieee", out_dtype=WIDE)
            best = new_best

    result = mixed / total[:, None]
    if used == 1:
        tl.store(out + place, result.to(q.dtype), mask=is_head)
    elif PARTS > 1:
        head_row = row * HEADS + kv_head * GROUP + lane
        tl.store(partial + (head_row * PARTS + part)[:, None] * DIM + dims[None, :], result, mask=is_head)
        tl.store(weight + head_row * PARTS + part, best + tl.log2(total), mask=lane < GROUP)
        # All threads have stored; the exchange then shows that to the program that finds all parts there.
        tl.debug_barrier()
        arrival = arrivals + row * KV_HEADS + kv_head
        if tl.atomic_add(arrival, 1, sem="acq_rel") == used - 1:
            tl.store(arrival, 0)
            all_best = tl.full((BLOCK_M,), float("-inf"), WIDE)
            all_total = tl.zeros((BLOCK_M,), WIDE)
            all_mixed = tl.zeros((BLOCK_M, BLOCK_D), WIDE)
            for other in range(0, used):
                # Past the first-level cache, which other processors' stores do not reach.
                log_weight = tl.load(
                    weight + head_row * PARTS + other, mask=lane < GROUP, other=0, cache_modifier=".cg"
                )
                piece = tl.load(
                    partial + (head_row * PARTS + other)[:, None] * DIM + dims[None, :],
                    mask=is_head, other=0, cache_modifier=".cg",
                )  # fmt: skip
                new_best = tl.maximum(all_best, log_weight)
                shrink = tl.exp2(all_best - new_best)
                share = tl.exp2(log_weight - new_best)
                all_total = all_total * shrink + share
                all_mixed = all_mixed * shrink[:, None] + share[:, None] * piece
                all_best = new_best
            tl.store(out + place, (all_mixed / all_total[:, None]).to(q.dtype), mask=is_head)
