"""Which tiles the attention kernels work with: pure functions over one table, written for an H200.

`python -m harness.micro.attention_tune OUT.csv` measures candidates for the entries of 16-bit dtypes.
"""

from dataclasses import dataclass

import triton

LARGEST_DIM = 128
# The tensor cores take no fewer than 16 columns.
_SMALLEST_DIM = 16
# Of the 50 MB of L2 that an H200 has, what one section's keys and values may fill; the rest is for queries,
# results and what the next section already reads.
_SECTION_BYTES = 32 << 20


@dataclass(frozen=True)
class Tiles:
    """One program's tile: block_m query rows by block_n keys, and how Triton compiles its loop.

    descriptors: whether whole tiles are read through tensor descriptors (Hopper's TMA), where the tensors
    allow it, rather than through pointers.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    descriptors: bool = False


# Exact fp32 and fp64 products are no tensor-core work: both operands and the sums lie in registers, which
# hold 16 rows of 128 columns. One stage, because nothing waits for memory there.
_EXACT = Tiles(block_m=16, block_n=32, num_warps=4, num_stages=1)

# What follows was the fastest of each kernel, by the geometric mean of 1,024 and 8,192 rows, on an H200:
# results/micro/attention_tune/h200-first.csv, of commit d979fc0. The loops were changed after it (one with a
# branch for the mask in the place of two), so that close seconds, which each
# comment names, deserve another look.
# All are small tiles of one warpgroup where they can be: several programs share a processor, and while one
# takes exponentials another multiplies. Everywhere descriptors won: no addresses in registers.
#
# 64 columns: 64 rows by 128 keys hold 64 scores and 32 sums a thread, 160 registers, so that three programs
# share a processor; shared memory: 8 KB of queries + 2 stages of 2 x 16 KB. (64, 64, 4, 3) loses 2 %.
# 128 columns: 32 scores and 64 sums, 143 registers; 16 KB + 3 stages of 2 x 16 KB = 112 KB, two a processor.
# (128, 128, 8, 3), one program a processor, loses 10 %.
_FORWARD = {
    64: Tiles(block_m=64, block_n=128, num_warps=4, num_stages=2, descriptors=True),
    128: Tiles(block_m=64, block_n=64, num_warps=4, num_stages=3, descriptors=True),
}
# dK and dV of 64 keys are 64 sums a thread at 64 columns and 128 at 128; scores and their gradients, of 64
# queries, 32 each. That takes 255 registers, two programs a processor. 128 keys at 8 warps lose
# 16 % and 17 %.
# 64 columns: a third stage of queries and dO, 16 KB, is free then and gains 12 % at 8,192 rows.
# 128 columns: 32 KB of keys and values + 2 stages of 32 KB = 96 KB; with a third only one program fits, and
# 37 % is lost.
_KEY_GRADIENT = {
    64: Tiles(block_m=64, block_n=64, num_warps=4, num_stages=3, descriptors=True),
    128: Tiles(block_m=64, block_n=64, num_warps=4, num_stages=2, descriptors=True),
}
# 64 columns: 64 queries take 125 registers, 16 KB of queries and dO + 3 stages of 16 KB: three a processor.
# 128 queries at 4 warps are equal within 1 %, better for long sequences and worse for short ones.
# 128 columns: 128 queries at 8 warps read keys and values half as often; 64 KB + 3 stages of 32 KB = 160 KB,
# so that it is alone and the third stage gains 28 %. (64, 64, 4, 2), two a processor, loses 4 %.
_QUERY_GRADIENT = {
    64: Tiles(block_m=64, block_n=64, num_warps=4, num_stages=3, descriptors=True),
    128: Tiles(block_m=128, block_n=64, num_warps=8, num_stages=3, descriptors=True),
}


def padded_dim(dim: int) -> int:
    """Columns of a tile for head dimension `dim`; ValueError above 128."""
    if not 1 <= dim <= LARGEST_DIM:
        raise ValueError(f"head dimension {dim} is not within 1 … {LARGEST_DIM}")
    return max(_SMALLEST_DIM, triton.next_power_of_2(dim))


def forward_tiles(dim: int, itemsize: int) -> Tiles:
    """For the forward kernel. dim: head dimension; itemsize: bytes of an element."""
    return _tiles(_FORWARD, dim, itemsize)


def key_gradient_tiles(dim: int, itemsize: int) -> Tiles:
    """For the kernel of dK and dV: block_n keys stay, block_m queries pass."""
    return _tiles(_KEY_GRADIENT, dim, itemsize)


def query_gradient_tiles(dim: int, itemsize: int) -> Tiles:
    """For the kernel of dQ: block_m queries stay, block_n keys pass."""
    return _tiles(_QUERY_GRADIENT, dim, itemsize)


def section_heads(heads: int, bytes_per_head: int) -> int:
    """How many of `heads` are worked off together, so that what their programs share stays in L2.

    bytes_per_head: what all programs of one head read again and again. Within a section the longest tiles
    come first. The idea is that of FlashAttention-3's scheduler for causal attention.
    """
    return max(1, min(heads, _SECTION_BYTES // max(1, bytes_per_head)))


def _tiles(table: dict[int, Tiles], dim: int, itemsize: int) -> Tiles:
    if itemsize > 2:
        return _EXACT
    # Narrower heads than 64 need less of everything that bounds the tiles of 64. Short sequences take the
    # tiles of long ones: of the shapes measured so far, none ranks first at 1,024 rows by more than 3 % and
    # not at 8,192.
    return table[max(64, padded_dim(dim))]
