"""attention and packed_attention: the kernels against eager code and float64, forward and backward."""

import pytest
import torch

from engine.kernels.attention import attention, attention_triton, forward, packed_attention
from engine.kernels.attention_reference import attention_reference, packed_attention_reference
from engine.kernels.attention_work import Offsets
from tests.engine.kernels.attention.cases import (
    Shape,
    check_dense,
    check_packed,
    dense,
    inputs,
    offsets,
    with_gradients,
)
from tests.engine.kernels.measured import Place, take_turns

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:divide by zero encountered in log2:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
]

# Few head dimensions and scales: on a device each is a compilation. Every second one is for the large tiles of
# 16 bits under the interpreter, where the others are of several small tiles.
SHAPES = [
    (Shape(35, 35, heads=2, kv_heads=1, dim=128), True),
    (Shape(1, 1), True),
    (Shape(17, 40, heads=3, kv_heads=1, dim=80), True),
    (Shape(17, 17, heads=3), True),
    (Shape(40, 17, heads=1, kv_heads=1, dim=80), True),
    (Shape(17, 17, heads=2, kv_heads=2), False),
    (Shape(20, 37, heads=2, dim=24), False),
    (Shape(40, 1, heads=1, batch=2, dim=16), True),
]
LARGE_SHAPES = [
    Shape(129, 129, heads=2),
    Shape(70, 150, heads=1, dim=128),
    Shape(150, 70, heads=1, dim=64),
]


@pytest.mark.parametrize(("shape", "causal"), SHAPES)
def test_as_exact_as_eager_code(place: Place, shape: Shape, causal: bool) -> None:
    take_turns(place, SHAPES.index((shape, causal)))
    check_dense(inputs(place, shape), causal)


@pytest.mark.parametrize("shape", LARGE_SHAPES)
def test_several_tiles(place: Place, shape: Shape) -> None:
    """In fp16 the tiles are those of the tensor cores: masked ones before, behind and beside whole ones."""
    if place.device == "cpu" and place.dtype != torch.float16:
        pytest.skip("small tiles of exact products are covered above, and take long to interpret")
    check_dense(inputs(place, shape), causal=True)


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
def test_packed_with_empty_sequences(place: Place, causal: bool) -> None:
    rows, keys = [0, 19, 1, 20, 7, 0], [3, 19, 33, 17, 0, 0]
    check_packed(place, rows, keys, Shape(0, 0, heads=1, dim=64), causal)


def test_packed_tiles_end_where_the_sequence_ends(place: Place) -> None:
    if place.device == "cpu" and place.dtype != torch.float16:
        pytest.skip("takes long to interpret")
    check_packed(place, [70, 30, 64], [70, 150, 64], Shape(0, 0, heads=1, dim=64), True)


def test_outputs_are_written_whole(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever lies in fresh memory: here NaN."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **options: empty(*size, **options).fill_(float("nan")))
    check_dense(inputs(place, Shape(37, 20, heads=2, dim=80)), causal=True)
    check_packed(place, [0, 9, 4], [5, 2, 0], Shape(0, 0, heads=2, dim=16), True)


@pytest.mark.parametrize("scale", [1e3, 1e-3])
def test_large_and_small_scores(place: Place, scale: float) -> None:
    query, key, value = inputs(place, Shape(20, 20, dim=16))
    out = attention_triton(query, key, value, causal=True, scale=scale)
    exact = attention_reference(query.double(), key.double(), value.double(), causal=True, scale=scale)
    torch.testing.assert_close(out.double(), exact, rtol=0, atol=0.02 if place.dtype.itemsize == 2 else 2e-3)


def test_keys_of_infinite_score_below_zero_count_nothing(place: Place) -> None:
    query, key, value = (x.abs() for x in inputs(place, Shape(5, 40, dim=16)))
    key[:, :33] = float("-inf")
    out = attention_triton(query, key, value, causal=False, scale=1.0)
    rest = attention_reference(query, key[:, 33:], value[:, 33:], causal=False, scale=1.0)
    torch.testing.assert_close(out, rest, rtol=2e-2, atol=2e-2)


def test_logarithms_of_sums(place: Place) -> None:
    shape = Shape(30, 20, heads=4, kv_heads=2, dim=16, batch=2)
    query, key, value = inputs(place, shape)
    out, lse = forward(query, key, value, causal=True)
    keys = key.double().repeat_interleave(2, dim=2).transpose(1, 2)
    scores = query.double().transpose(1, 2) @ keys.transpose(-1, -2) / 16**0.5
    hidden = torch.ones(30, 20, dtype=torch.bool, device=place.device).triu(20 - 30 + 1)
    exact = scores.masked_fill(hidden, float("-inf")).logsumexp(dim=-1)
    assert (lse[..., :10] == float("-inf")).all()
    assert (out[:, :10] == 0).all()
    torch.testing.assert_close(lse.double(), exact, rtol=1e-3, atol=1e-3)

    cut = offsets(place, [30, 0]), offsets(place, [20, 0])
    packed, packed_lse = forward(query[0], key[0], value[0], Offsets(*cut, 30, 20), causal=True)
    assert torch.equal(packed, out[0])
    assert torch.equal(packed_lse, lse[0])


def test_gradients_are_the_same_bits_twice(place: Place) -> None:
    tensors = inputs(place, Shape(35, 35, heads=1, dim=64))
    grad_out = torch.randn_like(tensors[0])
    first = with_gradients(dense(True, 0.125), tensors, grad_out)
    second = with_gradients(dense(True, 0.125), tensors, grad_out)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_batch_mates_change_no_bit(place: Place) -> None:
    tensors = inputs(place, Shape(20, 20, heads=1, dim=64, batch=2))
    grad_out = torch.randn_like(tensors[0])
    both = with_gradients(dense(True, 0.125), tensors, grad_out)
    alone = with_gradients(dense(True, 0.125), tuple(x[:1] for x in tensors), grad_out[:1])
    assert all(torch.equal(one, other[:1]) for one, other in zip(alone, both, strict=True))


@pytest.mark.parametrize(("rows", "keys"), [(3, 5), (17, 2)])
def test_gradcheck(interpreted: None, rows: int, keys: int) -> None:
    tensors = inputs(Place("cpu", torch.float64), Shape(rows, keys, heads=1, dim=2))
    leaves = [x.requires_grad_() for x in tensors]
    operation = dense(True, 0.7)
    assert torch.autograd.gradcheck(operation, leaves, fast_mode=True)


@pytest.mark.parametrize("rows", [0, 3])
def test_no_keys_and_no_rows(place: Place, rows: int) -> None:
    tensors = inputs(place, Shape(rows, 3 - rows, dim=16))
    results = with_gradients(dense(True, 0.25), tensors, torch.ones_like(tensors[0]))
    assert [x.shape for x in results] == [tensors[0].shape, *(x.shape for x in tensors)]
    assert all((x == 0).all() for x in results)


def test_fake_kernels_tell_the_truth(interpreted: None) -> None:
    """Shapes, dtypes and strides that torch.compile is told are those of the results, in both directions."""
    tensors = inputs(Place("cpu", torch.float64), Shape(3, 4, heads=2, dim=16))
    leaves = tuple(x.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in tensors)
    torch.library.opcheck(
        torch.ops.llm_ladder.attention_forward,
        (*leaves, None, None, 0, 0, True, 0.25),
        test_utils=("test_autograd_registration", "test_faketensor"),
    )


def test_validation_breaks_no_graph() -> None:
    query, key, value = inputs(Place("cpu", torch.float32), Shape(5, 7, heads=2, dim=16))
    compiled = torch.compile(attention, fullgraph=True, backend="eager")
    assert torch.equal(
        compiled(query, key, value, causal=True, scale=0.3),
        attention(query, key, value, causal=True, scale=0.3),
    )


def test_cpu_tensors_take_the_reference() -> None:
    torch.manual_seed(0)
    place = Place("cpu", torch.float32)
    tensors = [x.requires_grad_() for x in inputs(place, Shape(5, 7, heads=4, kv_heads=2, dim=80))]
    out = attention(*tensors, causal=True)
    assert torch.equal(out, attention_reference(*tensors, causal=True))
    out.sum().backward()
    assert all(x.grad is not None for x in tensors)
    cut = (offsets(place, [2, 0, 3]), offsets(place, [4, 1, 2]), 3, 4)
    packed = [x[0] for x in tensors]
    out = packed_attention(*packed, *cut, causal=True)
    assert torch.equal(out, packed_attention_reference(*packed, *cut, causal=True))


def test_reference_agrees_with_pytorch() -> None:
    torch.manual_seed(0)
    query, key, value = inputs(Place("cpu", torch.float64), Shape(9, 9, heads=6, kv_heads=2, dim=8))
    theirs = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (query, key, value)), is_causal=True, enable_gqa=True
    )
    torch.testing.assert_close(attention_reference(query, key, value, causal=True), theirs.transpose(1, 2))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((1, 2, 2, 129), (1, 2, 2, 129)), "129"),
        (((1, 2, 3, 64), (1, 2, 2, 64)), "3 query heads are no multiple of 2"),
        (((1, 2, 2, 64), (1, 2, 2, 32)), "one head dimension"),
        (((2, 2, 2, 64), (1, 2, 2, 64)), "2 batch entries"),
        (((2, 2, 64), (2, 2, 64)), "not 4 axes"),
    ],
)
def test_bad_shapes_are_named(shapes: tuple[tuple[int, ...], tuple[int, ...]], message: str) -> None:
    query, key = (torch.zeros(shape) for shape in shapes)
    with pytest.raises(ValueError, match=message):
        attention(query, key, key, causal=True)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan")])
def test_bad_scales_are_named(scale: float) -> None:
    x = torch.zeros(1, 2, 2, 16)
    with pytest.raises(ValueError, match=f"scale {scale}"):
        attention(x, x, x, causal=True, scale=scale)


def test_bad_dtypes_and_offsets_are_named() -> None:
    x = torch.zeros(2, 2, 16)
    with pytest.raises(ValueError, match="int32"):
        attention(x[None].int(), x[None].int(), x[None].int(), causal=True)
    good = torch.tensor([0, 2], dtype=torch.int32)
    with pytest.raises(ValueError, match=r"offsets_k is torch\.int64"):
        packed_attention(x, x, x, good, good.long(), 2, 2, causal=True)
    with pytest.raises(ValueError, match="2 and 1 entries"):
        packed_attention(x, x, x, good, good[:1], 2, 2, causal=True)
