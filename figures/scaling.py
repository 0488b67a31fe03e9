"""Output tokens/s against requests in flight. Below it ours against the better peer at each of them, or in a
run of one system its configurations against the default one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures.axes import load_axis, log_axis, span
from figures.charts import OURS, Chart, Comparison, against_best, closed_charts, left_out_note, repetitions
from figures.lines import IN_FLIGHT, LABEL_IN, LABEL_LEFT, draw_line, label_ends, limits_of
from figures.page import Page
from figures.spread import described
from figures.style import MUTED, SYSTEMS
from harness.store import Run

COLUMN = "output_tokens_per_s"
TITLE_IN, AXIS_IN = 0.3, 0.52
LEAST_PANEL_IN, RATIO_GAP_IN, RATIO_IN, RIVALS_IN = 2.5, 0.16, 1.1, 0.24
ROOM_AROUND_ONE = 1.1
LEFT_IN, WIDTH_IN = 0.72, 4.5


def draw(run: Run) -> Figure | None:
    """The figure, or None without a workload at three concurrencies or more."""
    charts = [chart for chart in closed_charts(run) if chart.having(COLUMN)]
    if not charts:
        return None
    ratios = [_ratios(chart) for chart in charts]
    heights = [_panel_in(chart) + TITLE_IN + AXIS_IN for chart in charts]
    heights = [
        height + (RATIO_GAP_IN + RATIO_IN + RIVALS_IN if found else 0)
        for height, found in zip(heights, ratios, strict=True)
    ]
    page = Page(
        run,
        "Output throughput by concurrency",
        sum(heights),
        _notes(charts, [found for found in ratios if found]),
    )
    for number, chart in enumerate(charts):
        top_in = sum(heights[:number]) + TITLE_IN
        _draw_chart(page, top_in, chart, ratios[number])
    return page.figure


@dataclass(frozen=True)
class Ratios:
    """What is below the lines: label of its axis, its meaning, name of the rivals' row of marks, and data."""

    label: str
    meaning: str
    rivals: str
    lines: Comparison


def _ratios(chart: Chart) -> Ratios | None:
    ours = SYSTEMS[OURS].name
    if chart.ours and chart.peers:
        return Ratios(
            f"{ours} /\nbetter peer (ratio)",
            f"{ours} / the peer of the highest mean there; the row of marks says which peer",
            "better peer",
            against_best(chart.ours, chart.peers, COLUMN),
        )
    if chart.base is not None:
        others = [line for line in chart.lines if line is not chart.base]
        return Ratios(
            f"{chart.base.label}\n= 1 (ratio)",
            f"each configuration / {chart.base.label}",
            "against",
            against_best(others, [chart.base], COLUMN),
        )
    return None


def _panel_in(chart: Chart) -> float:
    return max(LEAST_PANEL_IN, LABEL_IN * len(chart.lines))


def _notes(charts: list[Chart], ratios: list[Ratios]) -> list[str]:
    numbers = repetitions(spreads for chart in charts for _, spreads in chart.having(COLUMN))
    meanings = dict.fromkeys(found.meaning for found in ratios)
    return [
        f"Closed loops: tokens received in the window / its length; {described(numbers)}.",
        *(
            f"Ratio: {meaning}. Over pairs that played the same schedule, bars as above."
            for meaning in meanings
        ),
        "In each repetition of a concurrency all lines played the same schedule file.",
        left_out_note(charts, "in flight"),
    ]


def _draw_chart(page: Page, top_in: float, chart: Chart, ratios: Ratios | None) -> None:
    height_in = _panel_in(chart)
    axes = page.axes(LEFT_IN, top_in, WIDTH_IN, height_in)
    axes.set_title(chart.title)
    shown = chart.having(COLUMN)
    log_axis(axes, "y", span(limits_of([spreads for _, spreads in shown])))
    load_axis(axes, chart.loads, WIDTH_IN, IN_FLIGHT)
    axes.set_ylabel("output tokens per second (tokens/s)")
    axes.grid()
    for line, spreads in shown:
        draw_line(axes, line.style, spreads)
    label_ends(axes, height_in, [(line, max(spreads), spreads[max(spreads)].mean) for line, spreads in shown])
    if ratios is not None:
        axes.set_xlabel("")
        axes.tick_params(axis="x", labelbottom=False)
        below = page.axes(LEFT_IN, top_in + height_in + RATIO_GAP_IN, WIDTH_IN, RATIO_IN)
        _draw_ratios(below, ratios)
        below.tick_params(axis="x", labelbottom=False)
        rivals = page.axes(LEFT_IN, top_in + height_in + RATIO_GAP_IN + RATIO_IN, WIDTH_IN, RIVALS_IN)
        _draw_rivals(rivals, ratios)
        for each in (below, rivals):
            load_axis(each, chart.loads, WIDTH_IN, IN_FLIGHT if each is rivals else "")


def _draw_ratios(axes: Axes, ratios: Ratios) -> None:
    means = [1 / ROOM_AROUND_ONE, ROOM_AROUND_ONE]
    for line, found in ratios.lines:
        spreads = {load: each.ratio for load, each in found.items()}
        draw_line(axes, line.style, spreads)
        means += [each.mean for each in spreads.values()]
    log_axis(axes, "y", span(np.array(means)))
    axes.axhline(1, color=MUTED, linewidth=0.8, zorder=1)
    axes.set_ylabel(ratios.label)
    axes.grid()


def _draw_rivals(axes: Axes, ratios: Ratios) -> None:
    rivals = {load: each.rival for _, found in ratios.lines for load, each in found.items()}
    for load, rival in rivals.items():
        axes.plot(load, 0.5, **rival.style.mark)
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    names = " or\n".join(dict.fromkeys(rival.label for rival in rivals.values()))
    axes.annotate(
        f"{ratios.rivals}:\n{names}", (LABEL_LEFT, 0.5), (-3, 0), xycoords="axes fraction",
        textcoords="offset points", va="center", fontsize=5.8, color=MUTED,
    )  # fmt: skip
