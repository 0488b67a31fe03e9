"""What each preset of the engine buys: output tokens/s as a ratio to the first one, a panel a concurrency."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures.axes import log_axis, span
from figures.charts import Chart, Compared, Line, against_best, closed_charts, left_out_note, repetitions
from figures.format import count, three_digits
from figures.page import Page
from figures.spread import described
from figures.style import INK, MUTED
from harness.store import Run

STAGE = "ablation"
COLUMN = "output_tokens_per_s"
TITLE_IN, ROW_IN, AXIS_IN = 0.3, 0.26, 0.34
LABEL_IN, WIDTH_IN, NUMBERS_IN = 0.85, 3.2, 0.12
LAST_AXIS_IN = 0.2
COLOR = "#0072B2"


def draw(run: Run) -> Figure | None:
    """The figure of a run of the stage `ablation`, or None."""
    if run.manifest.stage != STAGE or not (charts := closed_charts(run)):
        return None
    (chart,) = charts  # one workload
    lines = _in_order(run, chart)
    base, *others = lines
    ratios = {line.label: found for line, found in against_best(others, [base], COLUMN)}
    numbers = repetitions(spreads for _, spreads in chart.having(COLUMN))
    height_in = TITLE_IN + ROW_IN * len(lines) + AXIS_IN
    notes = [
        f"Ratio: output tokens/s / that of {base.config} with the same schedule; {described(numbers)}. "
        "Each preset takes one step more than the one above it.",
        "Beside them: tokens received in the window / its length, requests and repetitions behind it, and "
        "the ratio to the preset above.",
        left_out_note(charts, "in flight"),
    ]
    page = Page(run, "What each step towards speed buys", height_in * len(chart.loads) + LAST_AXIS_IN, notes)
    every = [found.ratio for each in ratios.values() for found in each.values()]
    limits = span(np.array([1.0, *(value for s in every for value in (s.mean, s.low, s.high))]))
    for number, load in enumerate(chart.loads):
        top_in = number * height_in + TITLE_IN
        axes = page.axes(LABEL_IN, top_in, WIDTH_IN, ROW_IN * len(lines))
        log_axis(axes, "x", limits)
        axes.set_title(f"{load:g} in flight")
        _draw_panel(axes, lines, load, {label: found.get(load) for label, found in ratios.items()})
    axes.set_xlabel(f"output tokens/s / {base.config} (ratio)", loc="left")
    return page.figure


def _in_order(run: Run, chart: Chart) -> list[Line]:
    """The presets as the run has them, INVALID cells counted: each is one step more than the one before."""
    order = run.serving.sort_values("position")["config"].drop_duplicates().tolist()
    return sorted(chart.lines, key=lambda line: order.index(line.config))


def _draw_panel(axes: Axes, lines: list[Line], load: float, ratios: dict[str, Compared | None]) -> None:
    axes.axvline(1, color=MUTED, linewidth=0.8, zorder=1)
    above: Line | None = None
    for place, line in enumerate(lines):
        found = ratios.get(line.label)
        if found is not None:
            ratio = found.ratio
            axes.plot([1, ratio.mean], [place, place], color=COLOR, linewidth=0.8)
            reach = [[ratio.mean - ratio.low], [ratio.high - ratio.mean]]
            axes.errorbar(ratio.mean, place, xerr=np.maximum(reach, 0), fmt="none", ecolor=INK, capsize=2.5)
            axes.plot(ratio.mean, place, "o", color=COLOR, markeredgecolor="white", markersize=6)
        axes.annotate(
            _numbers(line, above, load), (1 + NUMBERS_IN / WIDTH_IN, place),
            xycoords=axes.get_yaxis_transform(), va="center", fontsize=6.8,
        )  # fmt: skip
        above = line
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_yticks(range(len(lines)), [line.config for line in lines])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")


def _numbers(line: Line, above: Line | None, load: float) -> str:
    """Throughput, what it rests on, and the ratio to the preset above, where both were measured."""
    spread = line.spread(COLUMN).get(load)
    if spread is None:
        return "not measured"
    rows = line.at[load]
    text = f"{three_digits(spread.mean)} tok/s, n = {count(int(rows['requests'].sum()))}, {len(rows)} rep."
    steps = against_best([line], [above], COLUMN) if above is not None else []
    return "".join([text, *(f", ×{found[load].ratio.mean:.2f}" for _, found in steps if load in found)])
