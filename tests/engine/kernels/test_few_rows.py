"""Products of few rows with what stands around them, against the operations one by one."""

import pytest
import torch

from engine.kernels.activation import silu_mul_reference
from engine.kernels.few_rows import (
    few_rows_triton,
    fits,
    linear_add,
    norm_gated_linear,
    norm_linear,
    tile_columns,
)
from engine.kernels.rms_norm import rms_norm_reference
from tests.engine.kernels.measured import Place, assert_as_exact

EPS = 1e-5
SHAPES = [(1, 64, 48), (2, 96, 33), (3, 576, 20), (5, 128, 7), (8, 768, 10), (16, 2304, 9)]


def wide(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [tensor.double() for tensor in tensors]


def only_16_bits(place: Place) -> None:
    if place.dtype == torch.float64 or (place.large and place.dtype == torch.float32):
        pytest.skip("wide types take the operations one by one")


@pytest.mark.parametrize(("rows", "depth", "columns"), SHAPES)
def test_norm_and_product(place: Place, rows: int, depth: int, columns: int) -> None:
    only_16_bits(place)
    columns *= 100 if place.large else 1
    x, gain, weight = place.normal(rows, depth, scale=3), place.normal(depth), place.normal(columns, depth)

    def plain(x: torch.Tensor, gain: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm_reference(x, gain, EPS) @ weight.t()

    result = few_rows_triton(x, weight, gain=gain, eps=EPS)
    assert_as_exact(result, plain(x, gain, weight), plain(*wide(x, gain, weight)))


@pytest.mark.parametrize(("rows", "depth", "columns"), SHAPES)
def test_norm_product_and_gate(place: Place, rows: int, depth: int, columns: int) -> None:
    only_16_bits(place)
    columns *= 100 if place.large else 1
    x, gain = place.normal(rows, depth), place.normal(depth)
    weight = place.normal(2 * columns, depth, scale=depth**-0.5)

    def plain(x: torch.Tensor, gain: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return silu_mul_reference(rms_norm_reference(x, gain, EPS) @ weight.t())

    result = few_rows_triton(x, weight, gain=gain, eps=EPS, gated=True)
    assert result.shape == (rows, columns)
    assert_as_exact(result, plain(x, gain, weight), plain(*wide(x, gain, weight)))


@pytest.mark.parametrize(("rows", "depth", "columns"), SHAPES)
def test_product_and_residual_sum(place: Place, rows: int, depth: int, columns: int) -> None:
    only_16_bits(place)
    columns *= 100 if place.large else 1
    x, weight, residual = place.normal(rows, depth), place.normal(columns, depth), place.normal(rows, columns)
    exact = residual.double() + x.double() @ weight.double().t()
    assert_as_exact(few_rows_triton(x, weight, residual=residual), residual + x @ weight.t(), exact)


def test_a_row_is_the_same_bits_whatever_its_mates(place: Place) -> None:
    only_16_bits(place)
    x, gain, weight = place.normal(6, 96), place.normal(96), place.normal(24, 96)
    together = few_rows_triton(x, weight, gain=gain, eps=EPS)
    for kind in (slice(0, 3), slice(3, 6)):
        assert torch.equal(few_rows_triton(x[kind], weight, gain=gain, eps=EPS), together[kind])
    pair = few_rows_triton(x[:2], weight, gain=gain, eps=EPS)
    assert torch.equal(few_rows_triton(x[1:2], weight, gain=gain, eps=EPS), pair[1:])


def test_nan_stays_in_its_row(place: Place) -> None:
    only_16_bits(place)
    x, weight = place.normal(3, 64), place.normal(16, 64)
    x[1] = float("nan")
    result = few_rows_triton(x, weight, residual=torch.zeros(3, 16).to(x))
    assert result[1].isnan().all()
    assert not result[[0, 2]].isnan().any()


def test_cpu_tensors_take_the_operations_one_by_one() -> None:
    x, gain, weight, residual = (
        torch.randn(*shape).bfloat16() for shape in ((2, 64), (64,), (32, 64), (2, 32))
    )
    normed = rms_norm_reference(x, gain, EPS)
    assert not fits(x)
    assert torch.equal(norm_linear(x, gain, EPS, weight), (weight @ normed.t()).t())
    assert torch.equal(norm_gated_linear(x, gain, EPS, weight), silu_mul_reference((weight @ normed.t()).t()))
    assert torch.equal(linear_add(x, weight, residual), residual + (weight @ x.t()).t())


def test_a_program_has_two_columns_at_least() -> None:
    assert [tile_columns(depth, gated=False) for depth in (512, 1024, 2048, 8192)] == [8, 4, 2, 2]
    assert [tile_columns(depth, gated=True) for depth in (512, 1024, 2048)] == [4, 2, 2]
