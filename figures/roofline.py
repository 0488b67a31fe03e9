"""How much of what the GPU allows a system reaches, by requests in flight."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from figures.axes import load_axis
from figures.charts import Chart, closed_charts, left_out_note, repetitions
from figures.lines import IN_FLIGHT, LABEL_IN, draw_line, label_ends, limits_of
from figures.page import Page
from figures.spread import described
from harness.store import Run

COLUMN = "roofline_share"
TITLE_IN, AXIS_IN, LEAST_PANEL_IN = 0.3, 0.52, 2.5
LEFT_IN, WIDTH_IN = 0.72, 4.5


def draw(run: Run) -> Figure | None:
    """The figure, or None where the rows of no workload at three concurrencies have a share."""
    charts = [chart for chart in closed_charts(run) if chart.having(COLUMN)]
    if not charts:
        return None
    heights = [max(LEAST_PANEL_IN, LABEL_IN * len(chart.lines)) + TITLE_IN + AXIS_IN for chart in charts]
    numbers = repetitions(spreads for chart in charts for _, spreads in chart.having(COLUMN))
    notes = [
        f"Closed loops: output tokens/s / what the GPU's memory bandwidth and matmul rate allow for the same "
        f"lengths; {described(numbers)}.",
        "Allowed: as harness/roofline.py computes it from the model's shape and the GPU's measured rates.",
        left_out_note(charts, "in flight"),
    ]
    page = Page(run, "Share of what the GPU allows", sum(heights), notes)
    for number, chart in enumerate(charts):
        _draw_chart(page, sum(heights[:number]) + TITLE_IN, heights[number] - TITLE_IN - AXIS_IN, chart)
    return page.figure


def _draw_chart(page: Page, top_in: float, height_in: float, chart: Chart) -> None:
    axes = page.axes(LEFT_IN, top_in, WIDTH_IN, height_in)
    shown = chart.having(COLUMN)
    axes.set_title(chart.title)
    axes.set_ylim(0, 1.08 * float(limits_of([spreads for _, spreads in shown]).max()))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g}")
    axes.set_ylabel("share of the roofline (%)")
    load_axis(axes, chart.loads, WIDTH_IN, IN_FLIGHT)
    axes.grid()
    for line, spreads in shown:
        draw_line(axes, line.style, spreads)
    label_ends(axes, height_in, [(line, max(spreads), spreads[max(spreads)].mean) for line, spreads in shown])
