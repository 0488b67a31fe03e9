"""What may be drawn: complete runs whose checksums match, and of these the VALID rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from figures.style import SYSTEMS, SystemStyle
from harness.metrics import Window, tpot_ms, ttft_ms
from harness.schema import Manifest
from harness.store import Run, StoreError, list_runs, load_run

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "v1"


def complete_runs(results: Path) -> tuple[list[Run], list[str]]:
    """Runs by name, and a line for each folder that is not a complete run."""
    runs, skipped = [], []
    for listed in list_runs(results):
        try:
            runs.append(load_run(listed.path))
        except StoreError:
            skipped.append(f"{listed.path.name}: {listed.state}")
    return runs, skipped


def valid_rows(run: Run) -> pd.DataFrame:
    """The rows of serving.csv that may be drawn."""
    return run.serving[run.serving["verdict"] == "VALID"]


@dataclass(frozen=True)
class Series:
    """The repetitions of one system in one configuration under one load."""

    system: str
    config: str
    rows: pd.DataFrame

    @property
    def style(self) -> SystemStyle:
        return SYSTEMS[self.system]

    @property
    def is_default(self) -> bool:
        return self.config == "default"

    @property
    def label(self) -> str:
        return self.style.name if self.is_default else f"{self.style.name} · {self.config}"

    @property
    def requests(self) -> int:
        return int(self.rows["requests"].sum())


@dataclass(frozen=True)
class Panel:
    """What may be compared with each other: everything that played the same schedule file."""

    schedule_sha256: str
    rows: pd.DataFrame
    series: list[Series]

    @property
    def load(self) -> str:
        """The load in words."""
        first = self.rows.iloc[0]
        return load_in_words(first["load"], first["concurrency"], first["rate_rps"])


def load_in_words(load: str, concurrency: int | None, rate_rps: float | None) -> str:
    """As a heading says it."""
    if load == "closed":
        return f"closed loop, {concurrency} in flight"
    return f"{load.capitalize()} arrivals, {rate_rps:g} requests/s"


def panels(rows: pd.DataFrame) -> list[Panel]:
    """A panel a schedule: closed loops by concurrency, open ones by rate; systems in the order of the run."""
    ordered = rows.sort_values(["concurrency", "rate_rps", "schedule_sha256", "position"], na_position="last")
    return [
        Panel(schedule, group, _series(group))
        for schedule, group in ordered.groupby("schedule_sha256", sort=False)
    ]


def _series(rows: pd.DataFrame) -> list[Series]:
    return [Series(*key, group) for key, group in rows.groupby(["system", "config"], sort=False)]


@dataclass(frozen=True)
class Latencies:
    """Latencies in ms of the requests that were to be sent in the window, sorted; undefined ones left out."""

    ttft_ms: np.ndarray
    tpot_ms: np.ndarray


def latencies(run: Run, series: Series) -> Latencies:
    """Those of all repetitions of a series."""
    windows = {cell.cell: Window(cell.window_start_ns, cell.window_end_ns) for cell in run.manifest.cells}
    counted = []
    for cell in series.rows["cell"]:
        requests = run.requests[run.requests["cell"] == cell]
        counted.append(requests[windows[cell].contains(requests["intended_ns"].to_numpy(dtype=np.float64))])
    joined = pd.concat(counted)
    return Latencies(_sorted_defined(ttft_ms(joined)), _sorted_defined(tpot_ms(joined)))


def _sorted_defined(values: np.ndarray) -> np.ndarray:
    return np.sort(values[~np.isnan(values)])


def describe_machine(manifest: Manifest) -> str:
    """The machine in one line."""
    hardware = manifest.hardware
    cores = f"{hardware.cpu_cores} CPU core{'s' if hardware.cpu_cores != 1 else ''}"
    if hardware.gpus:
        gpu = hardware.gpus[0]
        count = f"{len(hardware.gpus)}× " if len(hardware.gpus) > 1 else ""
        return f"{count}{gpu.name}, driver {gpu.driver}, {cores}"
    return f"{hardware.cpu_model.replace('(R)', '').replace('(TM)', '')}, {cores}"


def describe_model(rows: pd.DataFrame, manifest: Manifest) -> str:
    """Model, weights and number format in one line; that of the correctness check in a run without cells."""
    check = manifest.reference_check
    formats = " and ".join(sorted(set(rows["dtype"]))) or (check.system_dtype if check else "")
    return f"{manifest.model.name}, {manifest.model.weights} weights, {formats}"


def describe_origin(run: Run) -> str:
    """Run and commit in one line."""
    source = run.manifest.source
    changed = " with changes" if source.dirty else ""
    return f"run {run.manifest.run} · commit {source.git_commit[:10]}{changed}"


def not_drawn(run: Run) -> str:
    """The INVALID cells in one line, or ''."""
    invalid = run.serving[run.serving["verdict"] != "VALID"]
    if invalid.empty:
        return ""
    names = ", ".join(sorted({SYSTEMS[system].name for system in invalid["system"]}))
    return (
        f"not drawn: {len(invalid)} INVALID cell{'s' if len(invalid) > 1 else ''} ({names}), see serving.csv"
    )
