"""The backward kernels of attention (formulas: Dao, 2023, arXiv:2307.08691, algorithm 2).

One kernel for dK and dV, which loops over the query heads of a group itself, and one for dQ. Each computes
the scores anew, 7 matrix products in all, and adds in a fixed order. Two launches, because the two want other
tiles, and a common one would give both the registers and shared memory of the larger. One kernel of 5
products that reduced its tiles of dQ in L2 was slower on an H200 at every tile (docs/lab_log.md).
"""

import torch
import triton
import triton.language as tl

from engine.kernels.attention_tiles import (
    Tiles,
    key_gradient_tiles,
    padded_dim,
    query_gradient_tiles,
    section_heads,
)
from engine.kernels.attention_work import (
    Work,
    outer_strides,
    read_rows,
    read_tile,
    rows_in_one_loop,
    rows_readable,
    seen_keys,
    sequence_rows,
    tile_and_head,
    tiled,
    visible_keys,
    write_rows,
)

# Rows of O and dO that one program of the Delta kernel reads: 64 x 128 elements at 4 warps are 64 a thread,
# eight loads of full width in flight, enough for a kernel that only waits for memory.
_DELTA_ROWS = 64


def backward_triton(
    work: Work,
    out: torch.Tensor,
    lse: torch.Tensor,
    grad_out: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of query, key and value, contiguous and of their shapes and dtype.

    out and lse: forward_triton's; grad_out: (B, Sq, H, D), any strides.
    """
    grad_out = rows_readable(grad_out)
    delta = output_products(work, out, grad_out)
    grad_key, grad_value = key_gradients(work, lse, delta, grad_out)
    return query_gradient(work, lse, delta, grad_out), grad_key, grad_value


def output_products(work: Work, out: torch.Tensor, grad_out: torch.Tensor) -> torch.Tensor:
    """Delta: (B, H, Sq), each row's sum of out · grad_out."""
    batch, rows, heads, dim = out.shape
    delta = torch.empty(batch, heads, rows, dtype=work.wide, device=out.device)
    row_tiles = triton.cdiv(rows, _DELTA_ROWS)
    if row_tiles * heads * batch:
        _delta_kernel[row_tiles * heads * batch,](
            out, grad_out, delta, rows, heads, row_tiles, *outer_strides(grad_out),
            ROWS=_DELTA_ROWS, DIM=dim, BLOCK_D=padded_dim(dim), WIDE=work.constants()["WIDE"], num_warps=4,
        )  # fmt: skip
    return delta


def key_gradients(
    work: Work, lse: torch.Tensor, delta: torch.Tensor, grad_out: torch.Tensor, tiles: Tiles | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """dK and dV; grad_out with last stride 1."""
    query, key, value = work.query, work.key, work.value
    tiles = tiles or key_gradient_tiles(work.dim, query.itemsize)
    grad_key, grad_value = _fresh(key), _fresh(value)
    descriptors, query_tiles, grad_tiles = tiled(query, grad_out, tiles.block_m, tiles.descriptors)
    column_tiles = triton.cdiv(work.longest_key, tiles.block_n)
    all_heads = work.sequences * work.kv_heads
    group = work.heads // work.kv_heads
    section = section_heads(all_heads, 2 * work.longest_query * group * work.dim * query.itemsize)
    if column_tiles * all_heads:
        _key_kernel[column_tiles * all_heads,](
            query, key, value, grad_out, query_tiles, grad_tiles, lse, delta, grad_key, grad_value,
            *work.lengths(),
            *outer_strides(query), *outer_strides(key), *outer_strides(value), *outer_strides(grad_out),
            column_tiles, work.kv_heads, all_heads, group, section,
            SCALE=work.scale, BLOCK_M=tiles.block_m, BLOCK_N=tiles.block_n, DESCRIPTORS=descriptors,
            **work.constants(), num_warps=tiles.num_warps, num_stages=tiles.num_stages,
        )  # fmt: skip
    return grad_key, grad_value


def query_gradient(
    work: Work, lse: torch.Tensor, delta: torch.Tensor, grad_out: torch.Tensor, tiles: Tiles | None = None
) -> torch.Tensor:
    """dQ; grad_out with last stride 1."""
    query, key, value = work.query, work.key, work.value
    tiles = tiles or query_gradient_tiles(work.dim, query.itemsize)
    grad_query = _fresh(query)
    descriptors, key_tiles, value_tiles = tiled(key, value, tiles.block_n, tiles.descriptors)
    row_tiles = triton.cdiv(work.longest_query, tiles.block_m)
    all_heads = work.sequences * work.heads
    if row_tiles * all_heads:
        _query_kernel[row_tiles * all_heads,](
            query, key, value, grad_out, key_tiles, value_tiles, lse, delta, grad_query, *work.lengths(),
            *outer_strides(query), *outer_strides(key), *outer_strides(value), *outer_strides(grad_out),
            row_tiles, work.heads, all_heads, work.heads // work.kv_heads, work.query_section,
            SCALE=work.scale, BLOCK_M=tiles.block_m, BLOCK_N=tiles.block_n, DESCRIPTORS=descriptors,
            **work.constants(), num_warps=tiles.num_warps, num_stages=tiles.num_stages,
        )  # fmt: skip
    return grad_query


def _fresh(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@triton.jit(do_not_specialize=["rows", "heads", "row_tiles"])
def _delta_kernel(
    out, grad_out, delta, rows, heads, row_tiles, g_batch, g_row, g_head,
    ROWS: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """One program: ROWS rows of one head, the heads of a row next to each other."""
    head = tl.program_id(0) % heads
    first = tl.program_id(0) // heads % row_tiles * ROWS
    batch = (tl.program_id(0) // heads // row_tiles).to(tl.int64)
    out += batch * rows * heads * DIM + head * DIM
    grad_out += batch * g_batch + head.to(tl.int64) * g_head
    o = read_rows(out, first, rows, heads * DIM, ROWS, DIM, BLOCK_D)
    g = read_rows(grad_out, first, rows, g_row, ROWS, DIM, BLOCK_D)
    row = first + tl.arange(0, ROWS)
    products = tl.sum(o.to(WIDE) * g.to(WIDE), axis=1)
    tl.store(delta + (batch * heads + head) * rows + row, products, mask=row < rows)


@triton.jit(
    do_not_specialize=["rows_q", "rows_k", "column_tiles", "kv_heads", "all_heads", "group", "section"],
    do_not_specialize_on_alignment=["offsets_q", "offsets_k"],
)
def _key_kernel(
    query, key, value, grad_out, query_tiles, grad_tiles, lse, delta, grad_key, grad_value,
    offsets_q, offsets_k, rows_q, rows_k,
    q_batch, q_row, q_head, k_batch, k_row, k_head, v_batch, v_row, v_head, g_batch, g_row, g_head,
    column_tiles, kv_heads, all_heads, group, section,
    SCALE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, DESCRIPTORS: tl.constexpr,
    DIM: tl.constexpr, BLOCK_D: tl.constexpr, CAUSAL: tl.constexpr, PACKED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_N keys of one KV head against all queries of the group that see them."""
    tile, kv_head = tile_and_head(column_tiles, all_heads, section)
    sequence = kv_head // kv_heads
    kv_head = kv_head % kv_heads
    heads = kv_heads * group
    batch, start_q, length_q = sequence_rows(offsets_q, rows_q, sequence, PACKED)
    _, start_k, length_k = sequence_rows(offsets_k, rows_k, sequence, PACKED)
    first = tile * BLOCK_N  # the first keys are seen by most rows
    if first >= length_k:
        return
    key += batch * k_batch + kv_head.to(tl.int64) * k_head + start_k * k_row
    value += batch * v_batch + kv_head.to(tl.int64) * v_head + start_k * v_row
    k = read_rows(key, first, length_k, k_row, BLOCK_N, DIM, BLOCK_D)
    v = read_rows(value, first, length_k, v_row, BLOCK_N, DIM, BLOCK_D)

    position = first + tl.arange(0, BLOCK_N)
    shift = length_k - length_q
    begin, all_see = 0, 0
    if CAUSAL:
        begin = tl.maximum(0, first - shift) // BLOCK_M * BLOCK_M
        all_see = tl.cdiv(tl.maximum(0, first + BLOCK_N - 1 - shift), BLOCK_M) * BLOCK_M
    uncut = rows_in_one_loop(length_q, BLOCK_M, PACKED, DESCRIPTORS)
    grad_k = tl.zeros((BLOCK_N, BLOCK_D), WIDE)
    grad_v = tl.zeros((BLOCK_N, BLOCK_D), WIDE)
    for member in tl.range(0, group):
        head = kv_head * group + member
        head_query = query + batch * q_batch + head.to(tl.int64) * q_head + start_q * q_row
        head_grad = grad_out + batch * g_batch + head.to(tl.int64) * g_head + start_q * g_row
        head_rows = (batch * heads + head) * rows_q + start_q
        grad_k, grad_v = _from_queries(
            k, v, grad_k, grad_v, query_tiles, grad_tiles, head_query, head_grad, lse + head_rows,
            delta + head_rows, batch, head, start_q, q_row, g_row,
            begin, uncut, all_see, length_q, position - shift, False,
            SCALE, BLOCK_M, DESCRIPTORS, DIM, BLOCK_D, CAUSAL, WIDE,
        )  # fmt: skip
        if PACKED or not DESCRIPTORS:
            grad_k, grad_v = _from_queries(
                k, v, grad_k, grad_v, query_tiles, grad_tiles, head_query, head_grad, lse + head_rows,
                delta + head_rows, batch, head, start_q, q_row, g_row,
                tl.maximum(begin, uncut), length_q, all_see, length_q, position - shift, True,
                SCALE, BLOCK_M, DESCRIPTORS, DIM, BLOCK_D, CAUSAL, WIDE,
            )  # fmt: skip
    grads = (batch * rows_k + start_k) * kv_heads * DIM + kv_head * DIM
    write_rows(grad_key + grads, first, length_k, kv_heads * DIM, grad_k * SCALE, BLOCK_N, DIM, BLOCK_D)
    write_rows(grad_value + grads, first, length_k, kv_heads * DIM, grad_v, BLOCK_N, DIM, BLOCK_D)


@triton.jit
def _from_queries(
    k, v, grad_k, grad_v, query_tiles, grad_tiles, query, grad_out, lse, delta,
    batch, head, start_q, q_row, g_row,
    begin, end, all_see, length_q, oldest_seeing, CUT: tl.constexpr,
    SCALE: tl.constexpr, BLOCK_M: tl.constexpr, DESCRIPTORS: tl.constexpr,
    DIM: tl.constexpr, BLOCK_D: tl.constexpr, CAUSAL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Add what the query tiles begin … end give to dK and dV; from `all_see` on they see every key.

    Scores are transposed, keys by queries, so that their exponentials and gradients, left operands of the
    next products, stay in registers. Queries beyond the last are zeros with a sum of inf, weights of 0; keys
    beyond the last have rows of their own in all products, which are not stored.
    """
    for first in tl.range(begin, end, BLOCK_M):
        q = read_tile(
            query_tiles, query, batch, head, start_q, first, length_q, q_row,
            BLOCK_M, DIM, BLOCK_D, CUT, DESCRIPTORS,
        )  # fmt: skip
        row = first + tl.arange(0, BLOCK_M)
        sums = tl.load(lse + row, mask=row < length_q, other=float("inf"))
        products = tl.load(delta + row, mask=row < length_q, other=0)
        scores = tl.dot(k, q.T, input_precision="ieee", out_dtype=WIDE)
        p = tl.exp2(scores * (SCALE * 1.4426950408889634) - (sums * 1.4426950408889634)[None, :])
        if CAUSAL and first < all_see:
            # After the exponential: a row without keys has the logarithm -inf, and its weights would be inf.
            p = tl.where(oldest_seeing[:, None] <= row[None, :], p, 0)
        g = read_tile(
            grad_tiles, grad_out, batch, head, start_q, first, length_q, g_row,
            BLOCK_M, DIM, BLOCK_D, CUT, DESCRIPTORS,
        )  # fmt: skip
        grad_v = tl.dot(p.to(g.dtype), g, acc=grad_v, input_precision="ieee", out_dtype=WIDE)
        # Delta goes in as the first sum: nothing is left to subtract, and its registers are free early.
        less_delta = tl.broadcast_to(-products[None, :], scores.shape)
        less_delta = tl.dot(v, g.T, acc=less_delta, input_precision="ieee", out_dtype=WIDE)
        grad_s = (p * less_delta).to(q.dtype)
        grad_k = tl.dot(grad_s, q, acc=grad_k, input_precision="ieee", out_dtype=WIDE)
    return grad_k, grad_v


@triton.jit(
    do_not_specialize=["rows_q", "rows_k", "row_tiles", "heads", "all_heads", "group", "section"],
    do_not_specialize_on_alignment=["offsets_q", "offsets_k"],
)
def _query_kernel(
    query, key, value, grad_out, key_tiles, value_tiles, lse, delta, grad_query, offsets_q, offsets_k,
    rows_q, rows_k,
    q_batch, q_row, q_head, k_batch, k_row, k_head, v_batch, v_row, v_head, g_batch, g_row, g_head,
    row_tiles, heads, all_heads, group, section,
    SCALE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, DESCRIPTORS: tl.constexpr,
    DIM: tl.constexpr, BLOCK_D: tl.constexpr, CAUSAL: tl.constexpr, PACKED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_M queries of one head against the keys they see."""
    tile, head = tile_and_head(row_tiles, all_heads, section)
    sequence = head // heads
    head = head % heads
    kv_head = head // group
    batch, start_q, length_q = sequence_rows(offsets_q, rows_q, sequence, PACKED)
    _, start_k, length_k = sequence_rows(offsets_k, rows_k, sequence, PACKED)
    first = (row_tiles - 1 - tile) * BLOCK_M
    if first >= length_q:
        return
    query += batch * q_batch + head.to(tl.int64) * q_head + start_q * q_row
    grad_out += batch * g_batch + head.to(tl.int64) * g_head + start_q * g_row
    key += batch * k_batch + kv_head.to(tl.int64) * k_head + start_k * k_row
    value += batch * v_batch + kv_head.to(tl.int64) * v_head + start_k * v_row
    q = read_rows(query, first, length_q, q_row, BLOCK_M, DIM, BLOCK_D)
    g = read_rows(grad_out, first, length_q, g_row, BLOCK_M, DIM, BLOCK_D)
    row = first + tl.arange(0, BLOCK_M)
    head_rows = (batch * heads + head) * rows_q + start_q
    sums = tl.load(lse + head_rows + row, mask=row < length_q, other=float("inf")) * 1.4426950408889634
    products = tl.load(delta + head_rows + row, mask=row < length_q, other=0)

    whole, seen = seen_keys(first, length_q, length_k, BLOCK_M, BLOCK_N, CAUSAL)
    newest_seen = row + (length_k - length_q)
    uncut = rows_in_one_loop(length_k, BLOCK_N, PACKED, DESCRIPTORS)
    grad_q = tl.zeros((BLOCK_M, BLOCK_D), WIDE)
    grad_q = _from_keys(
        q, g, grad_q, sums, products, key_tiles, value_tiles, key, value, batch, kv_head, start_k,
        k_row, v_row, 0, tl.minimum(seen, uncut), whole, length_k, newest_seen, False,
        SCALE, BLOCK_N, DESCRIPTORS, DIM, BLOCK_D, CAUSAL, WIDE,
    )  # fmt: skip
    if PACKED or not DESCRIPTORS:
        grad_q = _from_keys(
            q, g, grad_q, sums, products, key_tiles, value_tiles, key, value, batch, kv_head, start_k,
            k_row, v_row, uncut, seen, whole, length_k, newest_seen, True,
            SCALE, BLOCK_N, DESCRIPTORS, DIM, BLOCK_D, CAUSAL, WIDE,
        )  # fmt: skip
    grad_query += (batch * rows_q + start_q) * heads * DIM + head * DIM
    write_rows(grad_query, first, length_q, heads * DIM, grad_q * SCALE, BLOCK_M, DIM, BLOCK_D)


@triton.jit
def _from_keys(
    q, g, grad_q, sums, products, key_tiles, value_tiles, key, value, batch, kv_head, start_k, k_row, v_row,
    begin, end, whole, length_k, newest_seen, CUT: tl.constexpr,
    SCALE: tl.constexpr, BLOCK_N: tl.constexpr, DESCRIPTORS: tl.constexpr,
    DIM: tl.constexpr, BLOCK_D: tl.constexpr, CAUSAL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Add what the key tiles begin … end give to dQ, unscaled; every row sees all keys before `whole`."""
    for first in tl.range(begin, end, BLOCK_N):
        k = read_tile(
            key_tiles, key, batch, kv_head, start_k, first, length_k, k_row,
            BLOCK_N, DIM, BLOCK_D, CUT, DESCRIPTORS,
        )  # fmt: skip
        v = read_tile(
            value_tiles, value, batch, kv_head, start_k, first, length_k, v_row,
            BLOCK_N, DIM, BLOCK_D, CUT, DESCRIPTORS,
        )  # fmt: skip
        scores = tl.dot(q, k.T, input_precision="ieee", out_dtype=WIDE)
        less_delta = tl.broadcast_to(-products[:, None], scores.shape)
        less_delta = tl.dot(g, v.T, acc=less_delta, input_precision="ieee", out_dtype=WIDE)
        p = tl.exp2(scores * (SCALE * 1.4426950408889634) - sums[:, None])
        if first >= whole:
            visible = visible_keys(first, length_k, newest_seen, BLOCK_N, CAUSAL)
            p = tl.where(visible, p, 0)
        grad_s = (p * less_delta).to(q.dtype)
        grad_q = tl.dot(grad_s, k, acc=grad_q, input_precision="ieee", out_dtype=WIDE)
    return grad_q
