"""rope_and_write: bit for bit what rotating and storing one after the other give."""

import math

import pytest
import torch

from engine.kernels.paged_attention import write_kv
from engine.kernels.rope import apply_rope, rope_and_write, rope_and_write_reference, rope_and_write_triton
from tests.engine.kernels.measured import Place, take_turns

CACHE_SLOTS = 60
HEADS = [(3, 3, 64), (9, 3, 64), (4, 1, 80), (8, 2, 128), (8, 1, 16), (2, 1, 6)]
ROWS = [1, 5, 37]


def inputs(place: Place, rows: int, heads: int, kv_heads: int, dim: int) -> tuple[torch.Tensor, ...]:
    """qkv, cos, sin, positions and kv_slots; positions repeat, slots do not."""
    angles = torch.rand(50, dim // 2, dtype=torch.float64) * 2 * math.pi
    angles = torch.cat((angles, angles), dim=-1)
    return (
        place.normal(rows, (heads + 2 * kv_heads) * dim),
        angles.cos().to(place.device, place.dtype),
        angles.sin().to(place.device, place.dtype),
        torch.randint(0, 50, (rows,)).to(place.device),
        torch.randperm(CACHE_SLOTS)[:rows].to(place.device),
    )


def caches(place: Place, kv_heads: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    full = torch.full((2, CACHE_SLOTS, kv_heads, dim), 7.0).to(place.device, place.dtype)
    return full[0], full[1]


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), HEADS)
@pytest.mark.parametrize("rows", ROWS)
def test_kernel_equals_the_reference(place: Place, rows: int, heads: int, kv_heads: int, dim: int) -> None:
    take_turns(place, HEADS.index((heads, kv_heads, dim)) + ROWS.index(rows))
    given = inputs(place, rows, heads, kv_heads, dim)
    expected_k, expected_v = caches(place, kv_heads, dim)
    k_cache, v_cache = caches(place, kv_heads, dim)
    expected = rope_and_write_reference(*given, expected_k, expected_v, heads)
    query = rope_and_write_triton(*given, k_cache, v_cache, heads)
    assert query.shape == (rows, heads, dim)
    assert query.is_contiguous()
    assert torch.equal(query, expected)
    assert torch.equal(k_cache, expected_k)
    assert torch.equal(v_cache, expected_v)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_cpu_tensors_are_rotated_and_stored(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    place = Place("cpu", dtype)
    qkv, cos, sin, positions, kv_slots = inputs(place, 7, 6, 2, 16)
    k_cache, v_cache = caches(place, 2, 16)
    query = rope_and_write(qkv, cos, sin, positions, kv_slots, k_cache, v_cache, 6)
    each = qkv.view(7, 10, 16)
    expected_k, expected_v = caches(place, 2, 16)
    write_kv(expected_k, kv_slots, apply_rope(each[:, 6:8], cos[positions], sin[positions]))
    write_kv(expected_v, kv_slots, each[:, 8:])
    assert torch.equal(query, apply_rope(each[:, :6], cos[positions], sin[positions]))
    assert torch.equal(k_cache, expected_k)
    assert torch.equal(v_cache, expected_v)
    untouched = torch.ones(CACHE_SLOTS, dtype=torch.bool)
    untouched[kv_slots] = False
    assert (k_cache[untouched] == 7).all()
