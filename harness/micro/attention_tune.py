"""Measure tiles for the attention kernels on this GPU: `python -m harness.micro.attention_tune OUT.csv`.

Each candidate of each kernel is compiled ahead in a pool of processes, checked against the eager reference,
and timed at several lengths (causal, bf16, hidden width 2,048, 16k tokens). All rows go to OUT.csv; the
fastest of each kernel and head dimension, by the geometric mean over lengths and at each length, are printed.

Each kernel is credited with the matrix products that it executes itself: two the forward, four the one of dK
and dV, three the one of dQ, halves of them as the mask is causal. Of a whole backward five products are
usually credited, which gives 5 / 7 of what these two kernels reach together.
"""

import argparse
import csv
import math
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from engine.kernels.attention_backward import (
    key_gradients,
    output_products,
    query_gradient,
)
from engine.kernels.attention_forward import forward_triton
from engine.kernels.attention_reference import attention_reference
from engine.kernels.attention_tiles import Tiles
from engine.kernels.attention_work import Work
from harness.attention.timing import CudaClock, Operation
from harness.micro.compile_ahead import accepted, compile_ahead
from harness.micro.stamp import commit

_HIDDEN = 2048
_TOKENS = 16_384
_LENGTHS = (512, 1024, 2048, 4096, 8192, 16_384)
_QUICK_LENGTHS = (512, 1024, 8192)
_ROUNDS = 7
_QUICK_ROUNDS = 5
_CHECKED_LENGTH = 333  # whole, diagonal and cut tiles of every candidate
_PASSED_ERROR = 2.0  # times the error of eager code in bf16; a wrong tile is off by orders of magnitude

# (block_m, block_n, num_warps, num_stages), all with descriptors, which won for every kernel the first time.
# Around the winners of then, and what ptxas finds registers for (at most 250 without spills in the loop).
# Not among them: 32 keys of dK and dV, which are the rows of a product whose tensor-core instruction takes
# no fewer than 64, and what leaves a processor to one program of 4 warps.
_CANDIDATES: dict[tuple[str, int], tuple[tuple[int, int, int, int], ...]] = {
    ("forward", 64): (
        (64, 64, 4, 2), (64, 64, 4, 3), (64, 64, 4, 4), (64, 128, 4, 2), (64, 128, 4, 3), (128, 64, 4, 2),
        (128, 64, 4, 3), (128, 128, 8, 2),
    ),
    ("forward", 128): (
        (64, 32, 4, 3), (64, 32, 4, 4), (64, 64, 4, 2), (64, 64, 4, 3), (128, 64, 8, 2), (128, 64, 8, 3),
        (128, 64, 4, 3), (128, 128, 8, 3),
    ),
    ("key_gradient", 64): (
        (32, 64, 4, 3), (32, 64, 4, 4), (64, 64, 4, 2), (64, 64, 4, 3), (64, 64, 4, 4), (128, 64, 4, 2),
    ),
    ("key_gradient", 128): (
        (32, 64, 4, 2), (32, 64, 4, 3), (64, 64, 4, 1), (64, 64, 4, 2), (64, 128, 8, 2), (32, 128, 8, 3),
    ),
    ("query_gradient", 64): (
        (64, 32, 4, 4), (64, 64, 4, 2), (64, 64, 4, 3), (64, 64, 4, 4), (64, 128, 4, 2), (128, 64, 4, 2),
        (128, 64, 4, 3),
    ),
    ("query_gradient", 128): (
        (64, 32, 4, 3), (64, 64, 4, 2), (128, 32, 8, 3), (128, 64, 8, 2), (128, 64, 8, 3),
    ),
}  # fmt: skip
# Matrix products of a kernel, in units of the forward's two.
_PRODUCTS = {"forward": 1.0, "key_gradient": 2.0, "query_gradient": 1.5}


@dataclass(frozen=True)
class Candidate:
    """One kernel of one head dimension with these tiles."""

    kernel: str
    dim: int
    tiles: Tiles


@dataclass(frozen=True)
class Origin:
    """Which code was measured, and when."""

    commit: str
    started_at: str


@dataclass(frozen=True)
class Row:
    """One measured candidate at one length.

    tflops: of the matrix products that the kernel itself executes, half of them for causal attention. commit:
    of the code that ran; started_at: of the whole command, UTC.
    """

    kernel: str
    dim: int
    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    descriptors: bool
    length: int
    ms: float
    tflops: float
    gpu: str
    commit: str
    started_at: str


@dataclass(frozen=True)
class Inputs:
    """What the kernels read at one shape: all but the candidate's own result."""

    work: Work
    grad_out: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor
    delta: torch.Tensor

    def launch(self, candidate: Candidate) -> tuple[torch.Tensor, ...]:
        """Run the candidate's kernel; its gradients, or the result of the forward kernel."""
        backward = (self.work, self.lse, self.delta, self.grad_out, candidate.tiles)
        match candidate.kernel:
            case "forward":
                return forward_triton(self.work, candidate.tiles)[:1]
            case "key_gradient":
                return key_gradients(*backward)
            case _:
                return (query_gradient(*backward),)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m harness.micro.attention_tune", description=__doc__)
    parser.add_argument("out", type=Path, help="CSV file to write")
    parser.add_argument("--quick", action="store_true", help=f"only the lengths {_QUICK_LENGTHS}")
    options = parser.parse_args(arguments)
    origin = Origin(commit(), datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    rows: list[Row] = []
    compiled = compile_ahead(launch_small, list(candidates()))
    for dim in (64, 128):
        passed = [c for c in compiled if c.dim == dim]
        checked = inputs(dim, _CHECKED_LENGTH, batch=2)
        passed = [c for c in passed if accepted(c, failed_check(c, checked))]
        for length in _QUICK_LENGTHS if options.quick else _LENGTHS:
            rows += measure(passed, length, _QUICK_ROUNDS if options.quick else _ROUNDS, origin)
    write(options.out, rows)
    for line in summary(rows):
        print(line)


def candidates() -> Iterator[Candidate]:
    for (kernel, dim), shapes in _CANDIDATES.items():
        for shape in shapes:
            yield Candidate(kernel, dim, Tiles(*shape, descriptors=True))


def launch_small(candidate: Candidate) -> None:
    """Launch once on a small input."""
    inputs(candidate.dim, _CHECKED_LENGTH, batch=1).launch(candidate)


def failed_check(candidate: Candidate, checked: Inputs) -> str:
    """What is wrong with the candidate's results, or nothing."""
    work = checked.work
    expected = expected_results(work, checked.grad_out)
    eager = eager_results(work, checked.grad_out)
    names = {"forward": (0,), "query_gradient": (1,), "key_gradient": (2, 3)}
    for mine, index in zip(checked.launch(candidate), names[candidate.kernel], strict=True):
        error = float((mine.double() - expected[index]).abs().max())
        allowed = _PASSED_ERROR * float((eager[index].double() - expected[index]).abs().max())
        if not error <= allowed:
            return f"tensor {index} is off by {error:.2e}, eager code allows {allowed:.2e}"
    return ""


def expected_results(work: Work, grad_out: torch.Tensor) -> tuple[torch.Tensor, ...]:
    wide = Work(work.query.double(), work.key.double(), work.value.double(), None, work.causal, work.scale)
    return eager_results(wide, grad_out.double())


def eager_results(work: Work, grad_out: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """out, dQ, dK and dV of plain PyTorch."""
    leaves = [x.detach().requires_grad_() for x in (work.query, work.key, work.value)]
    out = attention_reference(*leaves, causal=work.causal, scale=work.scale)
    return out.detach(), *torch.autograd.grad(out, leaves, grad_out)


def inputs(dim: int, length: int, batch: int) -> Inputs:
    torch.manual_seed(0)
    heads = _HIDDEN // dim
    query, key, value, grad_out = (
        torch.randn(batch, length, heads, dim, device="cuda", dtype=torch.bfloat16) for _ in range(4)
    )
    work = Work(query, key, value, None, causal=True, scale=1 / math.sqrt(dim))
    out, lse = forward_triton(work)
    return Inputs(work, grad_out, out, lse, output_products(work, out, grad_out))


def measure(passed: list[Candidate], length: int, rounds: int, origin: Origin) -> Iterator[Row]:
    """Medians of `rounds` times, one of each candidate in turn, L2 filled with something else before each."""
    if not passed:
        return
    dim, batch = passed[0].dim, _TOKENS // length
    shape = inputs(dim, length, batch)
    clock = CudaClock()
    times: dict[Candidate, list[float]] = {candidate: [] for candidate in passed}
    for turn in range(rounds + 1):
        for candidate in passed:
            elapsed = clock.sample_ns(Operation(lambda _, candidate=candidate: shape.launch(candidate)))
            if turn:  # the first warms up
                times[candidate].append(elapsed / 1e6)
    forward_flop = 4 * batch * length * length * _HIDDEN / 2
    for candidate, samples in times.items():
        ms = statistics.median(samples)
        tflops = _PRODUCTS[candidate.kernel] * forward_flop / ms / 1e9
        yield Row(
            candidate.kernel, dim, **asdict(candidate.tiles), length=length, ms=ms, tflops=tflops,
            gpu=torch.cuda.get_device_name(), **asdict(origin),
        )  # fmt: skip


def summary(rows: list[Row]) -> Iterator[str]:
    """The three fastest of each kernel and head dimension over all lengths, and the fastest at each."""
    for kernel, dim in _CANDIDATES:
        by_tiles: dict[Tiles, list[Row]] = {}
        for row in rows:
            if (row.kernel, row.dim) == (kernel, dim):
                tiles = Tiles(row.block_m, row.block_n, row.num_warps, row.num_stages, row.descriptors)
                by_tiles.setdefault(tiles, []).append(row)
        ranked = sorted(by_tiles.items(), key=lambda item: statistics.geometric_mean(r.ms for r in item[1]))
        for tiles, measured in ranked[:3]:
            speeds = ", ".join(f"{row.length}: {row.tflops:.0f}" for row in measured)
            yield f"{kernel} D{dim} {tiles}: TFLOP/s {speeds}"
        for rows_of_length in zip(*by_tiles.values(), strict=True):
            best = min(rows_of_length, key=lambda row: row.ms)
            shape = (best.block_m, best.block_n, best.num_warps, best.num_stages)
            yield f"    {best.length}: {shape} {best.tflops:.0f}"


def write(path: Path, rows: list[Row]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, Row.__dataclass_fields__)
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


if __name__ == "__main__":
    main(sys.argv[1:])
