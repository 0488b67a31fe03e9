"""Output throughput by system under closed loops: one panel a load, one bar a system."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from figures.charts import closed_charts
from figures.format import count, three_digits
from figures.page import LEFT_IN, Page
from figures.runs import Panel, Series, panels, valid_rows
from figures.style import INK, MUTED, SYSTEMS, WIDTH_IN
from harness.store import Run

BAR_IN = 0.3
TITLE_IN = 0.3
AXIS_IN = 0.5
LABEL_IN = 1.3
CHARACTER_IN = 0.064
RIGHT_IN = 0.25
ROOM_FOR_VALUES, VALUES_IN = 1.7, 2.32


def draw(run: Run) -> Figure | None:
    """The figure, or None when no closed loop of the run is VALID that scaling.py does not draw."""
    rows = valid_rows(run)
    closed = rows[rows["load"] == "closed"]
    in_lines = {cell for chart in closed_charts(run) for cell in chart.rows["cell"]}
    shown = panels(run, closed[~closed["cell"].isin(in_lines)])
    if not shown:
        return None
    heights = [TITLE_IN + BAR_IN * len(panel.series) + AXIS_IN for panel in shown]
    notes = ["Bars: tokens received in the window / its length."]
    if any(len(series.rows) > 1 for panel in shown for series in panel.series):
        notes = ["Bars: tokens received in the window / its length, mean of the runs; rings: each run."]
    longest = max(len(series.label) for panel in shown for series in panel.series)
    label_in = max(LABEL_IN, LEFT_IN + CHARACTER_IN * longest)
    page = Page(run, "Output throughput", sum(heights), notes)
    highest = float(max(panel.rows["output_tokens_per_s"].max() for panel in shown))
    for number, panel in enumerate(shown):
        height_in = BAR_IN * len(panel.series)
        width_in = WIDTH_IN - label_in - RIGHT_IN
        axes = page.axes(label_in, sum(heights[:number]) + TITLE_IN, width_in, height_in)
        _draw_panel(axes, panel, highest, max(ROOM_FOR_VALUES, width_in / (width_in - VALUES_IN)))
    return page.figure


def _draw_panel(axes: Axes, panel: Panel, highest: float, room: float) -> None:
    axes.set_title(panel.load)
    axes.set_title(panel.schedules, loc="right", fontsize=6.5, color=MUTED)
    for place, series in enumerate(panel.series):
        _draw_bar(axes, place, series)
    axes.set_xlim(0, room * highest)
    axes.set_ylim(len(panel.series) - 0.5, -0.5)
    axes.set_yticks(range(len(panel.series)), [series.label for series in panel.series])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.spines["bottom"].set_bounds(0, highest)
    axes.set_xticks([tick for tick in MaxNLocator(5).tick_values(0, highest) if tick <= highest])
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.set_xlabel("output tokens per second (tokens/s)", loc="left")


def _draw_bar(axes: Axes, place: int, series: Series) -> None:
    values = series.rows["output_tokens_per_s"]
    mean = float(values.mean())
    axes.barh(place, mean, height=0.62, color=SYSTEMS[series.system].color)
    if len(values) > 1:
        axes.plot(
            values, [place] * len(values), "o", markersize=3.5, markerfacecolor="white", markeredgecolor=INK
        )
    end = float(values.max())
    measured = f"n = {count(series.requests)} requests, {series.rows['window_s'].sum():g} s"
    if len(values) > 1:
        measured += f", {len(values)} runs"
    value = axes.annotate(
        three_digits(mean),
        (end, place),
        (5, 0),
        textcoords="offset points",
        va="center",
        fontweight="bold",
    )
    axes.annotate(
        measured, (1, 0.5), (6, 0), xycoords=value, textcoords="offset points", va="center", color=MUTED
    )
