"""What may be drawn: complete runs whose checksums match, and of these the VALID rows."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from figures.style import SystemStyle, looks
from harness.metrics import Window, tpot_ms, ttft_ms
from harness.schema import AttentionRow, Manifest
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
    """The rows of serving.csv that may be drawn; a load without a name or label has '' for it."""
    valid = run.serving[run.serving["verdict"] == "VALID"]
    return valid.assign(**{name: valid[name].fillna("") for name in ("load_name", "load_label")})


@dataclass(frozen=True)
class Series:
    """The repetitions of one system in one configuration under one load."""

    system: str
    config: str
    style: SystemStyle
    rows: pd.DataFrame

    @property
    def is_default(self) -> bool:
        return self.config == "default"

    @property
    def label(self) -> str:
        return label(self.style.name, self.config)

    @property
    def requests(self) -> int:
        return int(self.rows["requests"].sum())


@dataclass(frozen=True)
class Panel:
    """What may be compared with each other: in each repetition all played the same schedule file."""

    rows: pd.DataFrame
    series: list[Series]

    @property
    def schedules(self) -> str:
        """The schedule files, as a heading says them."""
        names = list(dict.fromkeys(self.rows["schedule_sha256"]))
        if len(names) == 1:
            return f"schedule {names[0][:12]}"
        return f"{len(names)} schedules, {names[0][:6]} to {names[-1][:6]}"

    @property
    def load(self) -> str:
        """The load in words."""
        first = self.rows.iloc[0]
        return load_in_words(first["load"], first["concurrency"], first["rate_rps"], first["load_label"])


def label(system_name: str, config: str) -> str:
    """As a reader sees a system in a configuration."""
    return system_name if config == "default" else f"{system_name} · {config.replace('_', ' ')}"


def load_in_words(load: str, concurrency: int | None, rate_rps: float | None, load_label: str) -> str:
    """As a heading says it; runs from before there were labels had these two loads alone."""
    if load == "closed":
        return f"closed loop, {concurrency} in flight"
    if load_label:
        return load_label[0].upper() + load_label[1:]
    return f"{load.capitalize()} arrivals, {rate_rps:g} requests/s"


def run_looks(run: Run) -> dict[tuple[str, str], SystemStyle]:
    """The look of each (system, config), the same in all figures of the run."""
    ordered = run.serving.sort_values("position")
    return looks(list(zip(ordered["system"], ordered["config"], strict=True)))


def panels(run: Run, rows: pd.DataFrame) -> list[Panel]:
    """A panel a load: closed loops by concurrency, open ones by rate; systems in the order of the run.

    Repetitions of a load have a schedule each. Where systems played different ones in the same repetition, or
    the run is from before loads had names, a panel holds one schedule.
    """
    styles = run_looks(run)
    loads = rows["load_name"].where(schedules_agree(rows, ["load_name"]), "")
    keyed = rows.assign(panel=loads.where(loads != "", rows["schedule_sha256"]))
    ordered = keyed.sort_values(
        ["concurrency", "rate_rps", "schedule_sha256", "position"], na_position="last"
    )
    groups = [group.sort_values("position") for _, group in ordered.groupby("panel", sort=False)]
    return [Panel(group, _series(group, styles)) for group in groups]


def schedules_agree(rows: pd.DataFrame, load: list[str]) -> pd.Series:
    """Which rows are of a load and repetition in which all played the same schedule file."""
    return rows.groupby([*load, "repetition"])["schedule_sha256"].transform("nunique") == 1


def _series(rows: pd.DataFrame, styles: dict[tuple[str, str], SystemStyle]) -> list[Series]:
    return [Series(*key, styles[key], group) for key, group in rows.groupby(["system", "config"], sort=False)]


@dataclass(frozen=True)
class Latencies:
    """Latencies in ms of the requests that were to be sent in the window, sorted; undefined ones left out."""

    ttft_ms: np.ndarray
    tpot_ms: np.ndarray


def counted_requests(run: Run, cells: Collection[str]) -> dict[str, pd.DataFrame]:
    """The requests of each of these cells that were to be sent in its window."""
    windows = {cell.cell: Window(cell.window_start_ns, cell.window_end_ns) for cell in run.manifest.cells}
    requests = run.requests[run.requests["cell"].isin(cells)]
    return {
        cell: own[windows[cell].contains(own["intended_ns"].to_numpy(dtype=np.float64))]
        for cell, own in requests.groupby("cell", sort=False)
    }


def latencies(run: Run, series: Series) -> Latencies:
    """Those of all repetitions of a series."""
    joined = pd.concat(counted_requests(run, set(series.rows["cell"])).values())
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
    """Model, weights and number format in one line; in a run without cells that of the correctness check."""
    check = manifest.reference_check
    formats = " and ".join(sorted(set(rows["dtype"]))) or (check.system_dtype if check else "")
    described = (manifest.model.name, f"{manifest.model.weights} weights", formats)
    return ", ".join(part for part in described if part)


def describe_origin(run: Run) -> str:
    """Run and commit in one line; with its sessions and what was cut, where there are such."""
    manifest = run.manifest
    changed = " with changes" if manifest.source.dirty else ""
    parts = [f"run {manifest.run}", f"commit {manifest.source.git_commit[:10]}{changed}"]
    if manifest.later_sessions:
        boxes = dict.fromkeys([manifest.box, *(session.box for session in manifest.later_sessions)])
        where = f" on {' and '.join(boxes)}" if len(boxes) > 1 else ""
        parts.append(f"{1 + len(manifest.later_sessions)} sessions{where}, see manifest.json")
    measured = len(manifest.cells) or len(run.records(AttentionRow))
    if manifest.planned_cells is not None and manifest.planned_cells > measured:
        parts.append(f"cut after {measured} of {manifest.planned_cells} cells")
    return " · ".join(parts)


def not_drawn(run: Run) -> str:
    """The INVALID cells in one line, or ''."""
    invalid = run.serving[run.serving["verdict"] != "VALID"]
    if invalid.empty:
        return ""
    styles = run_looks(run)
    keys = set(zip(invalid["system"], invalid["config"], strict=True))
    names = ", ".join(sorted(label(styles[key].name, key[1]) for key in keys))
    return (
        f"not drawn: {len(invalid)} INVALID cell{'s' if len(invalid) > 1 else ''} ({names}), see serving.csv"
    )
