"""attention on a device: 16-bit types at real lengths, under torch.compile, and its memory."""

import pytest
import torch

from engine.kernels.attention import attention, packed_attention
from engine.kernels.attention_reference import attention_reference
from tests.engine.kernels.attention.cases import (
    Shape,
    assert_all_as_exact,
    check_dense,
    check_packed,
    inputs,
    offsets,
    with_gradients,
)
from tests.engine.kernels.measured import Place

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.fixture
def place() -> Place:
    torch.manual_seed(0)
    return Place("cuda", torch.bfloat16)


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("rows", [1, 2, 63, 64, 65, 127, 129, 1023, 2049])
def test_lengths(place: Place, rows: int, dim: int) -> None:
    check_dense(inputs(place, Shape(rows, rows, heads=2, kv_heads=1, dim=dim)), causal=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rows", [65, 300])
def test_other_dtypes_without_a_mask(rows: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    check_dense(inputs(Place("cuda", dtype), Shape(rows, 200, heads=2, dim=64)), causal=False)


@pytest.mark.parametrize("dim", [64, 80, 128])
@pytest.mark.parametrize(("rows", "keys"), [(300, 1500), (1500, 300), (1, 1000), (513, 512)])
def test_other_numbers_of_keys_than_rows(place: Place, rows: int, keys: int, dim: int) -> None:
    check_dense(inputs(place, Shape(rows, keys, heads=4, kv_heads=1, dim=dim, batch=2)), True)


@pytest.mark.parametrize("dim", [64, 128])
def test_packed(place: Place, dim: int) -> None:
    rows, keys = [0, 700, 1, 128, 64, 333, 0, 1025], [5, 700, 300, 128, 0, 200, 0, 1025]
    check_packed(place, rows, keys, Shape(0, 0, heads=4, kv_heads=2, dim=dim), True)


def test_131072_rows(place: Place) -> None:
    """The last rows against eager code, which holds the weights of few rows; gradients of them alone."""
    rows, last = 131_072, 64
    tensors = tuple(torch.randn(1, rows, 1, 128, device="cuda", dtype=place.dtype) for _ in range(3))
    grad_out = torch.zeros_like(tensors[0])
    grad_out[:, -last:] = place.normal(1, last, 1, 128)

    def kernel(*qkv: torch.Tensor) -> torch.Tensor:
        return attention(*qkv, causal=True)

    def reference(*qkv: torch.Tensor) -> torch.Tensor:
        return attention_reference(*qkv, causal=True)

    out, grad_query, grad_key, grad_value = with_gradients(kernel, tensors, grad_out)
    assert (grad_query[:, :-last] == 0).all()
    ours = (out[:, -last:].contiguous(), grad_query[:, -last:].contiguous(), grad_key, grad_value)
    assert_all_as_exact(ours, reference, (tensors[0][:, -last:], *tensors[1:]), grad_out[:, -last:])


def test_under_torch_compile(place: Place) -> None:
    """Whole graphs, dense of sliced inputs and packed, forward and backward: the results of eager mode."""
    fused = place.normal(2, 300, 6, 64)
    cut = offsets(place, [200, 100, 300])

    def both(fused: torch.Tensor) -> torch.Tensor:
        query, key, value = (2 * fused).split([4, 1, 1], dim=2)
        dense = attention(query, key, value, causal=True)
        flat = (x.flatten(0, 1) for x in (query, key, value))
        packed = packed_attention(*flat, cut, cut, 300, 300, causal=True)
        return dense.flatten(0, 1) + packed

    grad_out = place.normal(600, 4, 64)
    eager = with_gradients(both, (fused,), grad_out)
    compiled = with_gradients(torch.compile(both, fullgraph=True), (fused,), grad_out)
    for mine, expected in zip(compiled, eager, strict=True):
        torch.testing.assert_close(mine, expected, rtol=2e-2, atol=2e-2)


def test_no_matrix_of_rows_by_keys(place: Place) -> None:
    """At 16k rows of 2 heads one such matrix of 16-bit weights takes 1 GiB; all of both directions, 0.1."""
    rows = (1, 16_384, 2, 64)
    tensors = [torch.randn(rows, device="cuda", dtype=place.dtype, requires_grad=True) for _ in range(3)]
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    attention(*tensors, causal=True).sum().backward()
    assert torch.cuda.max_memory_allocated() - before < 100 << 20


def test_gradients_are_the_same_bits_in_every_run(place: Place) -> None:
    tensors = inputs(place, Shape(2000, 2000, heads=4, kv_heads=2, dim=128))
    grad_out = torch.randn_like(tensors[0])

    def kernel(*qkv: torch.Tensor) -> torch.Tensor:
        return attention(*qkv, causal=True)

    first = with_gradients(kernel, tensors, grad_out)
    for _ in range(5):
        again = with_gradients(kernel, tensors, grad_out)
        assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
