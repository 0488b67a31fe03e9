"""Credited work against values worked out by hand."""

from harness.attention.formulas import Shape, decode_bytes, dense_twin, flops, packed

LLAMA = Shape(causal=True, head_dim=128, heads=32, kv_heads=8, seq=4096, batch=2)


def test_the_forward_of_a_causal_batch_is_half_of_a_full_one():
    full = Shape(causal=False, head_dim=64, heads=2, kv_heads=2, seq=8, batch=3)
    assert flops("forward", full) == 4 * 3 * 2 * 64 * 8 * 8 == 98_304
    assert flops("forward", Shape(True, 64, 2, 2, 8, 3)) == 49_152


def test_a_backward_is_credited_two_and_a_half_forwards():
    # 4 x 2 x 32 x 4096^2 x 128 / 2 = 274,877,906,944
    assert flops("forward", LLAMA) == 274_877_906_944
    assert flops("backward", LLAMA) == 687_194_767_360


def test_grouped_heads_change_the_bytes_of_a_decode_step_and_not_its_operations():
    assert flops("decode", LLAMA) == 4 * 2 * 32 * 4096 * 128
    assert decode_bytes(LLAMA, 2) == 4 * 2 * 8 * 4096 * 128 == 33_554_432


def test_packed_sequences_count_their_own_squares():
    shape = packed((3, 5), True, heads=2, kv_heads=1, head_dim=16)
    assert (shape.tokens, shape.pairs, shape.seq, shape.batch, shape.group) == (8, 34, 5, 2, 2)
    assert flops("forward", shape) == 4 * 2 * 34 * 16 / 2


def test_the_dense_twin_has_the_work_of_the_packed_sequences():
    shape = packed((4099, 3071, 2557, 1795, 1277, 1021, 773, 641, 509, 317, 193, 131), True, 16, 16, 128)
    twin = dense_twin(shape)
    assert (twin.batch, twin.seq, twin.lengths) == (7, 2393, ())
    assert abs(flops("backward", twin) / flops("backward", shape) - 1) < 1e-3
