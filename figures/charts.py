"""Lines over load: a workload at several concurrencies or rates, a line a system in a configuration.

In each repetition of a load all lines played the same schedule file; a repetition in which they did not is
left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from figures.format import count
from figures.runs import label, run_looks, schedules_agree, valid_rows
from figures.spread import Spread, of_ratios, of_values
from figures.style import SystemStyle
from harness.schema import KneeRow
from harness.store import Run

LEAST_LOADS = 3
"""Two closed loops are bars (throughput.py); lines begin here."""

OURS = "engine"
AMOUNT = re.compile(r",? *\d[\d.,]* (requests/s|in flight)| x[\d.]+|, \d+ left out")
"""What differs in words between the loads of a chart: their rate, a trace's speed and the rows left out."""


@dataclass(frozen=True)
class Line:
    """A system in a configuration: its repetitions at each load, by rising load."""

    system: str
    config: str
    style: SystemStyle
    label: str
    at: dict[float, pd.DataFrame]

    @property
    def numbers(self) -> str:
        """Requests and repetitions behind the line."""
        requests = sum(int(rows["requests"].sum()) for rows in self.at.values())
        repetitions = sorted({len(rows) for rows in self.at.values()})
        of = f"{repetitions[0]}" if len(repetitions) == 1 else f"{repetitions[0]}–{repetitions[-1]}"
        return f"n = {count(requests)} requests, {of} rep."

    def spread(self, column: str) -> dict[float, Spread]:
        """A column of positive numbers at each load at which every repetition has it."""
        found = {load: rows[column].dropna() for load, rows in self.at.items()}
        return {
            load: of_values(values)
            for load, values in found.items()
            if len(values) == len(self.at[load]) and (values > 0).all() and (values != float("inf")).all()
        }


@dataclass(frozen=True)
class Chart:
    """Lines of one workload under one shape of load. `search` is the search for a knee that chose the rates,
    or ''; `left_out` has (load, repetition)."""

    workload: str
    shape: str
    search: str
    rows: pd.DataFrame
    lines: list[Line]
    left_out: list[tuple[float, int]]

    @property
    def loads(self) -> list[float]:
        return sorted({load for line in self.lines for load in line.at})

    @property
    def title(self) -> str:
        searched = f", rates of search {self.search}" if self.search else ""
        return f"{self.shape}, {self.workload}{searched}"

    @property
    def ours(self) -> list[Line]:
        return [line for line in self.lines if line.system == OURS]

    @property
    def peers(self) -> list[Line]:
        return [line for line in self.lines if line.system != OURS]

    @property
    def base(self) -> Line | None:
        """Of a chart of one system in several configurations, the one that the others are compared with."""
        if len(self.lines) < 2 or len({line.system for line in self.lines}) > 1:
            return None
        return next((line for line in self.lines if line.config == "default"), self.lines[0])

    def having(self, column: str) -> list[tuple[Line, dict[float, Spread]]]:
        """The lines that have a column, with its spreads."""
        found = [(line, line.spread(column)) for line in self.lines]
        return [(line, spreads) for line, spreads in found if spreads]


def closed_charts(run: Run) -> list[Chart]:
    """Closed loops by concurrency, where a workload has LEAST_LOADS of them."""
    rows = valid_rows(run)
    return _charts(run, rows[rows["concurrency"].notna()], "concurrency", LEAST_LOADS)


def open_charts(run: Run) -> list[Chart]:
    """Arrivals by rate, where a workload has two rates of the same shape; those of a search by themselves."""
    rows = valid_rows(run)
    return _charts(run, rows[rows["concurrency"].isna() & rows["rate_rps"].notna()], "rate_rps", 2)


def _charts(run: Run, rows: pd.DataFrame, by: str, least: int) -> list[Chart]:
    searches = list(dict.fromkeys(row.search for row in run.records(KneeRow)))
    keyed = rows.assign(
        workload=rows["workload"].str.replace(AMOUNT, "", regex=True),
        shape=[shape_of(*load) for load in zip(rows["load"], rows["load_label"], strict=True)],
        search=[_search(name, searches) for name in rows["load_name"]],
    ).sort_values("position")
    groups = keyed.groupby(["workload", "shape", "search"], sort=False)
    charts = [_chart(run, *key, group, by) for key, group in groups]
    return [chart for chart in charts if len(chart.loads) >= least]


def shape_of(load: str, load_label: str) -> str:
    """The load in words without its amount."""
    words = AMOUNT.sub("", load_label)
    if words in ("", "closed"):
        words = "closed loops" if load == "closed" else f"{load} arrivals"
    return words[0].upper() + words[1:]


def _search(load_name: str, searches: list[str]) -> str:
    """The search that a load was made by: they are called search-12.5rps."""
    return next(
        (search for search in searches if load_name.startswith(f"{search}-") and load_name.endswith("rps")),
        "",
    )


def _chart(run: Run, workload: str, shape: str, search: str, rows: pd.DataFrame, by: str) -> Chart:
    agree = schedules_agree(rows, [by])
    differing = rows[~agree][[by, "repetition"]].drop_duplicates().sort_values([by, "repetition"])
    left_out = [(float(load), int(number)) for load, number in differing.itertuples(index=False)]
    kept = rows[agree]
    styles = run_looks(run)
    lines = []
    for (system, config), own in kept.groupby(["system", "config"], sort=False):
        style = styles[system, config]
        at = {float(load): points for load, points in own.groupby(by)}
        lines.append(Line(system, config, style, label(style.name, config), at))
    return Chart(workload, shape, search, kept, lines, left_out)


def repetitions(shown: Iterable[dict[float, Spread]]) -> list[int]:
    """How many each mark stands for."""
    return [spread.number for spreads in shown for spread in spreads.values()]


@dataclass(frozen=True)
class Compared:
    """A line against the best of its rivals at one load."""

    rival: Line
    ratio: Spread


Comparison = list[tuple[Line, dict[float, Compared]]]


def against_best(lines: Sequence[Line], rivals: Sequence[Line], column: str) -> Comparison:
    """Each line with its ratio to that of the rivals which has the highest mean at each load.

    Pairs played the same schedule file in the same repetition. Nothing where the line or all rivals miss.
    """
    means = {rival.label: rival.spread(column) for rival in rivals}
    compared = []
    for line in lines:
        found = {}
        for load, rows in line.at.items():
            there = [rival for rival in rivals if load in means[rival.label]]
            if not there:
                continue
            best = max(there, key=lambda rival: means[rival.label][load].mean)
            pairs = _pairs(best.at[load], rows, column)
            if pairs:
                found[load] = Compared(best, of_ratios(pairs))
        if found:
            compared.append((line, found))
    return compared


def _pairs(base: pd.DataFrame, other: pd.DataFrame, column: str) -> list[tuple[float, float]]:
    pairs = base.merge(other, on=["schedule_sha256", "repetition", "session"], suffixes=("_base", "_other"))
    found = pairs[[f"{column}_base", f"{column}_other"]].dropna().to_numpy(dtype=float)
    return [(float(a), float(b)) for a, b in found if a > 0 and b > 0]


def left_out_note(charts: list[Chart], unit: str) -> str:
    """The repetitions that are left out, or ''."""
    points = sorted({point for chart in charts for point in chart.left_out})
    if not points:
        return ""
    named = "; ".join(f"{load:g} {unit}, repetition {number}" for load, number in points)
    return f"left out, for the systems played different schedules: {named}"
