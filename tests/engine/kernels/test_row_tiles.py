"""Products of some tens of rows with what stands around them, against the operations one by one."""

import pytest
import torch

from engine.kernels.activation import silu_mul_reference
from engine.kernels.rms_norm import rms_norm_reference
from engine.kernels.row_tiles import RowTiles, row_tiles_product
from tests.engine.kernels.measured import Place, assert_as_exact

EPS = 1e-5
# Rows, depth, columns: full and ragged tiles of each.
SHAPES = [(17, 64, 48), (33, 80, 33), (64, 128, 16), (100, 96, 40)]
TILES = [RowTiles(16, 32, 1, 2, 4), RowTiles(32, 16, 2, 3, 4), RowTiles(16, 16, 3, 1, 4)]


def wide(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [tensor.double() for tensor in tensors]


def only_narrow(place: Place) -> None:
    if place.large and place.dtype in (torch.float32, torch.float64):
        pytest.skip("tiles are for 16-bit types on a GPU")


@pytest.mark.parametrize("tiles", TILES)
@pytest.mark.parametrize(("rows", "depth", "columns"), SHAPES)
def test_norm_and_product(place: Place, tiles: RowTiles, rows: int, depth: int, columns: int) -> None:
    only_narrow(place)
    x, gain, weight = place.normal(rows, depth, scale=3), place.normal(depth), place.normal(columns, depth)

    def plain(x: torch.Tensor, gain: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm_reference(x, gain, EPS) @ weight.t()

    result = row_tiles_product(x, weight, tiles, gain=gain, eps=EPS)
    assert_as_exact(result, plain(x, gain, weight), plain(*wide(x, gain, weight)))


@pytest.mark.parametrize("tiles", TILES)
@pytest.mark.parametrize(("rows", "depth", "columns"), SHAPES)
def test_norm_product_and_gate(place: Place, tiles: RowTiles, rows: int, depth: int, columns: int) -> None:
    only_narrow(place)
    x, gain = place.normal(rows, depth), place.normal(depth)
    weight = place.normal(2 * columns, depth, scale=depth**-0.5)

    def plain(x: torch.Tensor, gain: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return silu_mul_reference(rms_norm_reference(x, gain, EPS) @ weight.t())

    result = row_tiles_product(x, weight, tiles, gain=gain, eps=EPS, is_gated=True)
    assert result.shape == (rows, columns)
    assert_as_exact(result, plain(x, gain, weight), plain(*wide(x, gain, weight)))


@pytest.mark.parametrize("tiles", TILES)
@pytest.mark.parametrize(("rows", "depth", "columns"), SHAPES)
def test_product_and_residual_sum(place: Place, tiles: RowTiles, rows: int, depth: int, columns: int) -> None:
    only_narrow(place)
    x, weight, residual = place.normal(rows, depth), place.normal(columns, depth), place.normal(rows, columns)
    exact = residual.double() + x.double() @ weight.double().t()
    assert_as_exact(row_tiles_product(x, weight, tiles, residual=residual), residual + x @ weight.t(), exact)


@pytest.mark.parametrize("tiles", TILES)
def test_a_row_is_the_same_bits_again_and_in_other_company(place: Place, tiles: RowTiles) -> None:
    only_narrow(place)
    x, gain, weight = place.normal(64, 96), place.normal(96), place.normal(48, 96)
    together = row_tiles_product(x, weight, tiles, gain=gain, eps=EPS)
    assert torch.equal(row_tiles_product(x, weight, tiles, gain=gain, eps=EPS), together)
    if place.large:  # the interpreter's products are numpy's, where a row's place counts
        others = torch.cat([x[32:], x[:32]])
        assert torch.equal(row_tiles_product(others, weight, tiles, gain=gain, eps=EPS)[32:], together[:32])


def test_nan_stays_in_its_row(place: Place) -> None:
    only_narrow(place)
    x, gain, weight = place.normal(20, 64), place.normal(64), place.normal(16, 64)
    x[1] = float("nan")
    result = row_tiles_product(x, weight, TILES[1], gain=gain, eps=EPS)
    assert result[1].isnan().all()
    assert not result[[0, *range(2, 20)]].isnan().any()


def test_shared_memory_counts_what_a_stage_holds() -> None:
    tiles = RowTiles(columns=32, depth=128, splits=1, stages=3, warps=4)
    assert tiles.shared_bytes(33, is_gated=False) == 3 * 128 * (64 + 32) * 2
    assert tiles.shared_bytes(16, is_gated=True) == 3 * 128 * (16 + 64) * 2
