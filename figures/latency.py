"""Distributions of TTFT and TPOT: one row a schedule, one curve a system, and their medians beside them."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter, StrMethodFormatter

from figures.format import count, three_digits
from figures.page import Page
from figures.runs import Latencies, Panel, Series, latencies, panels, valid_rows
from figures.style import MUTED
from harness.metrics import percentile
from harness.store import Run

PANEL_IN = 1.55
TITLE_IN = 0.3
AXIS_IN = 0.5
TTFT_LEFT_IN, TPOT_LEFT_IN, KEY_LEFT_IN = 0.62, 2.98, 5.3
CURVE_IN, KEY_IN = 2.1, 1.78
TICK_STEPS = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7), tuple(np.arange(10, 100, 2) / 10))


def draw(run: Run) -> Figure | None:
    """The figure, or None when no row of the run is VALID."""
    shown = [
        (panel, [(series, latencies(run, series)) for series in panel.series])
        for panel in panels(valid_rows(run))
    ]
    if not shown:
        return None
    row_in = TITLE_IN + PANEL_IN + AXIS_IN
    notes = [
        "Curves: share of the requests due in the window with at most this latency; the mark is the median.",
        "TTFT: intended send to first token. TPOT: (last token − first event) / (tokens − tokens in it).",
    ]
    page = Page(run, "Latency distributions", row_in * len(shown), notes)
    everything = [found for _, drawn in shown for _, found in drawn]
    ttft_span = span(np.concatenate([found.ttft_ms for found in everything]))
    tpot_span = span(np.concatenate([found.tpot_ms for found in everything]))
    for number, (panel, drawn) in enumerate(shown):
        top_in = row_in * number + TITLE_IN
        ttft = page.axes(TTFT_LEFT_IN, top_in, CURVE_IN, PANEL_IN)
        tpot = page.axes(TPOT_LEFT_IN, top_in, CURVE_IN, PANEL_IN)
        for series, found in drawn:
            _draw_curve(ttft, series, found.ttft_ms)
            _draw_curve(tpot, series, found.tpot_ms)
        _finish(ttft, "time to first token, TTFT (ms)", ttft_span)
        _finish(tpot, "time per output token, TPOT (ms)", tpot_span)
        ttft.set_title(panel.load)
        ttft.set_ylabel("share of requests (%)")
        tpot.tick_params(axis="y", labelleft=False)
        _draw_key(page.axes(KEY_LEFT_IN, top_in, KEY_IN, PANEL_IN), panel, drawn)
    return page.figure


def _draw_curve(axes: Axes, series: Series, values: np.ndarray) -> None:
    if values.size == 0:
        return
    share = np.arange(values.size + 1) / values.size
    axes.step(np.concatenate([values[:1], values]), share, where="post", **series.style.line)
    axes.plot(percentile(values, 50), 0.5, **series.style.mark)


def _finish(axes: Axes, label: str, limits: tuple[float, float]) -> None:
    axes.set_xscale("log")
    axes.set_xlim(limits)
    axes.xaxis.set_major_locator(FixedLocator(log_ticks(*limits)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.set_ylim(0, 1.02)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=""))
    axes.grid()
    axes.set_xlabel(label)


def _draw_key(axes: Axes, panel: Panel, drawn: list[tuple[Series, Latencies]]) -> None:
    """Names, looks, medians and numbers of requests, as a small table."""
    axes.set_axis_off()
    axes.set_xlim(0, KEY_IN)
    axes.set_ylim(PANEL_IN, 0)
    small = {"fontsize": 6.5, "color": MUTED}
    axes.set_title(f"schedule {panel.schedule_sha256[:12]}", loc="right", **small)
    axes.text(1.3, 0.12, "median (ms)", ha="center", va="center", **small)
    for x, heading in ((1.28, "TTFT"), (KEY_IN, "TPOT")):
        axes.text(x, 0.26, heading, ha="right", va="center", **small)
    for number, (series, found) in enumerate(drawn):
        y = 0.46 + 0.34 * number
        axes.plot([0, 0.3], [y, y], **series.style.line)
        axes.plot(0.15, y, **series.style.mark)
        axes.text(0.38, y, series.style.name, va="center", fontweight="bold", fontsize=7.5)
        configuration = "" if series.is_default else f"{series.config}, "
        axes.text(0.38, y + 0.14, f"{configuration}n = {counts(found)}", va="center", **small)
        for x, values in ((1.28, found.ttft_ms), (KEY_IN, found.tpot_ms)):
            axes.text(x, y, three_digits(percentile(values, 50)), ha="right", va="center", fontsize=7.5)


def counts(found: Latencies) -> str:
    """Requests behind the curves; two numbers where TPOT is undefined for some."""
    ttft, tpot = count(found.ttft_ms.size), count(found.tpot_ms.size)
    return ttft if ttft == tpot else f"{ttft} and {tpot}"


def span(values: np.ndarray) -> tuple[float, float]:
    """Limits of a logarithmic axis with a little room around all values."""
    if values.size == 0:
        return 1, 10
    room = max(1.05, (float(values.max()) / float(values.min())) ** 0.05)
    return float(values.min()) / room, float(values.max()) * room


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers from low to high: the coarsest choice that has three or more, else the finest."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    for steps in TICK_STEPS:
        rounded = [round(step * 10.0**decade, 9) for decade in decades for step in steps]
        ticks = [tick for tick in rounded if low <= tick <= high]
        if len(ticks) >= 3:
            break
    return ticks
