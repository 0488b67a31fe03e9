"""Public faults of attention kernels that must not be here, numbered as in the list behind the design.

Number 12 is of another kernel, the cross-entropy of a vocabulary.
"""

import pytest
import torch

from engine.kernels.attention import attention_triton, packed_attention_triton
from engine.kernels.attention_reference import attention_reference
from tests.engine.kernels.attention.cases import (
    Shape,
    assert_all_as_exact,
    check_dense,
    check_packed,
    dense,
    inputs,
    offsets,
    with_gradients,
)
from tests.engine.kernels.measured import Place

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:divide by zero encountered in log2:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
]
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def test_1_no_finite_value_stands_for_a_mask(place: Place) -> None:
    """Real scores of -6e4 and below are no masks, and rows without keys are no NaN (flashinfer#4401)."""
    query, key, value = inputs(place, Shape(40, 37, dim=16))
    query[..., 0], key[..., 0] = -600, 600
    out = attention_triton(query, key, value, causal=True, scale=0.25)
    exact = attention_reference(query.double(), key.double(), value.double(), causal=True, scale=0.25)
    assert (out[:, :3] == 0).all()
    torch.testing.assert_close(out[:, 3].double(), exact[:, 3], rtol=1e-2, atol=1e-2)
    assert out.isfinite().all()
    weights_of_later_rows = attention_triton(query, key, torch.ones_like(value), causal=True, scale=0.25)[
        :, 3:
    ]
    torch.testing.assert_close(
        weights_of_later_rows, torch.ones_like(weights_of_later_rows), rtol=2e-3, atol=0
    )


def test_2_weights_are_zero_where_masked_also_when_the_exponential_overflows(place: Place) -> None:
    """Hidden scores far above a row's sum would be inf, and inf · 0 NaN (flash-attention#1947)."""
    tensors = inputs(place, Shape(20, 18, dim=16))
    tensors[0][..., 0] = 40
    tensors[1][..., 0] = torch.linspace(-30, 30, 18)[:, None]  # later keys have far higher scores
    grad_out = torch.randn_like(tensors[0])
    for part in with_gradients(dense(True, 0.25), tensors, grad_out):
        assert part.isfinite().all()
    check_packed(place, [20, 5], [7, 5], Shape(0, 0, dim=16), True)


def test_3_no_row_beyond_a_sequence_is_read_from_scratch(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logarithms and Delta behind the last row are whatever memory holds (tilelang#2461)."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **options: empty(*size, **options).fill_(float("nan")))
    check_packed(place, [17, 3], [17, 5], Shape(0, 0, heads=2, kv_heads=1, dim=16), True)


def _far_apart(rows: int, heads: int, dim: int, row_stride: int) -> torch.Tensor:
    """(1, rows, heads, dim) whose rows begin `row_stride` elements apart."""
    memory = torch.empty(rows * row_stride, dtype=torch.bfloat16, device="cuda")
    view = memory.as_strided((1, rows, heads, dim), (0, row_stride, dim, 1))
    return view.copy_(torch.randn(1, rows, heads, dim, device="cuda"))


@pytest.mark.gpu
@NEEDS_GPU
def test_4_row_times_stride_passes_31_bits() -> None:
    """Views of fused projections of 100,000 tokens (SageAttention#386)."""
    torch.manual_seed(0)
    tensors = tuple(_far_apart(300, 2, 64, 1 << 23) for _ in range(3))
    grad_out = _far_apart(300, 2, 64, 1 << 23)
    check_dense(tensors, causal=True, grad_out=grad_out)


@pytest.mark.gpu
@NEEDS_GPU
def test_5_offset_times_stride_passes_31_bits() -> None:
    """Packed sequences that begin past 2^31 elements (sglang#20389)."""
    torch.manual_seed(0)
    rows = 300_000
    tensors = tuple(torch.randn(rows, 2, 3, 64, device="cuda").bfloat16().repeat(1, 1, 1, 20)[..., :64]
                    for _ in range(3))  # fmt: skip
    assert rows * tensors[0].stride(0) > 1 << 31
    cut = offsets(Place("cuda", torch.bfloat16), [rows - 70, 70])
    tensors = tuple(x[:, :, 0] for x in tensors)
    grad_out = torch.randn_like(tensors[0])

    def kernel(*qkv: torch.Tensor) -> torch.Tensor:
        out = packed_attention_triton(*qkv, cut, cut, rows, rows, causal=True, scale=0.125)
        return out[-70:]

    ours = with_gradients(kernel, tensors, grad_out[-70:])
    tails = tuple(x[None, -70:] for x in tensors)

    def reference(*qkv: torch.Tensor) -> torch.Tensor:
        return attention_reference(*qkv, causal=True)

    assert_all_as_exact(tuple(x[None, -70:] for x in ours), reference, tails, grad_out[None, -70:])


@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (6, 3)])
def test_6_each_query_head_has_its_kv_head(place: Place, heads: int, kv_heads: int) -> None:
    """Groups of another size than the number of KV heads (native-sparse-attention-triton#27)."""
    check_dense(inputs(place, Shape(9, 9, heads, kv_heads, dim=16)), causal=True)


def test_7_gradients_of_any_strides(place: Place) -> None:
    """dO transposed, sliced and broadcast (flash-attention#355, fla#871)."""
    shape = Shape(9, 9, heads=3, kv_heads=3, dim=16)
    tensors = inputs(place, shape)
    for grad_out in (
        place.normal(1, 3, 9, 16).transpose(1, 2),
        place.normal(1, 9, 3, 32)[..., ::2],
        place.normal(1, 1, 3, 16).expand(1, 9, 3, 16),
    ):
        check_dense(tensors, True, grad_out)


def test_7_gradients_of_a_sum(place: Place) -> None:
    """One number for all of dO: the same bits as its copies side by side."""
    tensors = inputs(place, Shape(9, 9, heads=3, kv_heads=3, dim=16))
    one = torch.full((), 0.3, dtype=place.dtype, device=place.device).expand(1, 9, 3, 16)
    operation = dense(True, 0.25)
    apart = with_gradients(operation, tensors, one)
    copied = with_gradients(operation, tensors, one.contiguous())
    assert all(torch.equal(mine, other) for mine, other in zip(apart, copied, strict=True))


def test_8_inputs_of_any_strides(place: Place) -> None:
    """Slices of one projection, transposed heads, a broadcast value, columns apart (pytorch#146377)."""
    fused = place.normal(2, 17, 4, 16)
    transposed = place.normal(2, 4, 17, 16).transpose(1, 2)
    apart = place.normal(2, 17, 1, 32)[..., ::2]
    broadcast = place.normal(1, 17, 1, 16).expand(2, 17, 1, 16)
    check_dense(fused.split([2, 1, 1], dim=2), True)
    check_dense((transposed[:, :, :2], transposed[:, :, 2:3], broadcast), True)
    check_dense((fused[:, ::2, :2], apart, broadcast), True)


@pytest.mark.gpu
@NEEDS_GPU
def test_9_gradients_still_being_written_are_waited_for() -> None:
    """dO that a long kernel finishes just before is read whole (flash-attention#2481)."""
    torch.manual_seed(0)
    place = Place("cuda", torch.bfloat16)
    tensors = inputs(place, Shape(512, 512, heads=16, kv_heads=16))
    left, right = place.normal(512, 8192), place.normal(8192, 16 * 64)
    operation = dense(True, 0.125)
    expected = with_gradients(operation, tensors, (left @ right).view(1, 512, 16, 64))
    for _ in range(20):
        grad_out = torch.full((1, 512, 16, 64), float("nan"), dtype=torch.bfloat16, device="cuda")
        torch.cuda.synchronize()
        torch.mm(left, right, out=grad_out.view(512, 16 * 64))
        for mine, true in zip(with_gradients(operation, tensors, grad_out), expected, strict=True):
            torch.testing.assert_close(mine, true, rtol=2e-2, atol=0)


def test_10_causal_is_aligned_at_the_bottom_right(place: Place) -> None:
    """The last row sees every key, as with a cache of earlier ones (pytorch#108108)."""
    query, key, value = inputs(place, Shape(3, 20, dim=16))
    out = attention_triton(query, key, value, causal=True, scale=0.25)
    for row in range(3):
        alone = attention_reference(
            query[:, row : row + 1], key[:, : 18 + row], value[:, : 18 + row], causal=False, scale=0.25
        )
        near = max(2e-3, 2 * torch.finfo(place.dtype).eps)
        torch.testing.assert_close(out[:, row : row + 1], alone, rtol=near, atol=near)


@pytest.mark.parametrize("rows", [20, 130])
def test_11_nothing_of_other_sequences_is_read(place: Place, rows: int) -> None:
    """NaN in the sequences before and behind changes no bit (vllm#47305)."""
    if place.device == "cpu" and (place.dtype == torch.float32) == (rows > 20):
        pytest.skip("takes long to interpret: small tiles for few rows, large ones for many")
    lengths = [3, rows, 10]
    cut = offsets(place, lengths)
    mine = slice(3, 3 + rows)
    tensors = tuple(x[0] for x in inputs(place, Shape(sum(lengths), sum(lengths), heads=1, dim=16)))
    grad_out = torch.randn_like(tensors[0])

    def kernel(*qkv: torch.Tensor) -> torch.Tensor:
        return packed_attention_triton(*qkv, cut, cut, rows, rows, causal=True, scale=0.25)

    def spoilt(x: torch.Tensor) -> torch.Tensor:
        y = torch.full_like(x, float("nan"))
        y[mine] = x[mine]
        return y

    clean = with_gradients(kernel, tensors, grad_out)
    beside = with_gradients(kernel, tuple(spoilt(x) for x in tensors), spoilt(grad_out))
    for expected, got in zip(clean, beside, strict=True):
        assert torch.equal(expected[mine], got[mine])
