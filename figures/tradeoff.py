"""Latency against throughput: a point a concurrency; a line further down or to the right is better."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures.axes import log_axis, span
from figures.charts import Chart, Line, closed_charts, left_out_note, repetitions
from figures.lines import INTERVAL, draw_key, key_height, limits_of
from figures.page import Page
from figures.spread import Spread, described
from figures.style import MUTED
from harness.store import Run

ACROSS = "output_tokens_per_s"
PANELS = (
    ("ttft_ms_p50", "median time to first token, TTFT (ms)"),
    ("tpot_ms_p50", "median time per output token, TPOT (ms)"),
)
TITLE_IN, PANEL_IN, AXIS_IN = 0.3, 2.35, 0.52
ROOM_FOR_NUMBERS = 0.05
LEFT_IN, PANEL_WIDTH_IN, GAP_IN = 0.72, 2.8, 0.72


def draw(run: Run) -> Figure | None:
    """The figure, or None without a workload at three concurrencies or more."""
    charts = [chart for chart in closed_charts(run) if all(chart.having(column) for column, _ in PANELS)]
    if not charts:
        return None
    heights = [TITLE_IN + key_height(chart.lines) + PANEL_IN + AXIS_IN for chart in charts]
    numbers = repetitions(spreads for chart in charts for _, spreads in chart.having(ACROSS))
    notes = [
        f"Closed loops, a point a concurrency (small numbers: requests in flight); {described(numbers)}.",
        "TTFT: intended send to first token. TPOT: (last token − first event) / (tokens − tokens in it). "
        "Throughput: tokens received in the window / its length.",
        left_out_note(charts, "in flight"),
    ]
    page = Page(run, "Latency against throughput", sum(heights), notes)
    for number, chart in enumerate(charts):
        _draw_chart(page, sum(heights[:number]), chart)
    return page.figure


def _draw_chart(page: Page, top_in: float, chart: Chart) -> None:
    panel_top_in = top_in + key_height(chart.lines) + TITLE_IN
    draw_key(page, top_in + 0.06, chart.lines)
    across = {line.label: line.spread(ACROSS) for line in chart.lines}
    for number, (column, label) in enumerate(PANELS):
        left_in = LEFT_IN + number * (PANEL_WIDTH_IN + GAP_IN)
        axes = page.axes(left_in, panel_top_in, PANEL_WIDTH_IN, PANEL_IN)
        shown = chart.having(column)
        log_axis(axes, "x", span(limits_of(list(across.values()))))
        low, high = span(limits_of([spreads for _, spreads in shown]))
        log_axis(axes, "y", (low / (high / low) ** ROOM_FOR_NUMBERS, high))
        axes.set_xlabel("output tokens per second (tokens/s)")
        axes.set_ylabel(label)
        axes.grid()
        for line, up in shown:
            _draw_path(axes, line, across[line.label], up)
        if shown:
            _number_points(axes, *_furthest(shown, across))
        if number == 0:
            axes.set_title(chart.title)


def _draw_path(axes: Axes, line: Line, across: dict[float, Spread], up: dict[float, Spread]) -> None:
    loads = [load for load in up if load in across]
    x, y = [across[load].mean for load in loads], [up[load].mean for load in loads]
    axes.plot(x, y, **line.style.line)
    for load in loads:
        if up[load].number > 1:
            axes.errorbar(
                across[load].mean, up[load].mean, xerr=_reach(across[load]), yerr=_reach(up[load]),
                fmt="none", ecolor=line.style.color, **INTERVAL,
            )  # fmt: skip
    axes.plot(x, y, linestyle="none", **line.style.mark)


def _reach(found: Spread) -> list[list[float]]:
    return [[max(0.0, found.mean - found.low)], [max(0.0, found.high - found.mean)]]


def _furthest(
    shown: list[tuple[Line, dict[float, Spread]]], across: dict[str, dict[float, Spread]]
) -> tuple[dict[float, Spread], dict[float, Spread]]:
    """The line of the highest throughput: its points are the least crowded from the right."""
    line, up = max(shown, key=lambda each: max(found.mean for found in across[each[0].label].values()))
    return across[line.label], up


def _number_points(axes: Axes, across: dict[float, Spread], up: dict[float, Spread]) -> None:
    for load in up:
        if load in across:
            axes.annotate(
                f"{load:g}", (across[load].mean, up[load].mean), (4, -4), textcoords="offset points",
                va="top", fontsize=6, color=MUTED,
            )  # fmt: skip
