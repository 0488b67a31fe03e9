"""From what the client recorded to raw rows, and from raw rows and declarations to the summary row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import pandas as pd

from harness.client.received import Received
from harness.client.record import RequestRecord
from harness.metrics import Slo, Window, cell_metrics, gpu_state, joules
from harness.roofline import roofline_share
from harness.schema import (
    SCHEMA_VERSION,
    CellRecord,
    EventRow,
    GpuSampleRow,
    Hardware,
    Manifest,
    ModelInfo,
    ReceivedRow,
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
    def of(cls, manifest: Manifest, session: int) -> RunIdentity:
        """That of one of the run's sessions."""
        part = manifest if session == 0 else manifest.later_sessions[session - 1]
        return cls(manifest.run, part.box, part.hardware, part.source, manifest.model)


@dataclass(frozen=True)
class CellTables:
    """The raw tables of one cell."""

    requests: pd.DataFrame
    events: pd.DataFrame
    received: pd.DataFrame
    gpu_samples: pd.DataFrame

    @classmethod
    def of(cls, frames: Mapping[str, pd.DataFrame]) -> CellTables:
        """From frames keyed by file name."""
        return cls(**{field.name: frames[f"{field.name}.csv.gz"] for field in fields(cls)})

    def frames(self) -> dict[str, pd.DataFrame]:
        """Keyed by file name."""
        return {f"{field.name}.csv.gz": getattr(self, field.name) for field in fields(self)}


def raw_frames(
    cell: str,
    records: Sequence[RequestRecord],
    received: Received,
    gpu_samples: Sequence[GpuSampleRow] = (),
) -> dict[str, pd.DataFrame]:
    """The raw tables of one cell, keyed by file name, in the order of the schedule."""
    ordered = sorted(records, key=lambda record: record.index)
    return {
        "requests.csv.gz": records_to_frame(RequestRow, [_request_row(cell, record) for record in ordered]),
        "events.csv.gz": _event_frame(cell, ordered),
        "gpu_samples.csv.gz": records_to_frame(GpuSampleRow, gpu_samples),
        "received.csv.gz": _received_frame(cell, received),
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
    counts = [len(record.chunk_ns) for record in records]
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


def _received_frame(cell: str, received: Received) -> pd.DataFrame:
    columns = {
        "cell": [cell] * len(received.t_ms),
        "t_ms": received.t_ms,
        "events": received.events,
        "reads": received.reads,
        "tokens": received.tokens,
    }
    return pd.DataFrame(
        {name: pd.Series(columns[name], dtype=dtype) for name, dtype in dtypes(ReceivedRow).items()}
    )


def of_cell(frame: pd.DataFrame, cell: str) -> pd.DataFrame:
    """The rows of one cell."""
    return frame[frame["cell"] == cell].reset_index(drop=True)


def serving_row(identity: RunIdentity, cell: CellRecord, tables: CellTables) -> ServingRow:
    """The summary of a cell, from its raw rows and what was declared: nothing else goes into it."""
    window = Window(cell.window_start_ns, cell.window_end_ns)
    metrics = cell_metrics(
        tables.requests, tables.events, tables.received, window, Slo(cell.slo_ttft_ms, cell.slo_tpot_ms)
    )
    gpu = gpu_state(tables.gpu_samples, window)
    server_cached = _counted(cell, "cached_tokens")
    verdict = judge(
        metrics,
        Limits(**cell.limits),
        Surroundings(
            failure=cell.failure,
            open_loop=cell.concurrency is None,
            schedule_exhausted=cell.schedule_exhausted,
            ceiling_events_per_s=cell.ceiling_events_per_s,
            correctness_identical=cell.correctness_identical,
            undeclared_gpu_processes=tuple(cell.undeclared_gpu_processes),
            cached_tokens=metrics.played_cached_tokens if server_cached is None else server_cached,
            shares_prefixes=cell.shares_prefixes,
            throttle_reasons=gpu.throttle_reasons,
            client_stall_ms=cell.client_stall_ms,
            client_busy=cell.client_busy,
            has_prefix_cache=cell.prefix_cache != "off",
            rules=cell.verdict_rules,
        ),
    )
    energy_j = joules(tables.gpu_samples, window)
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
        session=cell.session,
        load_label=cell.load_label,
        load_name=cell.name,
        memory_share=cell.memory_share,
        residents=" ".join(cell.residents),
        server_cached_tokens=server_cached,
        server_preemptions=_counted(cell, "preemptions"),
        icl_ms_p50=metrics.icl_ms_p50,
        icl_ms_p99=metrics.icl_ms_p99,
        events_stride=cell.events_stride,
        power_w_mean=energy_j / window.seconds if energy_j else None,
        sm_clock_mhz_mean=gpu.sm_clock_mhz_mean,
        temperature_c_max=gpu.temperature_c_max,
        client_stall_ms=cell.client_stall_ms,
        client_busy=cell.client_busy,
        roofline_share=roofline_share(
            identity.model.shape,
            cell.dtype,
            gpus[0].name if gpus else None,
            tables.requests,
            metrics.output_tokens_per_s,
            float(cell.concurrency or metrics.mean_in_flight),
        ),
    )


def _counted(cell: CellRecord, name: str) -> int | None:
    """What a counter of the server grew by during the play; None when the server does not have it."""
    if cell.counters_before is None or cell.counters_after is None or name not in cell.counters_after:
        return None
    # A counter appears in /metrics at its first count.
    return round(cell.counters_after[name] - cell.counters_before.get(name, 0))
