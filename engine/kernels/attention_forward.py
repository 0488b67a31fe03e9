"""The forward kernel of attention: FlashAttention-2 (Dao, 2023, arXiv:2307.08691), masked tiles left out."""

import math

import torch
import triton
import triton.language as tl

from engine.kernels.attention_tiles import Tiles, forward_tiles
from engine.kernels.attention_work import (
    Work,
    outer_strides,
    read_rows,
    read_tile,
    rows_in_one_loop,
    seen_keys,
    sequence_rows,
    tile_and_head,
    tiled,
    visible_keys,
    write_rows,
)


def forward_triton(work: Work, tiles: Tiles | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """out: (B, Sq, H, D) contiguous, and the natural logarithms of the sums of exponentials, (B, H, Sq).

    Sums are fp32 (fp64 for fp64). A row that sees no key has out 0 and logarithm -inf.
    """
    query, key, value = work.query, work.key, work.value
    tiles = tiles or forward_tiles(work.dim, query.itemsize)
    batch, rows, heads, _dim = query.shape
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    lse = torch.empty(batch, heads, rows, dtype=work.wide, device=query.device)
    descriptors, key_tiles, value_tiles = tiled(key, value, tiles.block_n, tiles.descriptors)
    row_tiles = triton.cdiv(work.longest_query, tiles.block_m)
    all_heads = work.sequences * heads
    if row_tiles * all_heads:
        _forward_kernel[row_tiles * all_heads,](
            query, key, value, key_tiles, value_tiles, out, lse, *work.lengths(),
            *outer_strides(query), *outer_strides(key), *outer_strides(value),
            row_tiles, heads, all_heads, heads // work.kv_heads, work.query_section,
            SCALE=work.scale * math.log2(math.e), BLOCK_M=tiles.block_m, BLOCK_N=tiles.block_n,
            DESCRIPTORS=descriptors, **work.constants(),
            num_warps=tiles.num_warps, num_stages=tiles.num_stages,
        )  # fmt: skip
    return out, lse


@triton.jit(
    do_not_specialize=["rows_q", "rows_k", "row_tiles", "heads", "all_heads", "group", "section"],
    do_not_specialize_on_alignment=["offsets_q", "offsets_k"],
)
def _forward_kernel(
    query, key, value, key_tiles, value_tiles, out, lse, offsets_q, offsets_k, rows_q, rows_k,
    q_batch, q_row, q_head, k_batch, k_row, k_head, v_batch, v_row, v_head,
    row_tiles, heads, all_heads, group, section,
    SCALE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, DESCRIPTORS: tl.constexpr,
    DIM: tl.constexpr, BLOCK_D: tl.constexpr, CAUSAL: tl.constexpr, PACKED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_M rows of one head against the keys they see; SCALE includes log2(e)."""
    tile, head = tile_and_head(row_tiles, all_heads, section)
    sequence = head // heads
    head = head % heads
    kv_head = head // group
    batch, start_q, length_q = sequence_rows(offsets_q, rows_q, sequence, PACKED)
    _, start_k, length_k = sequence_rows(offsets_k, rows_k, sequence, PACKED)
    first = (row_tiles - 1 - tile) * BLOCK_M  # the last rows see most keys
    if first >= length_q:
        return
    query += batch * q_batch + head.to(tl.int64) * q_head + start_q * q_row
    key += batch * k_batch + kv_head.to(tl.int64) * k_head + start_k * k_row
    value += batch * v_batch + kv_head.to(tl.int64) * v_head + start_k * v_row
    q = read_rows(query, first, length_q, q_row, BLOCK_M, DIM, BLOCK_D)

    row = first + tl.arange(0, BLOCK_M)
    whole, seen = seen_keys(first, length_q, length_k, BLOCK_M, BLOCK_N, CAUSAL)
    newest_seen = row + (length_k - length_q)
    uncut = rows_in_one_loop(length_k, BLOCK_N, PACKED, DESCRIPTORS)
    best = tl.full((BLOCK_M,), float("-inf"), WIDE)
    total = tl.zeros((BLOCK_M,), WIDE)
    mixed = tl.zeros((BLOCK_M, BLOCK_D), WIDE)
    best, total, mixed = _attend(
        q, best, total, mixed, key_tiles, value_tiles, key, value, batch, kv_head, start_k, k_row, v_row,
        0, tl.minimum(seen, uncut), whole, length_k, newest_seen, False,
        SCALE, BLOCK_N, DESCRIPTORS, DIM, BLOCK_D, CAUSAL, WIDE,
    )  # fmt: skip
    if PACKED or not DESCRIPTORS:
        best, total, mixed = _attend(
            q, best, total, mixed, key_tiles, value_tiles, key, value, batch, kv_head, start_k, k_row, v_row,
            uncut, seen, whole, length_k, newest_seen, True,
            SCALE, BLOCK_N, DESCRIPTORS, DIM, BLOCK_D, CAUSAL, WIDE,
        )  # fmt: skip

    mixed = mixed / tl.where(total == 0, 1, total)[:, None]
    out += (batch * rows_q + start_q) * heads * DIM + head * DIM
    write_rows(out, first, length_q, heads * DIM, mixed, BLOCK_M, DIM, BLOCK_D)
    lse += (batch * heads + head) * rows_q + start_q
    # Of a row that saw nothing the logarithm of the sum is -inf, and so is its best.
    tl.store(lse + row, (best + tl.log2(total)) * 0.6931471805599453, mask=row < length_q)


@triton.jit
def _attend(
    q, best, total, mixed, key_tiles, value_tiles, key, value, batch, kv_head, start_k, k_row, v_row,
    begin, end, whole, length_k, newest_seen, CUT: tl.constexpr,
    SCALE: tl.constexpr, BLOCK_N: tl.constexpr, DESCRIPTORS: tl.constexpr,
    DIM: tl.constexpr, BLOCK_D: tl.constexpr, CAUSAL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Online softmax over the key tiles begin … end; every row sees all keys before `whole`.

    The mask is a branch and not a loop of its own: that would begin with an empty pipeline.
    """
    for first in tl.range(begin, end, BLOCK_N):
        k = read_tile(
            key_tiles, key, batch, kv_head, start_k, first, length_k, k_row,
            BLOCK_N, DIM, BLOCK_D, CUT, DESCRIPTORS,
        )  # fmt: skip
        scores = tl.dot(q, k.T, input_precision="ieee", out_dtype=WIDE)
        if first >= whole:
            visible = visible_keys(first, length_k, newest_seen, BLOCK_N, CAUSAL)
            scores = tl.where(visible, scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, axis=1) * SCALE)
        # A row that has seen nothing yet keeps -inf; 0 in its place gives weights of 0 instead of NaN.
        base = tl.where(new_best == float("-inf"), 0, new_best)
        p = tl.exp2(scores * SCALE - base[:, None])
        shrink = tl.exp2(best - base)
        total = total * shrink + tl.sum(p, axis=1)
        mixed = mixed * shrink[:, None]
        v = read_tile(
            value_tiles, value, batch, kv_head, start_k, first, length_k, v_row,
            BLOCK_N, DIM, BLOCK_D, CUT, DESCRIPTORS,
        )  # fmt: skip
        mixed = tl.dot(p.to(v.dtype), v, acc=mixed, input_precision="ieee", out_dtype=WIDE)
        best = new_best
    return best, total, mixed
