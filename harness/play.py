"""One cell: its schedule played against a running server, with the GPU watched meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from harness.client.player import PlayError, play
from harness.client.received import Received
from harness.gpu import GpuSampler, processes_on
from harness.plan import PlannedCell
from harness.progress import phase
from harness.rows import raw_frames
from harness.schema import GpuInfo
from harness.stage import CellPlan, DevicePlan
from harness.systems.counters import read_counters
from harness.systems.process import RunningServer


@dataclass(frozen=True)
class GpuAccess:
    """NVML and the GPUs of the run; no GPUs on a CPU run."""

    nvml: Any
    gpus: Sequence[GpuInfo]


@dataclass(frozen=True)
class PlayedCell:
    """What came of playing a cell: the raw tables and the circumstances its record needs."""

    frames: dict[str, pd.DataFrame]
    started_at: str
    schedule_exhausted: bool
    failure: str | None
    strangers: tuple[str, ...] = ()
    events_stride: int = 1
    client_stall_ms: float | None = None
    client_busy: float | None = None
    counters_before: dict[str, float] | None = None
    counters_after: dict[str, float] | None = None


def play_cell(
    planned: PlannedCell,
    cell: str,
    schedule: Path,
    server: RunningServer,
    plan: DevicePlan,
    gpu: GpuAccess,
    own_processes: Set[str],
) -> PlayedCell:
    """Plays the cell. A play that cannot be carried through is a failure of the cell, not of the run.

    GPU processes before, during and after it that are not `own_processes` are strangers.
    """
    load, system = planned.cell, planned.chosen.system
    name = f"{planned.chosen.label} {planned.schedule}"
    seen = set(processes_on(gpu.nvml, gpu.gpus))
    counters_before = read_counters(server.url, system)
    try:
        with phase(name, total=load.play_s) as advance, _sampled(gpu) as sampler:
            records, received, info = play(
                schedule,
                server.url,
                server.model,
                workers=plan.client_workers,
                seconds=load.play_s if load.is_closed else None,
                timeout_s=plan.request_timeout_s,
                on_progress=lambda _done, _total, seconds: advance(min(seconds, load.play_s)),
            )
    except PlayError as error:
        return not_played(cell, str(error))
    samples = sampler.rows(cell, info.epoch_ns) if sampler else []
    seen |= sampler.processes if sampler else set()
    return PlayedCell(
        frames=raw_frames(cell, records, received, samples),
        started_at=_zulu(info.started_at),
        schedule_exhausted=info.exhausted,
        failure=None,
        strangers=tuple(sorted((seen | set(processes_on(gpu.nvml, gpu.gpus))) - own_processes)),
        events_stride=info.events_stride,
        client_stall_ms=info.stalled_ms,
        client_busy=info.busy,
        counters_before=counters_before,
        counters_after=read_counters(server.url, system),
    )


def not_played(cell: str, failure: str) -> PlayedCell:
    """A cell without rows and why."""
    now = _zulu(datetime.now(UTC).isoformat(timespec="milliseconds"))
    return PlayedCell(raw_frames(cell, [], Received.empty()), now, False, " ".join(failure.split()))


def _zulu(utc: str) -> str:
    return utc.replace("+00:00", "Z")


def window_ns(load: CellPlan) -> tuple[int, int]:
    """The measured window of a cell: after its ramp, to the end of sending."""
    return round(load.ramp_s * 1e9), round(load.play_s * 1e9)


def _sampled(gpu: GpuAccess) -> contextlib.AbstractContextManager[GpuSampler | None]:
    return GpuSampler(gpu.nvml, gpu.gpus) if gpu.gpus else contextlib.nullcontext()
