"""Products of a few rows with a weight, with what stands around them in a layer: one kernel each.

At a few rows a product is bound by reading its weight, and mostly by starting: a library's kernel takes 4 to
5 µs where the weight alone takes 1. Norm, gate and residual sum cost next to nothing inside it.
"""

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from engine.kernels.activation import gated, silu_mul
from engine.kernels.linear import linear
from engine.kernels.programmatic import early_launch
from engine.kernels.rms_norm import rms_norm

# Measured on an H200 (docs/lab_log.md): with 32 rows a library's kernels win.
MOST_ROWS = 16
# Up to here each row is multiplied by itself, in fp32; more rows are one product for the tensor cores.
_SINGLE_ROWS = 2
# A program holds whole rows of the weight in registers; longer ones are read as well by a library's kernel.
_MOST_DEPTH = 8192
# Of a weight above that, reading it is most of the work, and with a product's padded tiles around it a
# library's kernel reads it faster.
_MOST_PRODUCT_BYTES = 8 << 20
# Elements of the weight that a thread holds: four loads of 16 bytes under way at once.
_THREAD_ELEMENTS = 32
# Columns of a product: 48 programs for the narrowest weights, and each row of x is read by no more.
_TILE_COLUMNS = 16
# Depth of a product for one warp: 64 registers of x and as many of the weight. Eight warps reach 2,048.
_PART_DEPTH = 256
_MOST_PARTS = 8


def fits(x: torch.Tensor) -> bool:
    """Whether rows x: (T, H) are few enough, on a GPU, and of a 16-bit type."""
    return x.is_cuda and x.shape[0] <= MOST_ROWS and x.itemsize == 2


def norm_linear(x: torch.Tensor, gain: torch.Tensor, eps: float, weight: torch.Tensor) -> torch.Tensor:
    """rms_norm(x, gain, eps) times weight: (N, K) transposed. x: (T, K), gain: (K,). Returns (T, N)."""
    if not _takes(x, weight):
        return linear(rms_norm(x, gain, eps), weight)
    return few_rows_triton(x, weight, gain=gain, eps=eps)


def norm_gated_linear(x: torch.Tensor, gain: torch.Tensor, eps: float, weight: torch.Tensor) -> torch.Tensor:
    """silu_mul of norm_linear. weight: (2·I, K), the gate's I rows first. x: (T, K). Returns (T, I)."""
    if not _takes(x, weight):
        return silu_mul(linear(rms_norm(x, gain, eps), weight))
    return few_rows_triton(x, weight, gain=gain, eps=eps, gated=True)


def linear_add(x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """residual + x times weight: (N, K) transposed, the product rounded first. x: (T, K); (T, N)."""
    if not _takes(x, weight):
        return residual + linear(x, weight)
    return few_rows_triton(x, weight, residual=residual)


def _takes(x: torch.Tensor, weight: torch.Tensor) -> bool:
    most = _MOST_DEPTH if x.shape[0] <= _SINGLE_ROWS else _PART_DEPTH * _MOST_PARTS
    small = x.shape[0] <= _SINGLE_ROWS or weight.nbytes <= _MOST_PRODUCT_BYTES
    return fits(x) and weight.shape[1] <= most and small


def tile_columns(depth_block: int, gated: bool) -> int:
    """Columns of the result for one program: enough of the weight that each of four warps' threads has its
    elements, and two at least, so that a row of x is read for more than one."""
    return max(2, 4 * 32 * _THREAD_ELEMENTS // depth_block // (2 if gated else 1))


def few_rows_triton(
    x: torch.Tensor,
    weight: torch.Tensor,
    gain: torch.Tensor | None = None,
    eps: float = 0.0,
    residual: torch.Tensor | None = None,
    gated: bool = False,
) -> torch.Tensor:
    """All tensors must be contiguous. Sums are fp32; roundings are those of the operations one by one."""
    rows, depth = x.shape
    columns = weight.shape[0] // (2 if gated else 1)
    out = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    tensors = x, x if gain is None else gain, weight, x if residual is None else residual, out
    kind = {"NORM": gain is not None, "GATED": gated, "ADD": residual is not None}
    launch = early_launch(x)
    depth_block = triton.next_power_of_2(depth)
    if rows > _SINGLE_ROWS:
        parts = max(1, min(_MOST_PARTS, depth_block // _PART_DEPTH))
        part_depth = min(_PART_DEPTH, depth_block)
        _several_rows_kernel[triton.cdiv(columns, _TILE_COLUMNS),](
            *tensors, rows, EPS=eps, DEPTH=depth, COLUMNS=columns, PARTS=parts, BLOCK_K=part_depth,
            CHUNKS=triton.cdiv(depth, parts * part_depth), BLOCK_M=max(16, triton.next_power_of_2(rows)),
            BLOCK_N=_TILE_COLUMNS, num_warps=parts, **kind, **launch,
        )  # fmt: skip
        return out
    block = tile_columns(depth_block, gated)
    _few_rows_kernel[triton.cdiv(columns, block),](
        *tensors, EPS=eps, ROWS=rows, DEPTH=depth, COLUMNS=columns, BLOCK_K=depth_block, BLOCK_N=block,
        num_warps=max(1, block * depth_block * (2 if gated else 1) // (32 * _THREAD_ELEMENTS)),
        **kind, **launch,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["rows"])
def _several_rows_kernel(
    x,
    gain,
    weight,
    residual,
    out,
    rows,
    EPS: tl.constexpr,
    DEPTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    NORM: tl.constexpr,
    GATED: tl.constexpr,
    ADD: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One program: BLOCK_N columns of up to BLOCK_M rows. The depth is cut into parts, one a warp, which are
    added up at the end. The first of the weight is on its way before x has to be there."""
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.arange(0, BLOCK_M)
    depth = tl.arange(0, PARTS)[:, None] * BLOCK_K + tl.arange(0, BLOCK_K)[None, :]
    w_place = column[None, None, :].to(tl.int64) * DEPTH + depth[:, :, None]
    w_inside = (column < COLUMNS)[None, None, :]
    x_place = row[None, :, None] * DEPTH + depth[:, None, :]
    x_inside = (row < rows)[None, :, None]
    w = tl.load(weight + w_place, mask=w_inside & (depth < DEPTH)[:, :, None], other=0)
    if GATED:
        up_w = tl.load(
            weight + COLUMNS * DEPTH + w_place, mask=w_inside & (depth < DEPTH)[:, :, None], other=0
        )
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    if NORM:
        squares = tl.zeros((BLOCK_M,), tl.float32)
        for chunk in tl.static_range(CHUNKS):
            ahead = chunk * PARTS * BLOCK_K
            v = tl.load(x + x_place + ahead, mask=x_inside & (depth + ahead < DEPTH)[:, None, :], other=0)
            v = v.to(tl.float32)
            squares += tl.sum(tl.sum(v * v, axis=2), axis=0)
        scale = tl.rsqrt(squares / DEPTH + EPS)
    product = tl.zeros((PARTS, BLOCK_M, BLOCK_N), tl.float32)
    up_product = tl.zeros((PARTS, BLOCK_M, BLOCK_N), tl.float32)
    for chunk in tl.static_range(CHUNKS):
        ahead = chunk * PARTS * BLOCK_K
        in_depth = depth + ahead < DEPTH
        if chunk > 0:
            w = tl.load(weight + w_place + ahead, mask=w_inside & in_depth[:, :, None], other=0)
            if GATED:
                up_w = tl.load(
                    weight + COLUMNS * DEPTH + w_place + ahead, mask=w_inside & in_depth[:, :, None], other=0
                )
        v = tl.load(x + x_place + ahead, mask=x_inside & in_depth[:, None, :], other=0)
        dtype = v.dtype
        if NORM:
            g = tl.load(gain + depth + ahead, mask=in_depth, other=0).to(tl.float32)
            quotient = (v.to(tl.float32) * scale[None, :, None]).to(dtype)
            v = (g[:, None, :] * quotient.to(tl.float32)).to(dtype)
        product = tl.dot(v, w, acc=product, input_precision="ieee")
        if GATED:
            up_product = tl.dot(v, up_w, acc=up_product, input_precision="ieee")
    y = tl.sum(product, axis=0).to(dtype)
    if GATED:
        y = gated(y, tl.sum(up_product, axis=0).to(dtype), tl.float32)
    to = row[:, None] * COLUMNS + column[None, :]
    inside = (row < rows)[:, None] & (column < COLUMNS)[None, :]
    if ADD:
        before = tl.load(residual + to, mask=inside, other=0).to(tl.float32)
        y = (before + y.to(tl.float32)).to(dtype)
    tl.store(out + to, y, mask=inside)


@triton.jit
def _few_rows_kernel(
    x,
    gain,
    weight,
    residual,
    out,
    EPS: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    NORM: tl.constexpr,
    GATED: tl.constexpr,
    ADD: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One program: BLOCK_N columns of every row. The weight is on its way before x has to be there."""
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    in_depth = depth < DEPTH
    place = column[:, None].to(tl.int64) * DEPTH + depth[None, :]
    inside = (column < COLUMNS)[:, None] & in_depth[None, :]
    w = tl.load(weight + place, mask=inside, other=0)
    if GATED:
        up_w = tl.load(weight + COLUMNS * DEPTH + place, mask=inside, other=0)
    if NORM:
        g = tl.load(gain + depth, mask=in_depth, other=0).to(tl.float32)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    for row in tl.static_range(ROWS):
        v = tl.load(x + row * DEPTH + depth, mask=in_depth, other=0)
        dtype = v.dtype
        v = v.to(tl.float32)
        if NORM:
            quotient = (v * tl.rsqrt(tl.sum(v * v, axis=0) / DEPTH + EPS)).to(dtype)
            v = (g * quotient.to(tl.float32)).to(dtype).to(tl.float32)
        y = tl.sum(w.to(tl.float32) * v[None, :], axis=1).to(dtype)
        if GATED:
            y = gated(y, tl.sum(up_w.to(tl.float32) * v[None, :], axis=1).to(dtype), tl.float32)
        to = row * COLUMNS + column
        if ADD:
            y = (tl.load(residual + to, mask=column < COLUMNS, other=0).to(tl.float32) + y.to(tl.float32)).to(
                dtype
            )
        tl.store(out + to, y, mask=column < COLUMNS)
