"""A complete run as a comparison stage leaves it, made from a model of servers: systems in configurations,
closed loops and Poisson arrivals, repetitions with a schedule each, a search for the knee, energies.

The tables are written as files here, and not measured: what is drawn can be told from the numbers put in.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness.schema import (
    SCHEMA_VERSION,
    EventRow,
    GpuSampleRow,
    Hardware,
    KneeRow,
    Manifest,
    ModelInfo,
    Record,
    RequestRow,
    ServingRow,
    StoredFile,
)
from harness.store import Run, load_run
from harness.tables import compress, dtypes, frame_to_csv, records_to_csv
from tests.figures.made_run import H200
from tests.harness.made import S, cell_record, identity

WINDOW_S = 20
PROMPT, OUTPUT = 128, 32
TTFT_LIMIT_MS, TPOT_LIMIT_MS = 200.0, 10.0
LINES = tuple(
    (system, config) for system in ("engine", "vllm", "sglang") for config in ("default", "same_features")
)
STEP_MS = {"engine": 6.4, "vllm": 2.9, "sglang": 2.4}
TOKEN_MS = {"engine": 0.062, "vllm": 0.021, "sglang": 0.017}
SLOWER = {"default": 1.0, "same_features": 1.4, "tuned": 0.85}
CAPACITY_RPS = {"engine": 25.0, "vllm": 70.0, "sglang": 90.0}


@dataclass(frozen=True)
class Ladder:
    """What a made run holds. `changes` overwrite fields of rows by (system, config, load name, repetition),
    the last two of which may be None for all."""

    lines: tuple[tuple[str, str], ...] = LINES
    concurrencies: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    rates: tuple[float, ...] = (5.0, 10.0, 20.0, 40.0, 80.0)
    repetitions: int = 3
    requests: int = 24
    searched: tuple[KneeRow, ...] = ()
    search_rates: tuple[float, ...] = ()
    changes: dict[tuple[str, str, str | None, int | None], dict[str, Any]] = field(default_factory=dict)


def knee(system: str, config: str, low: float | None, high: float | None) -> KneeRow:
    return KneeRow(
        system=system, config=config, search="knee", target_attainment=0.99, slo_ttft_ms=TTFT_LIMIT_MS,
        slo_tpot_ms=TPOT_LIMIT_MS, low_rps=low, high_rps=high, cells=8,
    )  # fmt: skip


def tokens_per_s(system: str, config: str, concurrency: float) -> float:
    """Closed loop: every step gives each request in flight a token and takes longer the more there are."""
    return concurrency / step_ms(system, config, concurrency) * 1000


def step_ms(system: str, config: str, concurrency: float) -> float:
    return SLOWER.get(config, 1.0) * (STEP_MS[system] + TOKEN_MS[system] * concurrency)


def attained(system: str, config: str, rate_rps: float) -> float:
    load = rate_rps / (CAPACITY_RPS[system] / SLOWER.get(config, 1.0))
    return 1.0 if load < 0.8 else max(0.0, 1.0 - 1.6 * (load - 0.8))


def schedule(load_name: str, repetition: int) -> str:
    return hashlib.sha256(f"{load_name} {repetition}".encode()).hexdigest()


def serving_row(
    position: int, line: tuple[str, str], load: dict[str, Any], repetition: int
) -> dict[str, Any]:
    """The fields of a row that the model gives, with one percent of noise."""
    system, config = line
    noise = random.Random(f"{line} {load['load_name']} {repetition}").gauss
    concurrency, rate = load["concurrency"], load["rate_rps"]
    in_flight = concurrency or min(256.0, rate * OUTPUT * STEP_MS[system] / 1000 + 1)
    step = step_ms(system, config, in_flight) * (1 + noise(0, 0.01))
    tokens = in_flight / step * 1000 if concurrency else rate * OUTPUT
    share = None if concurrency else attained(system, config, rate) - abs(noise(0, 0.004))
    share = None if share is None else max(0.0, min(1.0, share))
    requests = max(4, round(tokens / OUTPUT * WINDOW_S))
    ttft = step * 4 + in_flight * 0.35 * SLOWER.get(config, 1.0) * (1 + noise(0, 0.02))
    watts = 180 + 420 * in_flight / (in_flight + 90)
    return dict(
        schema_version=SCHEMA_VERSION, run="", cell=f"c{position:04}", box="nvidia-h200-16c",
        gpu="NVIDIA H200", gpu_uuid="GPU-1", num_gpus=1, system=system, system_version="1.0", config=config,
        model="llama-3.2-1b", weights="random", dtype="bfloat16", tensor_parallel=1, replicas=1,
        speculation="none", accepted_per_step=None, workload="token_ids 128 to 32", **load,
        schedule_sha256=schedule(load["load_name"], repetition), prefix_cache="on", cached_tokens=0,
        repetition=repetition, position=position, started_at="2026-01-01T00:00:00Z", verdict="VALID",
        reasons="", requests=requests, failed=0, prompt_tokens=requests * PROMPT,
        output_tokens=round(tokens * WINDOW_S), window_s=WINDOW_S, output_tokens_per_s=tokens,
        requests_per_s=tokens / OUTPUT, ttft_ms_p50=ttft, ttft_ms_p99=None, tpot_ms_p50=step,
        tpot_ms_p99=None, e2e_ms_p50=ttft + OUTPUT * step, e2e_ms_p99=None,
        attainment=share, goodput_rps=None if share is None else share * rate, events_per_token=1.0,
        token_count_method="continuous_usage", lag_ms_p99=0.3, client_headroom=20.0,
        joules_per_token=watts / tokens, git_commit="f" * 40, dirty=False, lock_sha256="e" * 64,
        device="cuda", notes="", slo_ttft_ms=TTFT_LIMIT_MS, slo_tpot_ms=TPOT_LIMIT_MS,
        ttft_from_send_ms_p50=ttft,
        played=requests + 10, played_failed=0, events_per_s=tokens, ceiling_events_per_s=400_000.0,
        mean_in_flight=in_flight, littles_law_ratio=1.0, startup_s=20.0, power_w_mean=watts,
        roofline_share=tokens / (1_400 * concurrency / (1 + concurrency / 110)) if concurrency else None,
    )  # fmt: skip


def loads_of(ladder: Ladder) -> list[dict[str, Any]]:
    closed = [
        dict(load="closed", concurrency=number, rate_rps=None, load_name=f"closed-{number}",
             load_label=f"closed, {number} in flight")
        for number in ladder.concurrencies
    ]  # fmt: skip
    rates = [("poisson", rate) for rate in ladder.rates] + [("knee", rate) for rate in ladder.search_rates]
    return closed + [
        dict(load="poisson", concurrency=None, rate_rps=rate, load_name=f"{name}-{rate:g}rps",
             load_label=f"Poisson arrivals, {rate:g} requests/s")
        for name, rate in rates
    ]  # fmt: skip


def rows_of(ladder: Ladder) -> list[ServingRow]:
    """Systems alternate as in a run."""
    rows: list[ServingRow] = []
    for repetition in range(ladder.repetitions):
        for load in loads_of(ladder):
            for line in ladder.lines[:: -1 if repetition % 2 else 1]:
                made = serving_row(len(rows), line, load, repetition)
                for (system, config, name, number), changed in ladder.changes.items():
                    if (system, config) == line and name in (None, load["load_name"]):
                        made |= changed if number in (None, repetition) else {}
                rows.append(ServingRow(**made))
    return rows


def requests_of(row: ServingRow, number: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`number` requests with the row's medians, and their events."""
    stream = np.random.default_rng(row.position)
    intended = np.sort(stream.integers(2 * S, (2 + WINDOW_S) * S, number))
    first = intended + (row.ttft_ms_p50 * stream.lognormal(0, 0.45, number) * 1e6).astype(np.int64)
    steps_us = (row.tpot_ms_p50 * 1000 * stream.lognormal(0, 0.12, (number, OUTPUT - 1))).astype(np.int64)
    steps_us[stream.random(steps_us.shape) < 0.01] *= 8
    last = first + steps_us.sum(axis=1) * 1000
    columns: dict[str, Any] = dict(
        cell=row.cell, request=np.arange(number), worker=0, intended_ns=intended, sent_ns=intended + 20_000,
        first_ns=first, last_ns=last, done_ns=last + 100_000, status="ok", http_status=200,
        finish_reason="length", prompt_tokens=PROMPT, requested_tokens=OUTPUT, output_tokens=OUTPUT,
        cached_tokens=0, first_event_tokens=1, events=OUTPUT, empty_events=1, bytes_after_done=0,
        connection_reused=True, token_count_method="continuous_usage", output_sha256="0" * 16, error=None,
    )  # fmt: skip
    gaps = np.column_stack([(first - intended) // 1000, steps_us])
    events = dict(cell=row.cell, request=np.repeat(np.arange(number), OUTPUT), gap_us=gaps.ravel(), tokens=1)
    return _frame(RequestRow, columns, number), _frame(EventRow, events, gaps.size)


def _frame(row: type[Record], columns: dict[str, Any], number: int) -> pd.DataFrame:
    frame = pd.DataFrame(columns, index=range(number))
    return frame.astype(dtypes(row))[list(dtypes(row))]


def make_ladder(results: Path, name: str, ladder: Ladder) -> Run:
    """Stores the run under `results` and loads it."""
    rows = [row.model_copy(update={"run": name}) for row in rows_of(ladder)]
    raw = [requests_of(row, ladder.requests) for row in rows]
    requests, events = (pd.concat(frames, ignore_index=True) for frames in zip(*raw, strict=True))
    tables = {
        "serving.csv": records_to_csv(ServingRow, rows),
        "requests.csv.gz": frame_to_csv(RequestRow, requests),
        "events.csv.gz": frame_to_csv(EventRow, events),
        "gpu_samples.csv.gz": records_to_csv(GpuSampleRow, []),
        "knee.csv": records_to_csv(KneeRow, ladder.searched),
    }
    folder = results / name
    folder.mkdir(parents=True)
    files = []
    for file, content in tables.items():
        stored = compress(file, content)
        (folder / file).write_bytes(stored)
        files.append(StoredFile(path=file, sha256=hashlib.sha256(stored).hexdigest(), bytes=len(stored)))
    (folder / "manifest.json").write_text(_manifest(name, rows, files).model_dump_json(indent=1))
    return load_run(folder)


def _manifest(name: str, rows: list[ServingRow], files: list[StoredFile]) -> Manifest:
    cells = [
        cell_record(
            cell=row.cell, name=row.load_name, system=row.system, config=row.config, load=row.load,
            concurrency=row.concurrency, rate_rps=row.rate_rps, schedule_sha256=row.schedule_sha256,
            repetition=row.repetition, position=row.position, window_start_ns=2 * S,
            window_end_ns=(2 + WINDOW_S) * S,
        )
        for row in rows
    ]  # fmt: skip
    hardware = Hardware(cpu_model="a cpu", cpu_cores=16, memory_bytes=2**37, kernel="6.1", gpus=[H200])
    return Manifest(
        schema_version=SCHEMA_VERSION, run=name, stage="compare", stage_sha256="0" * 64,
        created_at="2026-01-01T00:00:00Z", finished_at="2026-01-01T02:00:00Z", command=["run", "compare"],
        source=identity().source, box="nvidia-h200-16c", hardware=hardware, environments={}, servers=[],
        model=ModelInfo(name="llama-3.2-1b", weights="random", source="seed 0", sha256={}), schedules=[],
        client_ceiling=None, reference_check=None, cells=cells, files=files, logs=[], complete=True,
    )  # fmt: skip
