"""From what the client recorded to raw rows, and from raw rows and declarations to the summary row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from harness.client.record import RequestRecord
from harness.metrics import Slo, Window, cell_metrics, joules
from harness.schema import (
    SCHEMA_VERSION,
    CellRecord,
    EventRow,
    GpuSampleRow,
    Hardware,
    Manifest,
    ModelInfo,
    RequestRow,
    ServingRow,
    Source,
)
from harness.tables import dtypes, records_to_frame
from harness.verdict import Limits, Surroundings, client_headroom, judge

ERROR_CHARACTERS = 300


@dataclass(frozen=True)
class RunIdentity:
    """What all rows of a run have in common."""

    run: str
    box: str
    hardware: Hardware
    source: Source
    model: ModelInfo

    @classmethod
    def of(cls, manifest: Manifest) -> RunIdentity:
        return cls(manifest.run, manifest.box, manifest.hardware, manifest.source, manifest.model)


def raw_frames(
    cell: str, records: Sequence[RequestRecord], gpu_samples: Sequence[GpuSampleRow] = ()
) -> dict[str, pd.DataFrame]:
    """The raw tables of one cell, keyed by file name, in the order of the schedule."""
    ordered = sorted(records, key=lambda record: record.index)
    return {
        "requests.csv.gz": records_to_frame(RequestRow, [_request_row(cell, record) for record in ordered]),
        "events.csv.gz": _event_frame(cell, ordered),
        "gpu_samples.csv.gz": records_to_frame(GpuSampleRow, gpu_samples),
    }


def _request_row(cell: str, record: RequestRecord) -> RequestRow:
    error = " ".join(record.error.split())[:ERROR_CHARACTERS]
    return RequestRow(
        cell=cell,
        request=record.index,
        worker=record.worker,
        intended_ns=record.intended_ns,
        sent_ns=record.sent_ns,
        first_ns=record.first_ns,
        last_ns=record.last_ns,
        done_ns=record.done_ns,
        status=record.status,
        http_status=record.http_status,
        finish_reason=record.finish_reason,
        prompt_tokens=record.prompt_tokens,
        requested_tokens=record.max_tokens,
        output_tokens=record.output_tokens,
        cached_tokens=record.cached_tokens,
        first_event_tokens=record.first_event_tokens,
        events=record.events,
        empty_events=record.empty_events,
        bytes_after_done=record.bytes_after_done,
        connection_reused=record.connection_reused,
        token_count_method=record.token_count_method,
        output_sha256=record.output_sha256,
        error=error or None,
    )


def _event_frame(cell: str, records: Sequence[RequestRecord]) -> pd.DataFrame:
    counts = [record.events for record in records]
    gaps = [np.diff(np.array([record.intended_ns, *record.chunk_ns]) // 1000) for record in records]
    tokens = [np.array(record.chunk_tokens) for record in records]
    columns = {
        "cell": [cell] * sum(counts),
        "request": np.repeat([record.index for record in records], counts),
        "gap_us": np.concatenate([[], *gaps]).astype(np.int64),
        "tokens": np.concatenate([[], *tokens]).astype(np.int64),
    }
    return pd.DataFrame(
        {name: pd.Series(columns[name], dtype=dtype) for name, dtype in dtypes(EventRow).items()}
    )


def of_cell(frame: pd.DataFrame, cell: str) -> pd.DataFrame:
    """The rows of one cell."""
    return frame[frame["cell"] == cell].reset_index(drop=True)


def serving_row(
    identity: RunIdentity,
    cell: CellRecord,
    requests: pd.DataFrame,
    events: pd.DataFrame,
    gpu_samples: pd.DataFrame,
) -> ServingRow:
    """The summary of a cell, from its raw rows and what was declared: nothing else goes into it."""
    window = Window(cell.window_start_ns, cell.window_end_ns)
    metrics = cell_metrics(requests, events, window, Slo(cell.slo_ttft_ms, cell.slo_tpot_ms))
    verdict = judge(
        metrics,
        Limits(**cell.limits),
        Surroundings(
            failure=cell.failure,
            open_loop=cell.rate_rps is not None,
            schedule_exhausted=cell.schedule_exhausted,
            ceiling_events_per_s=cell.ceiling_events_per_s,
            correctness_identical=cell.correctness_identical,
            undeclared_gpu_processes=tuple(cell.undeclared_gpu_processes),
        ),
    )
    energy_j = joules(gpu_samples, window)
    gpus = identity.hardware.gpus[: cell.num_gpus]
    return ServingRow(
        schema_version=SCHEMA_VERSION,
        run=identity.run,
        cell=cell.cell,
        box=identity.box,
        gpu=gpus[0].name if gpus else None,
        gpu_uuid=" ".join(gpu.uuid for gpu in gpus) or None,
        num_gpus=cell.num_gpus,
        system=cell.system,
        system_version=cell.system_version,
        config=cell.config,
        model=identity.model.name,
        weights=identity.model.weights,
        dtype=cell.dtype,
        tensor_parallel=1,
        replicas=1,
        speculation="none",
        accepted_per_step=None,
        workload=cell.workload,
        load=cell.load,
        concurrency=cell.concurrency,
        rate_rps=cell.rate_rps,
        schedule_sha256=cell.schedule_sha256,
        prefix_cache=cell.prefix_cache,
        cached_tokens=metrics.cached_tokens,
        repetition=cell.repetition,
        position=cell.position,
        started_at=cell.started_at,
        verdict="VALID" if verdict.valid else "INVALID",
        reasons="; ".join(verdict.reasons),
        requests=metrics.requests,
        failed=metrics.failed,
        prompt_tokens=metrics.prompt_tokens,
        output_tokens=metrics.output_tokens,
        window_s=metrics.window_s,
        output_tokens_per_s=metrics.output_tokens_per_s,
        requests_per_s=metrics.requests_per_s,
        ttft_ms_p50=metrics.ttft_ms_p50,
        ttft_ms_p99=metrics.ttft_ms_p99,
        tpot_ms_p50=metrics.tpot_ms_p50,
        tpot_ms_p99=metrics.tpot_ms_p99,
        e2e_ms_p50=metrics.e2e_ms_p50,
        e2e_ms_p99=metrics.e2e_ms_p99,
        attainment=metrics.attainment,
        goodput_rps=metrics.goodput_rps,
        events_per_token=metrics.events_per_token,
        token_count_method=metrics.token_count_method,
        lag_ms_p99=metrics.lag_ms_p99,
        client_headroom=client_headroom(metrics, cell.ceiling_events_per_s),
        joules_per_token=energy_j / metrics.output_tokens if energy_j and metrics.output_tokens else None,
        git_commit=identity.source.git_commit,
        dirty=identity.source.dirty,
        lock_sha256=identity.source.lock_sha256,
        device=cell.device,
        notes="; ".join(verdict.notes),
        slo_ttft_ms=cell.slo_ttft_ms,
        slo_tpot_ms=cell.slo_tpot_ms,
        ttft_from_send_ms_p50=metrics.ttft_from_send_ms_p50,
        played=metrics.played,
        played_failed=metrics.played_failed,
        events_per_s=metrics.events_per_s,
        ceiling_events_per_s=cell.ceiling_events_per_s,
        mean_in_flight=metrics.mean_in_flight,
        littles_law_ratio=metrics.littles_law_ratio,
        startup_s=cell.startup_s,
    )
