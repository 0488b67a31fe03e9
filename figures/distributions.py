"""Distributions of TTFT, TPOT and gaps between events: a row a load, the lowest, middle and highest of each
kind where a run has many, and a curve a system in a configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from figures.axes import log_axis, span
from figures.ecdf import LEAST_MS, draw_ecdf, through
from figures.format import count
from figures.latency import MOST_LOADS
from figures.lines import KeyEntry, draw_key, key_height
from figures.page import Page
from figures.runs import Panel, Series, counted_requests, latencies, panels, valid_rows
from figures.style import MUTED
from harness.metrics import icl_ms
from harness.store import Run

TITLE_IN, PANEL_IN, TICKS_IN, AXIS_IN = 0.3, 1.2, 0.22, 0.28
LEFT_IN, PANEL_WIDTH_IN, GAP_IN = 0.66, 1.98, 0.24
MEASURES = (
    ("ttft_ms", "TTFT (ms)"),
    ("tpot_ms", "TPOT (ms)"),
    ("gap_ms", "gap between events (ms)"),
)


@dataclass(frozen=True)
class Drawn:
    """A series of a panel with its latencies in ms, sorted, by the names of MEASURES."""

    series: Series
    values: dict[str, np.ndarray]


def draw(run: Run) -> Figure | None:
    """The figure, or None for a run of so few loads that latency.py draws them all."""
    every = panels(run, valid_rows(run))
    if len(every) <= MOST_LOADS:
        return None
    shown = _measured(run, list(_chosen(every)))
    key = _key(shown)
    row_in = TITLE_IN + PANEL_IN + TICKS_IN
    height_in = key_height(key) + row_in * len(shown) + AXIS_IN
    page = Page(run, "Latency distributions", height_in, _notes(len(every), shown))
    draw_key(page, 0.06, key)
    limits = {name: span(_all_values(shown, name)) for name, _ in MEASURES}
    for number, (panel, drawn) in enumerate(shown):
        top_in = key_height(key) + row_in * number + TITLE_IN
        for place, (name, label) in enumerate(MEASURES):
            left_in = LEFT_IN + (PANEL_WIDTH_IN + GAP_IN) * place
            axes = page.axes(left_in, top_in, PANEL_WIDTH_IN, PANEL_IN)
            for each in drawn:
                draw_ecdf(axes, each.series.style, each.values[name])
            _finish(axes, limits[name])
            axes.tick_params(axis="y", labelleft=place == 0)
            axes.set_xlabel(label if number == len(shown) - 1 else "")
            if place == 0:
                axes.set_ylabel("share (%)")
                axes.set_title(f"{panel.load}, {panel.rows.iloc[0]['workload']}", fontsize=8.5)
        axes.set_title(panel.schedules, loc="right", fontsize=6.5, color=MUTED)
    return page.figure


def _chosen(every: list[Panel]) -> Iterator[Panel]:
    """The lowest, middle and highest load of each workload and shape, of those that most systems played."""
    groups: dict[tuple[str, str], list[Panel]] = {}
    for panel in every:
        first = panel.rows.iloc[0]
        groups.setdefault((first["workload"], first["load"]), []).append(panel)
    for group in groups.values():
        most = max(len(panel.series) for panel in group)
        full = [panel for panel in group if len(panel.series) == most]
        for place in sorted({0, len(full) // 2, len(full) - 1}):
            yield full[place]


def _measured(run: Run, chosen: list[Panel]) -> list[tuple[Panel, list[Drawn]]]:
    cells = {cell for panel in chosen for cell in panel.rows["cell"]}
    requests = counted_requests(run, cells)
    events = run.events[run.events["cell"].isin(cells)]
    gaps = {cell: icl_ms(requests[cell], own) for cell, own in events.groupby("cell", sort=False)}
    shown = []
    for panel in chosen:
        drawn = []
        for series in panel.series:
            found = latencies(run, series)
            own_gaps = np.concatenate([gaps.get(cell, np.empty(0)) for cell in series.rows["cell"]])
            values = {"ttft_ms": found.ttft_ms, "tpot_ms": found.tpot_ms, "gap_ms": np.sort(own_gaps)}
            drawn.append(Drawn(series, values))
        shown.append((panel, drawn))
    return shown


def _key(shown: list[tuple[Panel, list[Drawn]]]) -> list[KeyEntry]:
    """An entry a system and configuration, with its requests and gaps over the shown."""
    drawn: dict[str, list[Drawn]] = {}
    for _, column in shown:
        for each in column:
            drawn.setdefault(each.series.label, []).append(each)
    return [
        KeyEntry(
            name,
            found[0].series.style,
            f"n = {count(sum(each.values['ttft_ms'].size for each in found))} requests, "
            f"{count(sum(each.values['gap_ms'].size for each in found))} gaps",
        )
        for name, found in drawn.items()
    ]


def _notes(number: int, shown: list[tuple[Panel, list[Drawn]]]) -> list[str]:
    notes = [
        "Curves: share with at most this latency, over all repetitions; the mark is the median.",
        "TTFT: intended send to first token. TPOT: (last token − first event) / (tokens − tokens in it). "
        "Of the requests due in the window, and so are the gaps between events.",
        f"Shown: {len(shown)} of {number} loads, the lowest, middle and highest of each kind; n: over these.",
    ]
    stride = max(int(each) for panel, _ in shown for each in panel.rows["events_stride"])
    if stride > 1:
        notes.append(f"Gaps of one request in {stride} at the loads with the most events.")
    gaps = np.concatenate([each.values["gap_ms"] for _, drawn in shown for each in drawn])
    together = float((gaps < LEAST_MS).mean()) if gaps.size else 0.0
    if together > 0:
        notes.append(
            f"Gaps below {LEAST_MS:g} ms ({together:.1%}, events that came with one read) stand there."
        )
    return notes


def _all_values(shown: list[tuple[Panel, list[Drawn]]], name: str) -> np.ndarray:
    found = [through(each.values[name])[0] for _, drawn in shown for each in drawn]
    return np.concatenate([np.empty(0), *found])


def _finish(axes: Axes, limits: tuple[float, float]) -> None:
    log_axis(axes, "x", limits)
    axes.set_ylim(0, 1.02)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=""))
    axes.grid()
