"""Share of requests within their limits, and the rate of those that are, against the offered rate; below them
the rate that each system keeps up with, where a search found one."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from figures.axes import load_axis
from figures.charts import Chart, Line, left_out_note, open_charts, repetitions
from figures.format import three_digits
from figures.lines import draw_key, draw_line, key_height
from figures.page import Page
from figures.spread import Spread, of_shares
from figures.style import INK, MUTED
from harness.schema import KneeRow
from harness.store import Run

TITLE_IN, PANEL_IN, AXIS_IN, KNEE_GAP_IN, KNEE_ROW_IN = 0.3, 2.0, 0.52, 0.12, 0.17
LEFT_IN, PANEL_WIDTH_IN, GAP_IN = 0.72, 2.8, 0.72
OFFERED = "offered rate (requests/s)"


def draw(run: Run) -> Figure | None:
    """The figure, or None without arrivals of one shape at two rates with limits."""
    charts = [chart for chart in open_charts(run) if _shown(chart, "attainment")]
    if not charts:
        return None
    knees = run.records(KneeRow)
    heights = [
        TITLE_IN + key_height(chart.lines) + PANEL_IN + AXIS_IN + _strip_in(_knees_of(chart, knees))
        for chart in charts
    ]
    page = Page(run, "Attainment and goodput", sum(heights), _notes(charts, knees))
    for number, chart in enumerate(charts):
        _draw_chart(page, sum(heights[:number]), chart, _knees_of(chart, knees))
    return page.figure


def _knees_of(chart: Chart, knees: list[KneeRow]) -> list[tuple[Line, KneeRow]]:
    lines = {(line.system, line.config): line for line in chart.lines}
    return [
        (lines[knee.system, knee.config], knee)
        for knee in knees
        if chart.search == knee.search and (knee.system, knee.config) in lines
    ]


def _strip_in(knees: list[tuple[Line, KneeRow]]) -> float:
    return KNEE_GAP_IN + KNEE_ROW_IN * len(knees) if knees else 0.0


def _notes(charts: list[Chart], knees: list[KneeRow]) -> list[str]:
    limits = sorted({limits_in_words(*pair) for chart in charts for pair in _limits(chart)})
    numbers = repetitions(spreads for chart in charts for _, spreads in _shown(chart, "attainment"))
    bars = "one repetition each, so no interval"
    if max(numbers) > 1:
        bars = "marks: mean of the repetitions; bars: smallest to largest"
    notes = [
        f"Attainment: share of the requests due in the window with {' or '.join(limits)}; a failed request "
        f"is not within them. {bars[0].upper()}{bars[1:]}.",
        "Goodput: requests within the limits / window; dotted: all that are offered.",
    ]
    if any(_knees_of(chart, knees) for chart in charts):
        targets = " or ".join(sorted({f"{knee.target_attainment:.4g}" for knee in knees}))
        notes.append(
            f"Knee: from the highest rate at which every repetition had an attainment of {targets} or more "
            "to the lowest at which one had not; an arrow: beyond the rates tried."
        )
    return [*notes, left_out_note(charts, "requests/s")]


def _limits(chart: Chart) -> list[tuple[float | None, float | None]]:
    rows = chart.rows[["slo_ttft_ms", "slo_tpot_ms"]].drop_duplicates()
    return [(ttft, tpot) for ttft, tpot in rows.astype(object).where(rows.notna(), None).to_numpy()]


def limits_in_words(ttft_ms: float | None, tpot_ms: float | None) -> str:
    named = (("TTFT", ttft_ms), ("TPOT", tpot_ms))
    return " and ".join(f"{name} ≤ {limit:g} ms" for name, limit in named if limit is not None)


def _shown(chart: Chart, column: str) -> list[tuple[Line, dict[float, Spread]]]:
    found = []
    for line in chart.lines:
        values = {rate: rows[column].dropna() for rate, rows in line.at.items()}
        spreads = {rate: of_shares(each) for rate, each in values.items() if len(each)}
        if spreads:
            found.append((line, spreads))
    return found


def _draw_chart(page: Page, top_in: float, chart: Chart, knees: list[tuple[Line, KneeRow]]) -> None:
    draw_key(page, top_in + 0.06, chart.lines)
    panel_top_in = top_in + key_height(chart.lines) + TITLE_IN
    attainment, goodput = (
        page.axes(left_in, panel_top_in, PANEL_WIDTH_IN, PANEL_IN)
        for left_in in (LEFT_IN, LEFT_IN + PANEL_WIDTH_IN + GAP_IN)
    )
    for axes, column in ((attainment, "attainment"), (goodput, "goodput_rps")):
        for line, spreads in _shown(chart, column):
            draw_line(axes, line.style, spreads)
        load_axis(axes, chart.loads, PANEL_WIDTH_IN, OFFERED)
        axes.grid()
    attainment.set_title(chart.title)
    attainment.set_ylim(0, 1.03)
    attainment.set_yticks([0, 0.25, 0.5, 0.75, 1])
    attainment.yaxis.set_major_formatter(PercentFormatter(1, symbol=""))
    attainment.set_ylabel("attainment (% of requests)")
    goodput.plot(chart.loads, chart.loads, linestyle=(0, (1, 2)), linewidth=0.9, color=MUTED, zorder=1)
    goodput.set_ylim(0, 1.05 * chart.loads[-1])
    goodput.set_ylabel("goodput (requests/s)")
    if knees:
        _draw_knees(page, panel_top_in + PANEL_IN + KNEE_GAP_IN, attainment, chart, knees)


def _draw_knees(
    page: Page, top_in: float, above: Axes, chart: Chart, knees: list[tuple[Line, KneeRow]]
) -> None:
    for target in {knee.target_attainment for _, knee in knees}:
        above.axhline(target, color=MUTED, linewidth=0.7, linestyle=(0, (4, 3)), zorder=1)
    above.set_xlabel("")
    above.tick_params(axis="x", labelbottom=False)
    axes = page.axes(LEFT_IN, top_in, PANEL_WIDTH_IN, KNEE_ROW_IN * len(knees))
    load_axis(axes, chart.loads, PANEL_WIDTH_IN, OFFERED)
    axes.set_ylim(len(knees) - 0.5, -0.5)
    axes.set_yticks([])
    axes.set_ylabel("knee", rotation=0, ha="right", va="center", labelpad=18)
    axes.grid(axis="x")
    for place, (line, knee) in enumerate(knees):
        _draw_knee(axes, place, line, knee)


def _draw_knee(axes: Axes, place: int, line: Line, knee: KneeRow) -> None:
    """The interval, shaded; an arrow at an end that the rates tried did not reach."""
    lowest, highest = axes.get_xlim()
    low, high = knee.low_rps or lowest, knee.high_rps or highest
    color = line.style.color
    axes.fill_between([low, high], place - 0.36, place + 0.36, color=color, alpha=0.35, linewidth=0)
    for found, at, arrow in ((knee.low_rps, low, "<"), (knee.high_rps, high, ">")):
        look = {"marker": "|", "markersize": 9} if found else {"marker": arrow, "markersize": 5}
        axes.plot(at, place, color=color, clip_on=False, **look)
    axes.plot(
        -0.035, place, transform=axes.get_yaxis_transform(), clip_on=False, **line.style.mark
    )  # fmt: skip
    axes.annotate(
        _knee_in_words(knee), (high, place), (6, 0), textcoords="offset points", va="center", fontsize=6,
        color=INK, annotation_clip=False,
    )  # fmt: skip


def _knee_in_words(knee: KneeRow) -> str:
    if knee.low_rps is None:
        return f"below {three_digits(knee.high_rps)}"
    if knee.high_rps is None:
        return f"at least {three_digits(knee.low_rps)}"
    return f"{three_digits(knee.low_rps)}–{three_digits(knee.high_rps)}"
