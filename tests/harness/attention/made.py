"""A complete run of the stage `attention` made by hand: every block of the cuda part, with invented times."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from harness.attention.formulas import flops
from harness.attention.plan import Block, Cell, interleaved, load_attention_stage
from harness.attention.rows import FLOOR, OUT_OF_MEMORY, Measured, attention_rows
from harness.attention.run import NO_MODEL
from harness.rows import RunIdentity
from harness.schema import (
    SCHEMA_VERSION,
    AttentionRow,
    AttentionSampleRow,
    GpuInfo,
    Hardware,
    Manifest,
)
from harness.store import Run, RunWriter, load_run
from harness.tables import records_to_csv
from tests.harness.made import identity, started

H200 = GpuInfo(
    index=0, name="NVIDIA H200", uuid="GPU-1", driver="580.159.04", memory_bytes=150_754_820_096,
    max_sm_clock_mhz=1980, max_memory_clock_mhz=3201, power_limit_mw=700_000, ecc=True,
)  # fmt: skip
PEAK_TFLOPS = {
    "triton": 500, "triton_fused": 520, "triton_invariant": 480, "sdpa_flash": 310, "sdpa_cudnn": 580,
    "flex": 360, "varlen": 305, "compiled_naive": 60, "naive": 25, "reference": 12,
}  # fmt: skip
LONGEST_NAIVE = 32_768


def floor_samples() -> list[AttentionSampleRow]:
    """769 TFLOP/s and 4,190 GB/s."""
    return [
        AttentionSampleRow(
            case=FLOOR, impl=impl, direction=FLOOR, repetition=repetition, sample=0, work=work, elapsed_ns=ns
        )
        for repetition in (0, 1)
        for impl, work, ns in (("matmul", 769_000_000_000, 1_000_000), ("copy", 4_190_000_000, 1_000_000))
    ]  # fmt: skip


def measured(cell: Cell, sweep: str, repetition: int = 0, **changes: object) -> Measured:
    """A repetition that went well."""
    values = dict(
        impl=cell.impl, direction=cell.direction, shape=cell.shape, dtype="bfloat16", sweep=sweep,
        case=cell.case, repetition=repetition, position=0, started_at="2026-01-01T00:00:00Z", peak_mib=64.0,
        error=0.01, reference_error=0.012, checked_rows=cell.shape.seq, failure="", sm_clock_mhz=1900,
        throttle_reasons=0, undeclared_gpu_processes="", device="cuda", torch_version="2.11.0",
        triton_version="3.6.0",
    )  # fmt: skip
    return Measured(**(values | changes))


def samples(of: Measured, times_ns: Iterable[int]) -> list[AttentionSampleRow]:
    return [
        AttentionSampleRow(
            case=of.case, impl=of.impl, direction=of.direction, repetition=of.repetition, sample=number,
            work=0, elapsed_ns=ns,
        )
        for number, ns in enumerate(times_ns)
    ]  # fmt: skip


def invented(blocks: Iterable[Block]) -> tuple[list[Measured], list[AttentionSampleRow]]:
    """Times that approach PEAK_TFLOPS with longer sequences; naive attention runs out of memory."""
    found, times = [], floor_samples()
    for block in blocks:
        for repetition, cell in interleaved(block.cells):
            fails = cell.impl == "naive" and cell.shape.seq > LONGEST_NAIVE
            matrix = cell.shape.pairs * cell.shape.heads * 6 / 2**20 if "naive" in cell.impl else 0
            made = measured(
                cell, block.sweep, repetition, position=len(found), failure=OUT_OF_MEMORY if fails else "",
                peak_mib=None if fails else 64.0 + matrix, error=None if fails else 0.01,
                reference_error=None if fails else 0.012,
            )  # fmt: skip
            found.append(made)
            if not fails:
                share = 1 / (1 + 900 / cell.shape.seq) * (0.9 if cell.direction == "backward" else 1)
                if cell.direction == "decode":
                    share *= 0.02
                ns = flops(cell.direction, cell.shape) / PEAK_TFLOPS[cell.impl] / share / 1e3
                times += samples(made, [int(ns * (1 + 0.01 * (number + repetition))) for number in range(9)])
    return found, times


def make_attention_run(results: Path, name: str = "att", blocks: list[Block] | None = None) -> Run:
    """Stores it under `results` and loads it."""
    hardware = Hardware(cpu_model="a cpu", cpu_cores=16, memory_bytes=2**37, kernel="6.1", gpus=[H200])
    base = identity()
    who = RunIdentity(run=name, box="h200", hardware=hardware, source=base.source, model=NO_MODEL)
    stage = load_attention_stage()
    found, times = invented(stage.on("cuda").blocks() if blocks is None else blocks)
    writer = RunWriter(results, name)
    writer.note(started())
    writer.write("attention.csv", records_to_csv(AttentionRow, attention_rows(who, found, times)))
    writer.write("attention_samples.csv.gz", records_to_csv(AttentionSampleRow, times))
    manifest = Manifest(
        schema_version=SCHEMA_VERSION, run=name, stage="attention", stage_sha256=stage.sha256,
        created_at="2026-01-01T00:00:00Z", finished_at="2026-01-01T00:05:00Z", command=["run", "attention"],
        source=who.source, box=who.box, hardware=hardware, environments={}, servers=[], model=NO_MODEL,
        schedules=[], client_ceiling=None, reference_check=None, cells=[], files=[], logs=[], complete=False,
    )  # fmt: skip
    path = writer.finish(manifest, [])
    writer.close()
    return load_run(path)
