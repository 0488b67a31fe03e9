"""What the products of a decode step of some tens of rows take on this GPU, and which tiles suit them best.

    python -m harness.micro.row_products OUT.csv [--models llama-190m …] [--rows 16 32 64 128]

The four products of a layer, each with what stands around it: qkv behind a norm, output with the residual
sum, gate_up behind a norm and with the gate, down with the residual sum. Each is timed as in a step: a CUDA
graph of as many of them as it takes to read 128 MiB of different weights, so that none lies in the
second-level cache, one behind the other, launched early where a kernel can be. A value is the time of a
replay divided by their number, the median of nine; all ways take turns in every round.

Ways: `separate`, library products with the kernels of norm and gate beside them; `few_rows`, the kernels of
engine.kernels.few_rows, up to 16 rows; `tiles`, engine.kernels.row_tiles with each candidate. A candidate
whose error is over 1.5 times that of separate operations is left out by name.
"""

import argparse
import csv
import itertools
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

from engine.kernels import few_rows
from engine.kernels.activation import silu_mul
from engine.kernels.rms_norm import add_rms_norm
from engine.kernels.row_tiles import RowTiles, row_tiles_product
from harness.micro.compile_ahead import accepted, compile_ahead
from harness.micro.stamp import commit

EPS = 1e-5
_READ_BYTES = 128 << 20  # more than twice the 50 MB of an H200's second-level cache
_SHARED_BYTES = 227 << 10
_PASSED_ERROR = 1.5
_ROUNDS = 9


@dataclass(frozen=True)
class Widths:
    """Of a model's layer: hidden state, q, k and v together, q alone, and the MLP's inner width."""

    hidden: int
    qkv: int
    heads: int
    inner: int


MODELS = {
    "smollm2-135m": Widths(576, 960, 576, 1536),
    "llama-190m": Widths(768, 2304, 768, 2048),
    "llama-3.2-1b": Widths(2048, 3072, 2048, 8192),
    "llama-3.1-8b": Widths(4096, 6144, 4096, 14336),
}


@dataclass(frozen=True)
class Product:
    """x: (rows, depth) times weight: (columns, depth), two of them where `gated`; `normed` before it, else a
    residual sum behind it."""

    name: str
    rows: int
    depth: int
    columns: int
    normed: bool = False
    gated: bool = False

    @property
    def weight_bytes(self) -> int:
        return 2 * self.depth * self.columns * (2 if self.gated else 1)


def products(widths: Widths, rows: int) -> list[Product]:
    return [
        Product("qkv", rows, widths.hidden, widths.qkv, normed=True),
        Product("output", rows, widths.heads, widths.hidden),
        Product("gate_up", rows, widths.hidden, widths.inner, normed=True, gated=True),
        Product("down", rows, widths.inner, widths.hidden),
    ]


@dataclass(frozen=True)
class Candidate:
    """Tiles for a product."""

    product: Product
    tiles: RowTiles


def candidates(product: Product) -> Iterator[Candidate]:
    """Tiles whose programs fill at least a quarter of the GPU, at most eight times, and that leave no part of
    the depth empty."""
    for columns, depth, splits, stages in itertools.product((16, 32, 64), (64, 128), (1, 2, 4), (3, 5)):
        tiles = RowTiles(columns, depth, splits, stages, warps=4)
        programs = -(-product.columns // columns) * splits
        steps = -(-product.depth // (depth * splits))
        fits = tiles.shared_bytes(product.rows, product.gated) <= _SHARED_BYTES
        all_used = (splits - 1) * steps * depth < product.depth
        if 32 <= programs <= 8 * 132 and steps >= 2 and (stages == 3 or steps > 3) and fits and all_used:
            yield Candidate(product, tiles)


class Inputs:
    """Rows, gain and residual of a product, and as many weights as are not in the cache all at once."""

    def __init__(self, product: Product, weights: int) -> None:
        generator = torch.Generator("cuda").manual_seed(0)
        normal = partial(torch.randn, generator=generator, device="cuda", dtype=torch.float32)
        width = product.columns * (2 if product.gated else 1)
        self.product = product
        self.x = normal(product.rows, product.depth).bfloat16()
        self.gain = normal(product.depth).bfloat16() if product.normed else None
        self.residual = None if product.normed else normal(product.rows, product.columns).bfloat16()
        self.weights = [
            (normal(width, product.depth) * product.depth**-0.5).bfloat16() for _ in range(weights)
        ]

    @staticmethod
    def cold(product: Product) -> "Inputs":
        return Inputs(product, max(4, -(-_READ_BYTES // product.weight_bytes)))

    def separate(self, weight: torch.Tensor) -> torch.Tensor:
        """As Llama's path for many rows has it: a residual sum and the norm behind it are one kernel, whose
        time counts to the product before it."""
        y = F.linear(self.x, weight)
        if self.product.gated:
            return silu_mul(y)
        if self.residual is None:
            return y
        return add_rms_norm(self.residual, y, self.residual[0], EPS)[0]

    def few_rows(self, weight: torch.Tensor) -> torch.Tensor:
        if self.product.gated:
            return few_rows.norm_gated_linear(self.x, self.gain, EPS, weight)
        if self.residual is None:
            return few_rows.norm_linear(self.x, self.gain, EPS, weight)
        return few_rows.linear_add(self.x, weight, self.residual)

    def tiled(self, tiles: RowTiles, weight: torch.Tensor) -> torch.Tensor:
        return row_tiles_product(
            self.x, weight, tiles, self.gain, EPS, self.residual, is_gated=self.product.gated
        )

    def plain(self, dtype: torch.dtype) -> torch.Tensor:
        """The whole of it, one operation after the other, in dtype."""
        x, weight = self.x.to(dtype), self.weights[0].to(dtype)
        if self.gain is not None:
            x = F.rms_norm(x, x.shape[1:], self.gain.to(dtype), EPS)
        y = x @ weight.t()
        if self.product.gated:
            gate, up = y.chunk(2, dim=1)
            return F.silu(gate) * up
        return y if self.residual is None else y + self.residual.to(dtype)


def launch_once(candidate: Candidate) -> None:
    inputs = Inputs(candidate.product, 1)
    inputs.tiled(candidate.tiles, inputs.weights[0])


def failed_check(candidate: Candidate) -> str:
    """What is wrong with a candidate's result, or nothing."""
    inputs = Inputs(candidate.product, 1)
    exact = inputs.plain(torch.float64)
    allowed = _PASSED_ERROR * float((inputs.plain(torch.bfloat16).double() - exact).abs().max())
    error = float((inputs.tiled(candidate.tiles, inputs.weights[0]).double() - exact).abs().max())
    return "" if error <= allowed else f"off by {error:.2e}, separate operations allow {allowed:.2e}"


def captured(
    run: Callable[[torch.Tensor], torch.Tensor], weights: list[torch.Tensor]
) -> torch.cuda.CUDAGraph:
    """One graph that runs it with each weight."""
    run(weights[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for weight in weights:
            run(weight)
    return graph


def replay_us(graph: torch.cuda.CUDAGraph) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return 1000 * begin.elapsed_time(end)


def measure(product: Product, tiles: list[RowTiles]) -> dict[str | RowTiles, float]:
    """Microseconds of one product by way, tiles standing for themselves."""
    inputs = Inputs.cold(product)
    runs: dict[str | RowTiles, Callable[[torch.Tensor], torch.Tensor]] = {"separate": inputs.separate}
    if product.rows <= few_rows.MOST_ROWS:
        runs["few_rows"] = inputs.few_rows
    runs |= {tile: partial(inputs.tiled, tile) for tile in tiles}
    with torch.inference_mode():
        graphs = {way: captured(run, inputs.weights) for way, run in runs.items()}
    times: dict[str | RowTiles, list[float]] = {way: [] for way in graphs}
    for turn in range(_ROUNDS + 1):
        for way, graph in graphs.items():
            elapsed = replay_us(graph) / len(inputs.weights)
            if turn:  # the first warms up
                times[way].append(elapsed)
    return {way: statistics.median(samples) for way, samples in times.items()}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m harness.micro.row_products", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("out", type=Path, help="CSV file to write")
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=tuple(MODELS))
    parser.add_argument("--rows", nargs="+", type=int, default=(4, 16, 32, 64, 128))
    options = parser.parse_args(arguments)
    stamp = {
        "gpu": torch.cuda.get_device_name(),
        "commit": commit(),
        "started_at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": "python -m harness.micro.row_products " + " ".join(arguments or sys.argv[1:]),
    }
    wanted = [
        (model, product)
        for model in options.models
        for rows in options.rows
        for product in products(MODELS[model], rows)
    ]
    found = [candidate for _, product in wanted for candidate in candidates(product)]
    compiled = compile_ahead(launch_once, found)
    passed = [candidate for candidate in compiled if accepted(candidate, failed_check(candidate))]
    with options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for model, product in wanted:
            measured = measure(product, [c.tiles for c in passed if c.product == product])
            writer.writerows(row(model, product, way, us) | stamp for way, us in measured.items())
            file.flush()
            print(summary(model, product, measured), flush=True)


COLUMNS = (
    "model", "product", "rows", "depth", "columns", "way", "tile_columns", "tile_depth", "splits", "stages",
    "warps", "us", "gpu", "commit", "started_at", "command",
)  # fmt: skip


def row(model: str, product: Product, way: str | RowTiles, us: float) -> dict[str, object]:
    shape = {
        "model": model,
        "product": product.name,
        "rows": product.rows,
        "depth": product.depth,
        "columns": product.columns,
    }
    if isinstance(way, str):
        return shape | {"way": way, "us": round(us, 3)}
    tiles = asdict(way)
    named = {"tile_columns": tiles.pop("columns"), "tile_depth": tiles.pop("depth")} | tiles
    return shape | {"way": "tiles"} | named | {"us": round(us, 3)}


def summary(model: str, product: Product, measured: dict[str | RowTiles, float]) -> str:
    """Every way's time, of tiles the three fastest, and the time of reading the weight at 4.2 TB/s."""
    ways = sorted((us, str(way)) for way, us in measured.items() if isinstance(way, str))
    best = sorted((us, _short(way)) for way, us in measured.items() if isinstance(way, RowTiles))[:3]
    shown = ", ".join(f"{name} {us:.2f}" for us, name in ways + best)
    return (
        f"{model} {product.name} {product.rows} rows: {shown} us (weight {product.weight_bytes / 4.2e6:.2f})"
    )


def _short(tiles: RowTiles) -> str:
    return f"{tiles.columns}x{tiles.depth}/{tiles.splits}s{tiles.stages}"


if __name__ == "__main__":
    main()
