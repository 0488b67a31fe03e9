"""The command that times the products of a decode step."""

import csv
from pathlib import Path

import pytest

from engine.kernels.row_tiles import RowTiles
from harness.micro.row_products import COLUMNS, MODELS, Product, candidates, main, products, row, summary

PRODUCT = Product("down", rows=64, depth=2048, columns=768)
TILES = RowTiles(columns=32, depth=128, splits=4, stages=3, warps=4)


def test_the_products_of_a_layer_read_its_weights_once() -> None:
    widths = MODELS["llama-3.2-1b"]
    of_a_layer = 2048 * (2048 + 2 * 512) + 2048 * 2048 + 3 * 2048 * 8192
    assert sum(product.weight_bytes for product in products(widths, rows=8)) == 2 * of_a_layer


@pytest.mark.parametrize("rows", [4, 64, 128])
@pytest.mark.parametrize("model", MODELS)
def test_every_product_has_candidates_that_can_run(model: str, rows: int) -> None:
    for product in products(MODELS[model], rows):
        found = [candidate.tiles for candidate in candidates(product)]
        assert len(found) == len(set(found)) >= 4
        for tiles in found:
            assert tiles.shared_bytes(rows, product.gated) <= 232_448
            steps = -(-product.depth // (tiles.depth * tiles.splits))
            assert (tiles.splits - 1) * steps * tiles.depth < product.depth, "a part without depth"


def test_a_row_says_which_way_it_is_of() -> None:
    assert row("llama-190m", PRODUCT, "separate", 4.56789) == {
        "model": "llama-190m", "product": "down", "rows": 64, "depth": 2048, "columns": 768,
        "way": "separate", "us": 4.568,
    }  # fmt: skip
    tiled = row("llama-190m", PRODUCT, TILES, 3.0)
    of_tiles = {"way": "tiles", "tile_columns": 32, "tile_depth": 128, "splits": 4, "stages": 3, "warps": 4}
    assert of_tiles.items() <= tiled.items()
    assert set(tiled) <= set(COLUMNS)


def test_the_summary_shows_the_three_fastest_tiles() -> None:
    times = {RowTiles(16, 64, splits, 3, 4): 9.0 - splits for splits in (1, 2, 3, 4)}
    said = summary("m", PRODUCT, {"separate": 4.5, **times})
    assert (
        said
        == "m down 64 rows: separate 4.50, 16x64/4s3 5.00, 16x64/3s3 6.00, 16x64/2s3 7.00 us (weight 0.75)"
    )


@pytest.mark.gpu
def test_the_command_times_every_way(tmp_path: Path) -> None:
    main([str(tmp_path / "out.csv"), "--models", "smollm2-135m", "--rows", "16"])
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {(row["product"], row["way"]) for row in rows} == {
        (product, way)
        for product in ("qkv", "output", "gate_up", "down")
        for way in ("separate", "few_rows", "tiles")
    }
    assert all(float(row["us"]) > 0 for row in rows)
