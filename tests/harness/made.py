"""Raw rows and declarations made by hand, with known truth."""

from __future__ import annotations

from array import array
from typing import Any

import pandas as pd

from harness.client.received import Received, Tally
from harness.client.record import RequestRecord
from harness.metrics import CellMetrics, Slo, Window, cell_metrics
from harness.rows import CellTables, RunIdentity, raw_frames
from harness.schema import RECEIVED_BIN_MS, CellRecord, Hardware, ModelInfo, Session, Source, Started

MS = 1_000_000
S = 1_000_000_000


def record(
    index: int, intended_ns: int, chunks: list[tuple[int, int]], *, lag_ns: int = 0, **changes: Any
) -> RequestRecord:
    """A successful request with (receipt in ns, tokens) chunks; `changes` overwrite fields."""
    tokens = sum(count for _, count in chunks)
    fields: dict[str, Any] = dict(
        index=index,
        worker=0,
        max_tokens=tokens,
        intended_ns=intended_ns,
        sent_ns=intended_ns + lag_ns,
        first_ns=chunks[0][0] if chunks else None,
        last_ns=chunks[-1][0] if chunks else None,
        done_ns=(chunks[-1][0] if chunks else intended_ns) + MS,
        status="ok",
        error="",
        http_status=200,
        connection_reused=index > 0,
        prompt_tokens=10,
        output_tokens=tokens,
        cached_tokens=0,
        first_event_tokens=chunks[0][1] if chunks else None,
        finish_reason="length",
        output_sha256="0" * 16,
        output_text=None,
        output_ids=None,
        token_count_method="continuous_usage" if chunks else None,
        events=len(chunks),
        empty_events=1,
        bytes_after_done=0,
        chunk_ns=array("q", [at for at, _ in chunks]),
        chunk_tokens=array("i", [count for _, count in chunks]),
    )
    return RequestRecord(**(fields | changes))


def steady(
    count: int, *, every_ns: int = 100 * MS, ttft_ns: int = 20 * MS, tpot_ns: int = 10 * MS, tokens: int = 5
):
    """`count` equal requests at a constant rate: TTFT 20 ms, TPOT 10 ms, 5 tokens unless said otherwise."""
    return [
        record(i, i * every_ns, [(i * every_ns + ttft_ns + k * tpot_ns, 1) for k in range(tokens)])
        for i in range(count)
    ]


def received(records: list[RequestRecord]) -> Received:
    """What arrived in all of them."""
    tally = Tally(RECEIVED_BIN_MS)
    for each in records:
        tally.add(each.chunk_ns, each.chunk_tokens)
    return tally.received()


def tables(records: list[RequestRecord], cell: str = "c0") -> CellTables:
    """Every raw table."""
    return CellTables.of(raw_frames(cell, records, received(records)))


def frames(records: list[RequestRecord], cell: str = "c0") -> tuple[pd.DataFrame, pd.DataFrame]:
    """requests and events tables."""
    made = tables(records, cell)
    return made.requests, made.events


def measured(records: list[RequestRecord], window: Window, slo: Slo) -> CellMetrics:
    """The metrics of a cell that has these records."""
    made = tables(records)
    return cell_metrics(made.requests, made.events, made.received, window, slo)


def cell_record(**changes: Any) -> CellRecord:
    fields: dict[str, Any] = dict(
        cell="c0",
        name="open",
        system="engine",
        system_version="1",
        config="default",
        prefix_cache="on",
        dtype="float32",
        device="cpu",
        num_gpus=0,
        workload="english",
        load="poisson",
        concurrency=None,
        rate_rps=10.0,
        schedule_sha256="a" * 64,
        schedule_exhausted=False,
        failure=None,
        repetition=0,
        position=0,
        started_at="2026-01-01T00:00:00Z",
        startup_s=1.5,
        window_start_ns=2 * S,
        window_end_ns=12 * S,
        slo_ttft_ms=500.0,
        slo_tpot_ms=50.0,
        ceiling_events_per_s=10_000.0,
        correctness_identical=True,
        undeclared_gpu_processes=[],
        limits={"lag_p99_ms": 10.0},
    )
    return CellRecord(**(fields | changes))


def started() -> Started:
    """What a run in progress has noted."""
    known = identity()
    session = Session(
        created_at="2026-01-01T00:00:00Z",
        command=["run", "smoke"],
        source=known.source,
        box=known.box,
        hardware=known.hardware,
        environments={},
        client_ceiling=None,
    )
    return Started(
        run="r1",
        stage="smoke",
        stage_sha256="b" * 64,
        device="cpu",
        model=known.model,
        sessions=[session],
        servers=[],
        correctness=[],
        systems=["engine"],
        agrees={},
    )


def identity() -> RunIdentity:
    return RunIdentity(
        run="r1",
        box="cpu-2c",
        hardware=Hardware(cpu_model="a cpu", cpu_cores=2, memory_bytes=2**33, kernel="6.1", gpus=[]),
        source=Source(
            origin="git",
            git_commit="f" * 40,
            dirty=False,
            diff_sha256=None,
            changed_since=[],
            lock_sha256="e" * 64,
        ),
        model=ModelInfo(name="m", weights="random", source="seed 0", sha256={"config.json": "d" * 64}),
    )
