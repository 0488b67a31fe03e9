"""Distributions of TTFT and TPOT of one or two loads: a row a load, a curve a system, medians beside them."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from figures.axes import log_axis, span
from figures.ecdf import draw_ecdf
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
MOST_LOADS = 2
MOST_SERIES = 8
KEY_TOP_IN, KEY_ROW_IN = 0.46, 0.34


def draw(run: Run) -> Figure | None:
    """The figure, or None when no row of the run is VALID; distributions.py draws more than two loads.

    More than MOST_SERIES curves cannot be told apart: such a run has its throughputs alone.
    """
    found = panels(run, valid_rows(run))
    if not 0 < len(found) <= MOST_LOADS or max(len(panel.series) for panel in found) > MOST_SERIES:
        return None
    shown = [(panel, [(series, latencies(run, series)) for series in panel.series]) for panel in found]
    most = max(len(panel.series) for panel in found)
    panel_in = max(PANEL_IN, KEY_TOP_IN + KEY_ROW_IN * (most - 0.5))
    row_in = TITLE_IN + panel_in + AXIS_IN
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
        ttft = page.axes(TTFT_LEFT_IN, top_in, CURVE_IN, panel_in)
        tpot = page.axes(TPOT_LEFT_IN, top_in, CURVE_IN, panel_in)
        for series, found in drawn:
            draw_ecdf(ttft, series.style, found.ttft_ms)
            draw_ecdf(tpot, series.style, found.tpot_ms)
        _finish(ttft, "time to first token, TTFT (ms)", ttft_span)
        _finish(tpot, "time per output token, TPOT (ms)", tpot_span)
        ttft.set_title(panel.load)
        ttft.set_ylabel("share of requests (%)")
        tpot.tick_params(axis="y", labelleft=False)
        _draw_key(page.axes(KEY_LEFT_IN, top_in, KEY_IN, panel_in), panel_in, panel, drawn)
    return page.figure


def _finish(axes: Axes, label: str, limits: tuple[float, float]) -> None:
    log_axis(axes, "x", limits)
    axes.set_ylim(0, 1.02)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=""))
    axes.grid()
    axes.set_xlabel(label)


def _draw_key(axes: Axes, height_in: float, panel: Panel, drawn: list[tuple[Series, Latencies]]) -> None:
    """Names, looks, medians and numbers of requests, as a small table."""
    axes.set_axis_off()
    axes.set_xlim(0, KEY_IN)
    axes.set_ylim(height_in, 0)
    small = {"fontsize": 6.5, "color": MUTED}
    axes.set_title(panel.schedules, loc="right", **small)
    axes.text(1.3, 0.12, "median (ms)", ha="center", va="center", **small)
    for x, heading in ((1.28, "TTFT"), (KEY_IN, "TPOT")):
        axes.text(x, 0.26, heading, ha="right", va="center", **small)
    for number, (series, found) in enumerate(drawn):
        y = KEY_TOP_IN + KEY_ROW_IN * number
        axes.plot([0, 0.3], [y, y], **series.style.line)
        axes.plot(0.15, y, **series.style.mark)
        axes.text(0.38, y, series.style.name, va="center", fontweight="bold", fontsize=7.5)
        configuration = "" if series.is_default else f"{series.config.replace('_', ' ')}, "
        axes.text(0.38, y + 0.14, f"{configuration}n = {counts(found)}", va="center", **small)
        for x, values in ((1.28, found.ttft_ms), (KEY_IN, found.tpot_ms)):
            axes.text(x, y, three_digits(percentile(values, 50)), ha="right", va="center", fontsize=7.5)


def counts(found: Latencies) -> str:
    """Requests behind the curves; two numbers where TPOT is undefined for some."""
    ttft, tpot = count(found.ttft_ms.size), count(found.tpot_ms.size)
    return ttft if ttft == tpot else f"{ttft} and {tpot}"
