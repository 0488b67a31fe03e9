"""What the attention kernels share: which work a program does, how it reads rows, and what a launch needs.

Every tensor is (batch, rows, heads, D). Packed sequences are one batch entry whose rows `offsets` cut.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from engine.kernels.attention_tiles import padded_dim, section_heads

_DESCRIPTOR_ALIGNMENT = 16  # bytes, of the base and of every stride but the last


@dataclass(frozen=True)
class Offsets:
    """Where packed sequences begin: (N + 1,) int32 each, and the longest of each."""

    query: torch.Tensor
    key: torch.Tensor
    longest_query: int
    longest_key: int

    @property
    def sequences(self) -> int:
        return self.query.shape[0] - 1


@dataclass(frozen=True)
class Work:
    """The shapes of one call and what attends to what."""

    query: torch.Tensor  # (B, Sq, H, D), last stride 1, as the two below
    key: torch.Tensor  # (B, Sk, Hkv, D)
    value: torch.Tensor
    offsets: Offsets | None
    causal: bool
    scale: float

    @property
    def sequences(self) -> int:
        return self.offsets.sequences if self.offsets else self.query.shape[0]

    @property
    def longest_query(self) -> int:
        return self.offsets.longest_query if self.offsets else self.query.shape[1]

    @property
    def longest_key(self) -> int:
        return self.offsets.longest_key if self.offsets else self.key.shape[1]

    @property
    def heads(self) -> int:
        return self.query.shape[2]

    @property
    def kv_heads(self) -> int:
        return self.key.shape[2]

    @property
    def dim(self) -> int:
        return self.query.shape[3]

    @property
    def wide(self) -> torch.dtype:
        """The dtype of sums, of the logarithms of them and of Delta."""
        return torch.float64 if self.query.dtype == torch.float64 else torch.float32

    @property
    def query_section(self) -> int:
        """Query heads that are worked off together, see section_heads, where queries pass over keys."""
        bytes_per_head = 2 * self.longest_key * self.dim * self.query.itemsize
        group = self.heads // self.kv_heads
        return group * section_heads(self.sequences * self.kv_heads, bytes_per_head)

    def lengths(self) -> tuple[torch.Tensor, torch.Tensor, int, int]:
        """offsets_q, offsets_k, rows_q, rows_k of the kernels; without packing the offsets are not read."""
        offsets = (self.offsets.query, self.offsets.key) if self.offsets else (self.query, self.query)
        return *offsets, self.query.shape[1], self.key.shape[1]

    def constants(self) -> dict[str, object]:
        return dict(
            DIM=self.dim,
            BLOCK_D=padded_dim(self.dim),
            CAUSAL=self.causal,
            PACKED=self.offsets is not None,
            WIDE=tl.float64 if self.wide == torch.float64 else tl.float32,
        )


def rows_readable(x: torch.Tensor) -> torch.Tensor:
    """x itself where its last stride is 1, else a copy."""
    return x if x.stride(-1) == 1 else x.contiguous()


def outer_strides(x: torch.Tensor) -> tuple[int, int, int]:
    """Strides of batch, row and head, in elements."""
    return x.stride(0), x.stride(1), x.stride(2)


def describable(*tensors: torch.Tensor) -> bool:
    """Whether tensor descriptors can stand for these tensors.

    Broadcast axes (stride 0) and what is not aligned to 16 bytes cannot be described.
    """
    return all(
        x.numel() > 0
        and x.data_ptr() % _DESCRIPTOR_ALIGNMENT == 0
        and all(
            stride > 0 and stride * x.itemsize % _DESCRIPTOR_ALIGNMENT == 0
            for size, stride in zip(x.shape[:3], x.stride()[:3], strict=True)
            if size > 1
        )
        for x in tensors
    )


def tiled(
    first: torch.Tensor, second: torch.Tensor, rows: int, wanted: bool
) -> tuple[bool, torch.Tensor | TensorDescriptor, torch.Tensor | TensorDescriptor]:
    """Whether tiles of `rows` rows of both tensors are read through descriptors: where that is wanted and can
    be; and what the kernel gets for them, which without descriptors it does not read."""
    if wanted and describable(first, second):
        return True, described(first, rows), described(second, rows)
    return False, first, second


def described(x: torch.Tensor, rows: int) -> TensorDescriptor:
    """Tiles of `rows` rows of one head of x, which is `describable`."""
    batch, length, heads, dim = x.shape
    # The stride of an axis of one entry is never used, but must be valid.
    strides = [
        stride if size > 1 else _DESCRIPTOR_ALIGNMENT
        for size, stride in ((batch, x.stride(0)), (heads, x.stride(2)), (length, x.stride(1)))
    ]
    return TensorDescriptor(x, [batch, heads, length, dim], [*strides, 1], [1, 1, rows, padded_dim(dim)])


@triton.jit
def tile_and_head(tiles, heads, section):
    """The tile and the head, of all heads of all sequences, that this program works on.

    Sections of heads follow each other; within one, all heads of tile 0 come first, then those of tile 1.
    """
    program = tl.program_id(0)
    first = program // (section * tiles) * section
    width = tl.minimum(section, heads - first)
    within = program % (section * tiles)
    return within // width, first + within % width


@triton.jit
def sequence_rows(offsets, rows, sequence, PACKED: tl.constexpr):
    """Batch entry, first row (both int64) and number of rows of a sequence."""
    if PACKED:
        start = tl.load(offsets + sequence)
        return tl.zeros((), tl.int64), start.to(tl.int64), tl.load(offsets + sequence + 1) - start
    return sequence.to(tl.int64), tl.zeros((), tl.int64), rows


@triton.jit
def seen_keys(first, length_q, length_k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr):
    """Of the query tile from row `first`: the keys before which all rows see every one, in whole tiles, and
    those that any row sees."""
    seen_by_all, seen = length_k, length_k
    if CAUSAL:
        shift = length_k - length_q
        seen_by_all = tl.minimum(length_k, tl.maximum(0, first + 1 + shift))
        seen = tl.minimum(length_k, tl.maximum(0, first + BLOCK_M + shift))
    return seen_by_all // BLOCK_N * BLOCK_N, seen


@triton.jit
def visible_keys(first, length_k, newest_seen, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr):
    """Which of the keys first … each row sees: (1 or rows, BLOCK_N). newest_seen: the last one of each."""
    position = first + tl.arange(0, BLOCK_N)
    visible = (position < length_k)[None, :]
    if CAUSAL:
        visible = visible & (position[None, :] <= newest_seen[:, None])
    return visible


@triton.jit
def read_rows(base, first, length, stride, ROWS: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Rows first … first + ROWS - 1 of the `length` at base as (ROWS, BLOCK_D), zeros beyond rows and DIM."""
    row = tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK_D)
    # The product with the stride passes 2^31 for long sequences and for rows of a fused projection.
    place = base + (first + row).to(tl.int64)[:, None] * stride + column[None, :]
    inside = (first + row < length)[:, None]
    if DIM < BLOCK_D:
        inside = inside & (column < DIM)[None, :]
    return tl.load(place, mask=inside, other=0)


@triton.jit
def read_whole_rows(base, first, stride, ROWS: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """As read_rows where all rows exist."""
    row = tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK_D)
    place = base + (first + row).to(tl.int64)[:, None] * stride + column[None, :]
    if DIM < BLOCK_D:
        return tl.load(place, mask=(column < DIM)[None, :], other=0)
    return tl.load(place)


@triton.jit
def read_tile(
    tiles,
    base,
    batch,
    head,
    start,
    first,
    length,
    stride,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    CUT: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):
    """Rows first … of a sequence, by descriptor (`tiles`) or by pointer (`base`, the sequence's first row).

    CUT: some rows may lie beyond the last one; they are zeros, and read by pointer.
    """
    if CUT:
        return read_rows(base, first, length, stride, ROWS, DIM, BLOCK_D)
    if DESCRIPTORS:
        place = [batch.to(tl.int32), head, start.to(tl.int32) + first, 0]
        return tiles.load(place).reshape(ROWS, BLOCK_D)
    return read_whole_rows(base, first, stride, ROWS, DIM, BLOCK_D)


@triton.jit
def rows_in_one_loop(length, ROWS: tl.constexpr, PACKED: tl.constexpr, DESCRIPTORS: tl.constexpr):
    """Up to which row the tiles of a sequence need no CUT in `read_tile`.

    A descriptor knows where a batch entry ends and gives zeros beyond. It does not know where a packed
    sequence does: zero weights times NaN of the next one would be NaN.
    """
    if DESCRIPTORS and not PACKED:
        return length
    return length // ROWS * ROWS


@triton.jit
def write_rows(
    base, first, length, stride, values, ROWS: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr
):
    """Store (ROWS, BLOCK_D) as rows first … of the `length` at base, without what is beyond rows and DIM."""
    row = tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK_D)
    place = base + (first + row).to(tl.int64)[:, None] * stride + column[None, :]
    inside = (first + row < length)[:, None]
    if DIM < BLOCK_D:
        inside = inside & (column < DIM)[None, :]
    tl.store(place, values.to(base.dtype.element_ty), mask=inside)
