"""Products of some tens of rows with a weight, with what stands around them in a layer: one kernel each.

Beside few_rows, whose programs hold their part of the weight in registers: here weight and rows stream
through shared memory, since with more rows than sixteen reading them again for every column is what takes
long. Which tiles suit a product is measured (`python -m harness.micro.row_products`), not computed.
"""

import functools
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from engine.kernels.activation import gated
from engine.kernels.programmatic import early_launch
from engine.kernels.triton_types import wide_type

MOST_ROWS = 128
# Programs of one launch that may meet at a counter: those of the widest product there is, cut into parts.
_COUNTERS = 1 << 14
_LINE_BYTES = 128


@dataclass(frozen=True)
class RowTiles:
    """One program multiplies all rows with `columns` of the result over one of `splits` parts of the depth,
    in steps of `depth` of which `stages` are under way at once."""

    columns: int
    depth: int
    splits: int
    stages: int
    warps: int

    def shared_bytes(self, rows: int, is_gated: bool, element_bytes: int = 2) -> int:
        """Shared memory of one program, of which a processor of an H200 has 227 KiB."""
        lines = _tile_rows(rows) + self.columns * (2 if is_gated else 1)
        return self.stages * self.depth * lines * element_bytes


def row_tiles_product(
    x: torch.Tensor,
    weight: torch.Tensor,
    tiles: RowTiles,
    gain: torch.Tensor | None = None,
    eps: float = 0.0,
    residual: torch.Tensor | None = None,
    is_gated: bool = False,
) -> torch.Tensor:
    """x: (T, K), T up to MOST_ROWS, times weight: (N, K) transposed; (T, N).

    With a gain (K,), rms_norm(x, gain, eps) in the place of x: the rows' scales, known once a row has been
    read, are applied to the sums. With a residual (T, N), that plus the rounded product. is_gated: weight is
    (2·N, K), the gate's rows first, and the result silu_mul of both. All tensors must be contiguous. Launches
    of one device share counters, so they belong to one stream.
    """
    rows, depth = x.shape
    columns = weight.shape[0] // (2 if is_gated else 1)
    out = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    grid = triton.cdiv(columns, tiles.columns), tiles.splits
    block_m = _tile_rows(rows)
    sizes = {"BLOCK_M": block_m, "BLOCK_N": tiles.columns, "BLOCK_K": tiles.depth}
    kinds = (2 if is_gated else 1) * tiles.columns + (1 if gain is not None else 0)
    partial, arrivals = out, out
    if tiles.splits > 1:
        sums = torch.float64 if x.dtype == torch.float64 else torch.float32
        partial = torch.empty(*grid, kinds, block_m, dtype=sums, device=x.device)
        arrivals = _counters(x.device)
    _row_tiles_kernel[grid](
        x, x if gain is None else gain, weight, x if residual is None else residual, out, partial, arrivals,
        rows, EPS=eps, DEPTH=depth, COLUMNS=columns, SPLITS=tiles.splits, STAGES=tiles.stages,
        LINES=triton.next_power_of_2(triton.cdiv(depth * x.itemsize, _LINE_BYTES * tiles.splits)),
        NORM=gain is not None, GATED=is_gated, ADD=residual is not None, WIDE=wide_type(x.dtype),
        num_warps=tiles.warps, **sizes, **early_launch(x),
    )  # fmt: skip
    return out


def _tile_rows(rows: int) -> int:
    return max(16, triton.next_power_of_2(rows))


@functools.cache
def _counters(device: torch.device) -> torch.Tensor:
    return torch.zeros(_COUNTERS, dtype=torch.int32, device=device)


@triton.jit
def _fetch_ahead(weight, column, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, begin, end, LINES: tl.constexpr):
    """Have the second-level cache read a program's part of the weight."""
    line_elements: tl.constexpr = 128 // (weight.dtype.element_ty.primitive_bitwidth // 8)
    depth = tl.minimum(begin + tl.arange(0, LINES) * line_elements, end - 1)
    place = weight + tl.minimum(column, COLUMNS - 1)[:, None].to(tl.int64) * DEPTH + depth[None, :]
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [place], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit(do_not_specialize=["rows"])
def _row_tiles_kernel(
    x,
    gain,
    weight,
    residual,
    out,
    partial,
    arrivals,
    rows,
    EPS: tl.constexpr,
    DEPTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    SPLITS: tl.constexpr,
    STAGES: tl.constexpr,
    LINES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NORM: tl.constexpr,
    GATED: tl.constexpr,
    ADD: tl.constexpr,
    WIDE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One program: BLOCK_N columns of all rows, one part of the depth. Parts meet at a counter; the last one
    adds all of them up in their order. partial: (column tiles, parts, columns of every kind, BLOCK_M)."""
    tile = tl.program_id(0)
    part = tl.program_id(1)
    column = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.arange(0, BLOCK_M)
    step = tl.arange(0, BLOCK_K)
    dtype = x.dtype.element_ty
    part_depth: tl.constexpr = (DEPTH + SPLITS * BLOCK_K - 1) // (SPLITS * BLOCK_K) * BLOCK_K
    begin = part * part_depth
    end = tl.minimum(DEPTH, begin + part_depth)
    up = weight + COLUMNS * DEPTH
    if EARLY:
        _fetch_ahead(weight, column, COLUMNS, DEPTH, begin, end, LINES)
        if GATED:
            _fetch_ahead(up, column, COLUMNS, DEPTH, begin, end, LINES)
        gdc_wait()
        gdc_launch_dependents()

    product = tl.zeros((BLOCK_M, BLOCK_N), WIDE)
    up_product = tl.zeros((BLOCK_M, BLOCK_N), WIDE)
    squares = tl.zeros((BLOCK_M,), WIDE)
    x_place = row[:, None] * DEPTH + step[None, :]
    w_place = column[None, :].to(tl.int64) * DEPTH + step[:, None]
    is_row = (row < rows)[:, None]
    is_column = (column < COLUMNS)[None, :]
    for at in tl.range(begin, end, BLOCK_K, num_stages=STAGES):
        inside = at + step < end
        v = tl.load(x + x_place + at, mask=is_row & inside[None, :], other=0)
        w = tl.load(weight + w_place + at, mask=is_column & inside[:, None], other=0)
        if NORM:
            g = tl.load(gain + at + step, mask=inside, other=0).to(WIDE)
            squares += tl.sum(v.to(WIDE) * v.to(WIDE), axis=1)
            v = (v.to(WIDE) * g[None, :]).to(dtype)
        product = tl.dot(v, w, acc=product, input_precision="ieee", out_dtype=WIDE)
        if GATED:
            up_w = tl.load(up + w_place + at, mask=is_column & inside[:, None], other=0)
            up_product = tl.dot(v, up_w, acc=up_product, input_precision="ieee", out_dtype=WIDE)

    if SPLITS > 1:
        KINDS: tl.constexpr = BLOCK_N * (2 if GATED else 1) + (1 if NORM else 0)
        lane = tl.arange(0, BLOCK_N)[None, :] * BLOCK_M + row[:, None]
        mine = partial + (tile * SPLITS + part) * KINDS * BLOCK_M
        tl.store(mine + lane, product)
        if GATED:
            tl.store(mine + BLOCK_N * BLOCK_M + lane, up_product)
        if NORM:
            tl.store(mine + (KINDS - 1) * BLOCK_M + row, squares)
        # All threads have stored; the exchange then shows that to the program that finds all parts there.
        tl.debug_barrier()
        if tl.atomic_add(arrivals + tile, 1, sem="acq_rel") < SPLITS - 1:
            return
        tl.store(arrivals + tile, 0)
        product = tl.zeros((BLOCK_M, BLOCK_N), WIDE)
        up_product = tl.zeros((BLOCK_M, BLOCK_N), WIDE)
        squares = tl.zeros((BLOCK_M,), WIDE)
        for other in tl.static_range(SPLITS):
            # Past the first-level cache, which other processors' stores do not reach.
            there = partial + (tile * SPLITS + other) * KINDS * BLOCK_M
            product += tl.load(there + lane, cache_modifier=".cg")
            if GATED:
                up_product += tl.load(there + BLOCK_N * BLOCK_M + lane, cache_modifier=".cg")
            if NORM:
                squares += tl.load(there + (KINDS - 1) * BLOCK_M + row, cache_modifier=".cg")

    if NORM:
        scale = tl.rsqrt(squares / DEPTH + EPS)[:, None]
        product *= scale
        up_product *= scale
    y = product.to(dtype)
    if GATED:
        y = gated(y, up_product.to(dtype), WIDE)
    to = row[:, None] * COLUMNS + column[None, :]
    inside = is_row & is_column
    if ADD:
        y = (tl.load(residual + to, mask=inside, other=0).to(WIDE) + y.to(WIDE)).to(dtype)
    tl.store(out + to, y, mask=inside)
