"""A run of the stage: the floor, every block for which there is time, the floor again, then the folder."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from harness.attention.plan import AttentionPlan, AttentionStage, Block
from harness.attention.rows import OUT_OF_MEMORY, Measured, attention_rows
from harness.errors import BadInput
from harness.finish import manifest_of
from harness.gpu import describe, open_nvml, strangers_on
from harness.play import GpuAccess
from harness.progress import say
from harness.provenance import anonymous, box_name, read_environment, read_hardware, utc_now
from harness.rows import RunIdentity
from harness.schema import (
    AttentionRow,
    AttentionSampleRow,
    Environment,
    ModelInfo,
    Session,
    Started,
)
from harness.source import SourceState, read_source
from harness.store import RunWriter, check_name_is_free
from harness.systems.environment import PROJECT, Interpreter
from harness.tables import records_to_csv

STAGE = "attention"
NO_MODEL = ModelInfo(
    name="attention", weights="random", source="normally distributed tensors; no model is served", sha256={}
)


@dataclass(frozen=True)
class AttentionOptions:
    """What the user asked for. `run` and `box` None: made names. `budget_s` counts from the start."""

    stage: AttentionStage
    device: str
    project: Interpreter
    results: Path
    root: Path
    command: list[str]
    run: str | None = None
    box: str | None = None
    budget_s: float | None = None


@dataclass(frozen=True)
class AttentionOutcome:
    """A finished run."""

    path: Path
    rows: list[AttentionRow]

    @property
    def valid(self) -> bool:
        """Whether nothing failed but what needs more memory than there is."""
        return all(row.verdict == "VALID" or row.reasons == OUT_OF_MEMORY for row in self.rows)


@dataclass(frozen=True)
class _Survey:
    """What is known before the first measurement."""

    created_at: str
    who: RunIdentity
    source: SourceState
    environment: Environment
    gpu: GpuAccess


def run_attention(options: AttentionOptions) -> AttentionOutcome:
    """Measures and stores. Raises BadInput or StoreError when it cannot be done."""
    started = time.monotonic()
    plan = options.stage.on(options.device)
    if options.run is not None:
        check_name_is_free(options.results, options.run)
    found = _survey(options)
    writer = RunWriter(options.results, found.who.run)
    try:
        if writer.started is not None:
            raise BadInput(
                f"{writer.folder} was left by a run that was killed, and this stage does not go on with one: "
                "remove it, or choose another name with --run"
            )
        begun = _started(options, found)
        writer.note(begun)
        measured, samples, planned = _measure(options, plan, found, started)
        rows = attention_rows(found.who, measured, samples)
        if found.source.diff is not None:
            writer.write("dirty.diff.gz", found.source.diff.encode())
        writer.write("attention.csv", records_to_csv(AttentionRow, rows))
        writer.write("attention_samples.csv.gz", records_to_csv(AttentionSampleRow, samples))
        noted = begun.model_copy(update={"planned_cells": planned})
        path = writer.finish(manifest_of(noted, [], [], utc_now()), [])
        return AttentionOutcome(path, rows)
    finally:
        writer.close()


def _survey(options: AttentionOptions) -> _Survey:
    nvml = open_nvml() if options.device == "cuda" else None
    gpus = describe(nvml)[:1] if nvml is not None else []
    if options.device == "cuda" and not gpus:
        raise BadInput("device cuda: no NVIDIA GPU is visible here")
    created_at, hardware = utc_now(), read_hardware(gpus)
    source, box = read_source(options.root), options.box or box_name(hardware)
    run = options.run or f"{STAGE}-{box}-{created_at.replace('-', '').replace(':', '')}"
    return _Survey(
        created_at,
        RunIdentity(run=run, box=box, hardware=hardware, source=source.source, model=NO_MODEL),
        source,
        read_environment(options.project, options.root),
        GpuAccess(nvml, gpus),
    )


def _measure(
    options: AttentionOptions, plan: AttentionPlan, found: _Survey, started: float
) -> tuple[list[Measured], list[AttentionSampleRow], int]:
    """What was measured, its samples, and the repetitions of the whole plan."""
    strangers = strangers_on(found.gpu.nvml, found.gpu.gpus)  # before this process is one of them
    for process in strangers:
        say(f"{process} is not part of this run: every row will be INVALID")
    # Imported here, for torch takes seconds and most commands of the harness do without.
    from harness.attention.measure import Bench, measure_block, measure_floor
    from harness.attention.timing import clock_of

    bench = Bench(
        clock=clock_of(options.device),
        timing=plan.timing,
        dtype=plan.dtype,
        device=options.device,
        gpu=found.gpu,
        seed=options.stage.declared.seed,
        versions=(version("torch"), version("triton")),
        undeclared_gpu_processes="; ".join(strangers),
    )
    blocks = plan.blocks()
    measured: list[Measured] = []
    samples = measure_floor(bench, plan.floor, 0)
    longest_s = 0.0
    for number, block in enumerate(blocks):
        begun = time.monotonic()
        if options.budget_s is not None and begun - started + longest_s > options.budget_s:
            say(f"time is over: {len(blocks) - number} of {len(blocks)} blocks are not measured")
            break
        rows, times = measure_block(bench, block, len(measured))
        measured += rows
        samples += times
        block_s = time.monotonic() - begun
        longest_s = max(longest_s, block_s)
        say(f"block {number + 1} of {len(blocks)}: {_said(block, rows)}, {block_s:.1f} s")
    samples += measure_floor(bench, plan.floor, 1)
    return measured, samples, 2 * sum(len(block.cells) for block in blocks)


def _said(block: Block, rows: Sequence[Measured]) -> str:
    failed = dict.fromkeys(f"{row.impl} {row.direction}: {row.failure}" for row in rows if row.failure)
    return "; ".join([f"{block.cells[0].case}, {len(block.cells)} cells", *failed])


def _started(options: AttentionOptions, found: _Survey) -> Started:
    return Started(
        run=found.who.run,
        stage=STAGE,
        stage_sha256=options.stage.sha256,
        device=options.device,
        model=NO_MODEL,
        sessions=[
            Session(
                created_at=found.created_at,
                command=[anonymous(argument, options.root) for argument in options.command],
                source=found.who.source,
                box=found.who.box,
                hardware=found.who.hardware,
                environments={PROJECT: found.environment},
                client_ceiling=None,
            )
        ],
        servers=[],
        correctness=[],
        systems=[],
        agrees={},
    )
