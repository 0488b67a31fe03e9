"""Rows from samples by hand, and what makes them INVALID."""

import pytest

from harness.attention.formulas import Shape
from harness.attention.plan import Cell
from harness.attention.rows import Floor, Measured, attention_row
from tests.harness.attention.made import floor_samples, measured
from tests.harness.made import identity

SHAPE = Shape(causal=True, head_dim=128, heads=16, kv_heads=16, seq=1024, batch=16)
FLOOR = Floor(matmul_tflops=800.0, copy_gb_per_s=4000.0)


def row_of(direction="forward", impl="triton", shape=SHAPE, times_ns=(100_000, 300_000, 200_000), **changes):
    made = measured(Cell("c", impl, direction, shape), "causal", **changes)
    return attention_row(identity(), made, list(times_ns), FLOOR)


def test_a_row_has_the_median_and_the_rate_it_gives():
    # 4 x 16 x 16 x 1024^2 x 128 / 2 = 68.7 GFLOP in 0.2 ms = 343.6 TFLOP/s
    row = row_of()
    assert (row.ms, row.samples, row.verdict, row.gb_per_s) == (0.2, 3, "VALID", None)
    assert row.tflops == pytest.approx(343.597, rel=1e-5)
    assert row.roofline_share == pytest.approx(343.597 / 800, rel=1e-5)
    assert row_of("backward").tflops == pytest.approx(2.5 * 343.597, rel=1e-5)


def test_decode_stands_against_the_copy_rate():
    # 4 x 16 x 16 x 1024 x 128 = 134 MB in 0.2 ms = 671 GB/s
    row = row_of("decode")
    assert row.gb_per_s == pytest.approx(671.089, rel=1e-5)
    assert row.roofline_share == pytest.approx(671.089 / 4000, rel=1e-5)


def test_the_floor_is_the_median_of_its_samples():
    assert Floor.of(floor_samples()) == Floor(769.0, 4190.0)


def test_what_ran_out_of_memory_is_a_row_without_time():
    row = row_of(times_ns=(), failure="out of memory", peak_mib=None, error=None, reference_error=None)
    assert (row.verdict, row.reasons, row.samples) == ("INVALID", "out of memory", 0)
    assert (row.ms, row.tflops, row.roofline_share) == (None, None, None)


@pytest.mark.parametrize(
    ("impl", "error", "reasons"),
    [
        ("triton", 0.018, ""),
        ("triton", 0.0181, "error: 0.0181 > 1.5 x 0.012 of eager attention"),
        ("triton_fused", float("nan"), "error: nan > 1.5 x 0.012 of eager attention"),
        ("flex", 0.5, ""),
        ("flex", float("nan"), "error: not a number"),
    ],
)
def test_ours_may_err_half_more_than_eager_attention(impl, error, reasons):
    assert row_of(impl=impl, error=error).reasons == reasons


def test_a_throttled_or_shared_gpu_makes_a_row_invalid():
    row = row_of(throttle_reasons=0x40 | 0x4, undeclared_gpu_processes="pid 7 on GPU 0")
    assert row.reasons == "clocks_throttled: hardware thermal; gpu_shared: pid 7 on GPU 0"


def test_a_row_gives_back_what_was_measured():
    shape = Shape(True, 64, 8, 2, 9, 2, (9, 4))
    made = measured(Cell("packed", "varlen", "backward", shape), "packed", 1)
    assert Measured.of(attention_row(identity(), made, [5], FLOOR)) == made
