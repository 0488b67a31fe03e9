"""One cell: its schedule played against a running server, with the GPU watched meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from harness.client.player import PlayError, play
from harness.client.record import RequestRecord
from harness.gpu import GpuSampler
from harness.plan import PlannedCell
from harness.progress import phase
from harness.rows import raw_frames
from harness.schema import GpuInfo
from harness.stage import CellPlan, DevicePlan


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


def play_cell(
    planned: PlannedCell, cell: str, schedule: Path, url: str, model: str, plan: DevicePlan, gpu: GpuAccess
) -> PlayedCell:
    """Plays the cell. A play that cannot be carried through is a failure of the cell, not of the run."""
    load = planned.cell
    name = f"{planned.chosen.label} {load.name}"
    try:
        with phase(name, total=load.play_s) as advance, _sampled(gpu) as sampler:
            records, info = play(
                schedule,
                url,
                model,
                workers=plan.client_workers,
                seconds=load.play_s if load.load == "closed" else None,
                timeout_s=plan.request_timeout_s,
                on_progress=lambda _done, _total, seconds: advance(min(seconds, load.play_s)),
            )
    except PlayError as error:
        return not_played(cell, str(error))
    samples = sampler.rows(cell, info.epoch_ns) if sampler else []
    return PlayedCell(raw_frames(cell, records, samples), _zulu(info.started_at), info.exhausted, None)


def not_played(cell: str, failure: str) -> PlayedCell:
    """A cell without rows and why."""
    now = _zulu(datetime.now(UTC).isoformat(timespec="milliseconds"))
    no_records: list[RequestRecord] = []
    return PlayedCell(raw_frames(cell, no_records), now, False, " ".join(failure.split()))


def _zulu(utc: str) -> str:
    return utc.replace("+00:00", "Z")


def window_ns(load: CellPlan) -> tuple[int, int]:
    """The measured window of a cell: after its ramp, to the end of sending."""
    return round(load.ramp_s * 1e9), round(load.play_s * 1e9)


def _sampled(gpu: GpuAccess) -> contextlib.AbstractContextManager[GpuSampler | None]:
    return GpuSampler(gpu.nvml, gpu.gpus) if gpu.gpus else contextlib.nullcontext()
