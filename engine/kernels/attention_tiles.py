"""Which tiles the attention kernels work with: pure functions over one table, written for an H200.

`python -m engine.kernels.attention_tune OUT.csv` measures candidates for the entries of 16-bit dtypes.
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

# Of 64 columns: 64 accumulators a thread, and 64 scores at 4 warps. Two programs share a processor, so that
# one multiplies while the other takes exponentials: each has 16 KB of queries + 3 stages of 2 tiles of 8 KB.
# Of 128 columns: 8 warps hold 64 + 64 of 128 x 128; 32 KB of queries + 2 stages of 2 x 32 KB = 160 KB.
_FORWARD = {
    64: Tiles(block_m=128, block_n=64, num_warps=4, num_stages=3, descriptors=True),
    128: Tiles(block_m=128, block_n=128, num_warps=8, num_stages=2, descriptors=True),
}
# The sums of dK and dV take 2 x 64 registers a thread at 128 keys of 128 columns and 8 warps. 64 queries keep
# scores and their gradients at 32 each; resident K and V are 64 KB, 2 stages of queries and dO 64 KB more.
_KEY_GRADIENT = {
    64: Tiles(block_m=64, block_n=128, num_warps=8, num_stages=2, descriptors=True),
    128: Tiles(block_m=64, block_n=128, num_warps=8, num_stages=2, descriptors=True),
}
# The mirror image: 128 resident queries and dO, keys and values by 64.
_QUERY_GRADIENT = {
    64: Tiles(block_m=128, block_n=64, num_warps=8, num_stages=3, descriptors=True),
    128: Tiles(block_m=128, block_n=64, num_warps=8, num_stages=2, descriptors=True),
}
# As for dK and dV, with the tile of dQ on top. 128 keys are the least at which the fp32 reductions
# (4 · D / block_n bytes a score) stay below what L2 takes at full speed.
_REDUCTION = {
    64: Tiles(block_m=64, block_n=128, num_warps=8, num_stages=2, descriptors=True),
    128: Tiles(block_m=64, block_n=128, num_warps=8, num_stages=2, descriptors=True),
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


def reduction_tiles(dim: int, itemsize: int) -> Tiles:
    """For the kernel of all three gradients: block_n keys stay, block_m queries pass, dQ is reduced."""
    return _tiles(_REDUCTION, dim, itemsize)


def section_heads(heads: int, bytes_per_head: int) -> int:
    """How many of `heads` are worked off together, so that what their programs share stays in L2.

    bytes_per_head: what all programs of one head read again and again. Within a section the longest tiles
    come first. The idea is that of FlashAttention-3's scheduler for causal attention.
    """
    return max(1, min(heads, _SECTION_BYTES // max(1, bytes_per_head)))


def _tiles(table: dict[int, Tiles], dim: int, itemsize: int) -> Tiles:
    if itemsize > 2:
        return _EXACT
    # Narrower heads than 64 need less of everything that bounds the tiles of 64.
    return table[max(64, padded_dim(dim))]
