"""Ratios between two sides, systems of one run or two runs, with intervals.

A pair is one repetition of one load on both sides: the same schedule, and in one run neighbours in its order.
Each load has an interval over its repetitions (harness.stats). Where a load has fewer than MIN_PAIRS pairs
there is a pooled one as well, over all pairs of all loads: for the mean log ratio of these loads, with the
spread between loads counted as noise. Repetitions are taken as independent, and an interval speaks of the
runs it comes from: what changes from one start of a server, or one machine, to the next shows only between
runs.

Noise: at 1 % a cell, log-normal, six pairs tell a difference of 5 % apart practically always, at 2 % in about
15 of 16 comparisons (tests/harness/test_stats.py simulates both).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

import pandas as pd

from harness.errors import BadInput
from harness.stats import MIN_PAIRS, Drift, Interval, drift, ratio_interval

Better = Literal["higher", "lower"]
METRICS: dict[str, Better] = {
    **dict.fromkeys(
        ("output_tokens_per_s", "requests_per_s", "goodput_rps", "attainment", "roofline_share"), "higher"
    ),
    **{
        f"{latency}_ms_{point}": "lower"
        for latency in ("ttft", "tpot", "e2e", "icl")
        for point in ("p50", "p99")
    },
    **dict.fromkeys(("ttft_from_send_ms_p50", "joules_per_token", "power_w_mean", "startup_s"), "lower"),
}
"""What can be compared: columns of serving.csv, and which way is better."""

SETTINGS = (
    "box", "gpu", "num_gpus", "system_version", "weights", "dtype", "tensor_parallel", "replicas",
    "speculation", "prefix_cache", "memory_share", "git_commit", "dirty", "lock_sha256",
)  # fmt: skip
HASH_DIGITS = 12


@dataclass(frozen=True)
class Side:
    """Rows of serving.csv of one run; of one SYSTEM[:CONFIG] where `system` is given. `requests`: the run's
    requests.csv.gz, where the texts of both sides are to be compared, too."""

    run: str
    system: str | None
    rows: pd.DataFrame
    requests: pd.DataFrame | None = None

    @property
    def label(self) -> str:
        return self.run if self.system is None else f"{self.run}/{self.system}"


@dataclass(frozen=True)
class Pair:
    """One repetition of a load on both sides: values of the metric, and places in the order of the run."""

    repetition: int
    place_a: int
    place_b: int
    a: float
    b: float
    cells: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class LoadRatio:
    """One load. `a`, `b` and `ratio` = b / a are geometric means over pairs, None without any.

    `interval`: None below two pairs. `lost`: A has it, B tried, and no repetition of B can be used.
    """

    load: str
    pairs: tuple[Pair, ...]
    lost: bool

    @property
    def a(self) -> float | None:
        return _geometric_mean([pair.a for pair in self.pairs])

    @property
    def b(self) -> float | None:
        return _geometric_mean([pair.b for pair in self.pairs])

    @property
    def ratio(self) -> float | None:
        return self.b / self.a if self.pairs else None

    @property
    def interval(self) -> Interval | None:
        return _interval(self.pairs)


@dataclass(frozen=True)
class Comparison:
    """One side against another by one metric. `left_out`: rows without part in it and why, a line each.

    `drifts`: by run. `differs`: settings that are not the same on both sides.
    """

    a: str
    b: str
    metric: str
    better: Better
    one_run: bool
    loads: tuple[LoadRatio, ...]
    left_out: tuple[str, ...]
    drifts: dict[str, Drift]
    differs: tuple[str, ...]

    @property
    def pairs(self) -> list[Pair]:
        return [pair for load in self.loads for pair in load.pairs]

    @property
    def pooled(self) -> Interval | None:
        """Over all pairs of all loads; None where every load has pairs enough, and for a single load."""
        paired = [load for load in self.loads if load.pairs]
        few = any(len(load.pairs) < MIN_PAIRS for load in paired)
        return _interval(self.pairs) if few and len(paired) > 1 else None

    @property
    def intervals(self) -> dict[str, Interval]:
        """Intervals of loads, by their names."""
        return {load.load: load.interval for load in self.loads if load.interval is not None}

    @property
    def pooled_name(self) -> str:
        return f"pooled, {sum(1 for load in self.loads if load.pairs)} loads"

    @property
    def mean_lag(self) -> float:
        """Places that B stands behind A on average, in one run: at 0 a linear drift cancels."""
        return (
            fmean(pair.place_b - pair.place_a for pair in self.pairs) if self.one_run and self.pairs else 0.0
        )

    def verdict(self, found: Interval | None) -> str:
        if found is None:
            return "no interval"
        if found.low <= 1 <= found.high:
            return "not told apart"
        return "B better" if (found.low > 1) == (self.better == "higher") else "B worse"


def compare(a: Side, b: Side, metric: str = "output_tokens_per_s") -> list[Comparison]:
    """B against A: of two named systems, or of each system and configuration that both runs have.

    Raises BadInput for an unknown metric or system, a system on one side only, the same rows twice, and when
    nothing can be compared.
    """
    if metric not in METRICS:
        raise BadInput(f"no metric {metric!r}; there are: {', '.join(METRICS)}")
    if (a.system is None) != (b.system is None):
        raise BadInput(f"{a.label} against {b.label}: name a system on both sides, or on neither")
    if a.label == b.label:
        raise BadInput(f"{a.label} against itself: the same rows have the ratio 1")
    if a.system is not None:
        systems = [(a.system, b.system)]
    else:
        systems = [(name, name) for name in _systems(a.rows) if name in _systems(b.rows)]
    found = [_compare_systems(a, b, name_a, str(name_b), metric) for name_a, name_b in systems]
    if not any(comparison.pairs or any(load.lost for load in comparison.loads) for comparison in found):
        reasons = [line for comparison in found for line in comparison.left_out] or ["no system in common"]
        raise BadInput(f"nothing to compare between {a.label} and {b.label}: {'; '.join(reasons)}")
    return found


def unmatched(a: Side, b: Side) -> list[str]:
    """Systems that only one of two whole runs has, a line each."""
    if a.system is not None:
        return []
    in_a, in_b = _systems(a.rows), _systems(b.rows)
    return [f"{name}: only A has it" for name in in_a if name not in in_b] + [
        f"{name}: only B has it" for name in in_b if name not in in_a
    ]


def _label(row: pd.Series) -> str:
    return row["system"] if row["config"] == "default" else f"{row['system']}:{row['config']}"


def _systems(rows: pd.DataFrame) -> list[str]:
    return list(dict.fromkeys(_label(row) for _, row in rows.iterrows()))


def _load(row: pd.Series) -> str:
    """Name of the load; of rows older than that column, what it is."""
    if row["load_name"]:
        return row["load_name"]
    what = f"C={row['concurrency']}" if pd.notna(row["concurrency"]) else f"{row['rate_rps']:g}/s"
    return f"{row['load']} {what}"


Key = tuple[str, int]


def _rows_of(side: Side, system: str) -> dict[Key, pd.Series]:
    """Rows of one system by load and repetition, in the order of the run."""
    found: dict[Key, pd.Series] = {}
    for _, row in side.rows.sort_values("position").iterrows():
        if _label(row) == system:
            key = _load(row), int(row["repetition"])
            if key in found:
                raise BadInput(f"{side.run} has two rows of {system}, {key[0]}, repetition {key[1]}")
            found[key] = row
    if not found:
        raise BadInput(f"no system {system!r} in {side.run}; there are: {', '.join(_systems(side.rows))}")
    return found


def _compare_systems(a: Side, b: Side, system_a: str, system_b: str, metric: str) -> Comparison:
    rows_a, rows_b = _rows_of(a, system_a), _rows_of(b, system_b)
    one_run = a.run == b.run
    pairs: dict[str, list[Pair]] = {}
    lost: set[str] = set()
    left_out = _on_one_side(rows_a, rows_b)
    for load, repetition in (key for key in rows_a if key in rows_b):
        row_a, row_b = rows_a[load, repetition], rows_b[load, repetition]
        of_load = pairs.setdefault(load, [])
        where = f"{load}, repetition {repetition}"
        unlike = _unlike(row_a, row_b, one_run)
        faults = {side: _fault(row, metric) for side, row in (("A", row_a), ("B", row_b))}
        if unlike:
            left_out.append(f"{where}: {unlike}")
        elif any(faults.values()):
            left_out += [f"{where}: {side} {fault}" for side, fault in faults.items() if fault]
            if not faults["A"] and _failed(row_b, metric):
                lost.add(load)
        else:
            places = int(row_a["position"]), int(row_b["position"])
            values = float(row_a[metric]), float(row_b[metric])
            of_load.append(Pair(repetition, *places, *values, (row_a["cell"], row_b["cell"])))
    loads = tuple(LoadRatio(load, tuple(of), not of and load in lost) for load, of in pairs.items())
    return Comparison(
        a=f"{a.run}/{system_a}",
        b=f"{b.run}/{system_b}",
        metric=metric,
        better=METRICS[metric],
        one_run=one_run,
        loads=loads,
        left_out=tuple(left_out),
        drifts=_drifts(a.run, b.run, loads),
        differs=_differences(list(rows_a.values()), list(rows_b.values())),
    )


def _on_one_side(rows_a: dict[Key, pd.Series], rows_b: dict[Key, pd.Series]) -> list[str]:
    """Loads, and repetitions of loads of both, that only one side has."""
    lines = []
    for name, own, other in (("A", rows_a, rows_b), ("B", rows_b, rows_a)):
        others = {load for load, _ in other}
        lines += [
            f"{load}: only {name} has it"
            for load in dict.fromkeys(load for load, _ in own)
            if load not in others
        ]
        lines += [
            f"{load}, repetition {repetition}: only {name} has it"
            for load, repetition in own
            if load in others and (load, repetition) not in other
        ]
    return lines


def _unlike(row_a: pd.Series, row_b: pd.Series, one_run: bool) -> str:
    """Why two rows of one name are no pair, or ''."""
    if row_a["model"] != row_b["model"]:
        return f"models differ: {row_a['model']} and {row_b['model']}"
    if row_a["schedule_sha256"] != row_b["schedule_sha256"]:
        return f"schedules differ: {row_a['schedule_sha256'][:8]} and {row_b['schedule_sha256'][:8]}"
    if one_run and row_a["session"] != row_b["session"]:
        return f"measured in sessions {row_a['session']} and {row_b['session']} of the run: no neighbours"
    return ""


def _fault(row: pd.Series, metric: str) -> str:
    """Why a row cannot be used, or ''."""
    if row["verdict"] != "VALID":
        return f"is INVALID: {row['reasons']}"
    if pd.isna(row[metric]):
        return f"has no {metric}"
    return "" if 0 < row[metric] < math.inf else f"has {metric} {row[metric]:g}: no ratio"


def _failed(row: pd.Series, metric: str) -> bool:
    """Whether a row that cannot be used says that its system could not do it. An empty value says nothing: a
    p99 is empty where there are few requests."""
    return row["verdict"] != "VALID" or pd.notna(row[metric])


def _differences(rows_a: Sequence[pd.Series], rows_b: Sequence[pd.Series]) -> tuple[str, ...]:
    values = {
        name: [{str(row[name]) for row in rows if pd.notna(row[name])} for rows in (rows_a, rows_b)]
        for name in SETTINGS
    }
    return tuple(
        f"{name} {_listed(name, in_a)} / {_listed(name, in_b)}"
        for name, (in_a, in_b) in values.items()
        if in_a != in_b
    )


def _listed(name: str, values: set[str]) -> str:
    shown = HASH_DIGITS if name in ("git_commit", "lock_sha256") else None
    return ", ".join(value[:shown] for value in sorted(values)) or "-"


def _drifts(run_a: str, run_b: str, loads: Sequence[LoadRatio]) -> dict[str, Drift]:
    """Drift of each run. In one run a pair is one value: both played the same prompts, at about one time."""
    if run_a == run_b:
        both = [[((p.place_a + p.place_b) / 2, math.sqrt(p.a * p.b)) for p in load.pairs] for load in loads]
        found = {run_a: drift(both)}
    else:
        found = {
            run_a: drift([[(p.place_a, p.a) for p in load.pairs] for load in loads]),
            run_b: drift([[(p.place_b, p.b) for p in load.pairs] for load in loads]),
        }
    return {run: trend for run, trend in found.items() if trend is not None}


def _geometric_mean(values: Sequence[float]) -> float | None:
    return math.exp(fmean(math.log(value) for value in values)) if values else None


def _interval(pairs: Sequence[Pair]) -> Interval | None:
    return ratio_interval([(pair.a, pair.b) for pair in pairs]) if len(pairs) > 1 else None
