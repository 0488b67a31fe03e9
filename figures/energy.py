"""Energy of an output token, and what a million of them cost, by requests in flight."""

from __future__ import annotations

from dataclasses import replace

from matplotlib.figure import Figure

from figures.axes import load_axis, log_axis, span
from figures.charts import Chart, Line, closed_charts, left_out_note, repetitions
from figures.lines import IN_FLIGHT, draw_key, draw_line, key_height, limits_of
from figures.page import Page
from figures.prices import Price, price_of
from figures.spread import Spread, described
from harness.store import Run

COLUMN = "joules_per_token"
TITLE_IN, PANEL_IN, AXIS_IN = 0.3, 2.1, 0.52
LEFT_IN, PANEL_WIDTH_IN, GAP_IN = 0.72, 2.8, 0.72


def draw(run: Run) -> Figure | None:
    """The figure, or None where the rows of no workload at three concurrencies have an energy."""
    charts = [chart for chart in closed_charts(run) if chart.having(COLUMN)]
    if not charts:
        return None
    gpus = run.manifest.hardware.gpus
    price = price_of(gpus[0].name) if gpus else None
    heights = [TITLE_IN + key_height(chart.lines) + PANEL_IN + AXIS_IN for chart in charts]
    numbers = repetitions(spreads for chart in charts for _, spreads in chart.having(COLUMN))
    page = Page(run, "Energy and cost", sum(heights), _notes(charts, numbers, price))
    for number, chart in enumerate(charts):
        _draw_chart(page, sum(heights[:number]), chart, price)
    return page.figure


def _notes(charts: list[Chart], numbers: list[int], price: Price | None) -> list[str]:
    notes = [
        "Energy: the driver's counter of the GPUs over the window / output tokens in it, without CPU and "
        f"cooling; {described(numbers)}.",
    ]
    if price is not None:
        notes.append(
            "Cost: price of the GPUs / output tokens per hour at this load, at "
            f"${price.usd_per_gpu_hour:.2f} a GPU hour ({price.seller}, {price.kind}, "
            f"{price.date}; prices.toml)."
        )
    return [*notes, left_out_note(charts, "in flight")]


def _draw_chart(page: Page, top_in: float, chart: Chart, price: Price | None) -> None:
    draw_key(page, top_in + 0.06, chart.lines)
    panel_top_in = top_in + key_height(chart.lines) + TITLE_IN
    shown = [(chart.having(COLUMN), "energy per output token (J/token)")]
    if price is not None:
        costs = [(line, _cost(line, price)) for line in chart.lines]
        shown.append((costs, "cost of output (US$ / 10⁶ tokens)"))
    for number, (lines, label) in enumerate(shown):
        left_in = LEFT_IN + number * (PANEL_WIDTH_IN + GAP_IN)
        axes = page.axes(left_in, panel_top_in, PANEL_WIDTH_IN, PANEL_IN)
        log_axis(axes, "y", span(limits_of([spreads for _, spreads in lines])))
        load_axis(axes, chart.loads, PANEL_WIDTH_IN, IN_FLIGHT)
        axes.set_ylabel(label)
        axes.grid()
        for line, spreads in lines:
            draw_line(axes, line.style, spreads)
        if number == 0:
            axes.set_title(chart.title)


def _cost(line: Line, price: Price) -> dict[float, Spread]:
    costs = {}
    for load, found in line.spread("output_tokens_per_s").items():
        gpus = int(line.at[load]["num_gpus"].iloc[0])
        mean, low, high = (price.usd_per_million(at, gpus) for at in (found.mean, found.high, found.low))
        costs[load] = replace(found, mean=mean, low=low, high=high)
    return costs
