"""rms_norm and add_rms_norm: the kernels against the references."""

import pytest
import torch

from engine.kernels.rms_norm import (
    add_rms_norm,
    add_rms_norm_reference,
    add_rms_norm_triton,
    rms_norm,
    rms_norm_reference,
    rms_norm_triton,
    row_warps,
)
from tests.engine.kernels.measured import Place, assert_as_exact, assert_same_roundings

EPS = 1e-5
SHAPES = [(1, 64), (3, 576), (7, 768), (2, 1100)]


@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_norm_is_as_exact_as_the_reference(place: Place, rows: int, width: int) -> None:
    x = place.normal(rows * 101 if place.large else rows, width, scale=3)
    weight = place.normal(width)
    exact = rms_norm_reference(x.double(), weight.double(), EPS)
    normed, expected = rms_norm_triton(x, weight, EPS), rms_norm_reference(x, weight, EPS)
    assert_as_exact(normed, expected, exact)
    assert_same_roundings(normed, expected)


@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_fused_sum_is_rounded_first(place: Place, rows: int, width: int) -> None:
    rows = rows * 101 if place.large else rows
    hidden, delta, weight = place.normal(rows, width, scale=9), place.normal(rows, width), place.normal(width)
    summed, normed = add_rms_norm_triton(hidden, delta, weight, EPS)
    expected_sum, expected = add_rms_norm_reference(hidden, delta, weight, EPS)
    assert torch.equal(summed, expected_sum)
    assert_as_exact(normed, expected, rms_norm_reference(expected_sum.double(), weight.double(), EPS))
    assert_same_roundings(normed, expected)


def test_eps_keeps_zeros_and_tiny_rows_finite(place: Place) -> None:
    x = torch.stack((torch.zeros(40), torch.full((40,), 1e-4))).to(place.device, place.dtype)
    weight = torch.ones(40).to(x)
    torch.testing.assert_close(rms_norm_triton(x, weight, EPS), rms_norm_reference(x, weight, EPS))


def test_rows_of_a_view_are_taken_as_they_lie(place: Place) -> None:
    x, weight = place.normal(4, 96), place.normal(96)
    torch.testing.assert_close(
        rms_norm_triton(x[::2], weight, EPS), rms_norm_reference(x[::2], weight, EPS), rtol=2e-3, atol=2e-3
    )


def test_cpu_tensors_take_the_reference() -> None:
    hidden, delta = torch.randn(2, 3, 64).bfloat16()
    weight = torch.randn(64).bfloat16()
    summed, normed = add_rms_norm(hidden, delta, weight, EPS)
    assert torch.equal(summed, hidden + delta)
    assert torch.equal(normed, rms_norm(hidden + delta, weight, EPS))


def test_a_thread_loads_sixteen_bytes() -> None:
    assert [row_warps(block) for block in (64, 256, 1024, 4096, 16384)] == [1, 1, 4, 16, 16]
