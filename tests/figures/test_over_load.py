"""Figures over load: what is drawn when, and that marks, bars and words say what the rows hold."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from figures import attainment, distributions, energy, roofline, scaling
from figures.charts import closed_charts, open_charts, shape_of
from figures.ecdf import STEPS
from figures.lines import spread_apart
from figures.make_figures import FIGURES
from figures.prices import price_of
from figures.runs import run_looks
from figures.style import house_style
from harness.store import Run
from tests.figures.made_ladder import LINES, Ladder, knee, make_ladder, rows_of
from tests.figures.test_make_figures import texts

T_FACTOR_OF_2 = 4.302653
"""Student's t at 95 % with two degrees of freedom, from a printed table."""

SMALL = Ladder(
    lines=(("engine", "default"), ("vllm", "default"), ("vllm", "same_features")),
    concurrencies=(1, 8, 64),
    rates=(5.0, 20.0, 80.0),
)
SEARCHED = replace(
    SMALL,
    searched=(
        knee("engine", "default", 14.6, 17.7),
        knee("vllm", "default", 17.7, None),
        knee("vllm", "same_features", None, 10.0),
    ),
    search_rates=(10.0, 14.6, 17.7),
)
OVER_LOAD = ("scaling", "tradeoff", "distributions", "attainment", "roofline", "energy")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_ladder(tmp_path_factory.mktemp("results"), "r1", SEARCHED)


@pytest.fixture(scope="module")
def figures(run: Run) -> dict[str, Figure | None]:
    return {name: drawn(name, run) for name in FIGURES}


def drawn(name: str, run: Run) -> Figure | None:
    with house_style():
        return FIGURES[name](run)


def names_of(figures: dict[str, Figure | None]) -> set[str]:
    return {name for name, figure in figures.items() if figure is not None}


def axes_of(figure: Figure | None, label: str, number: int = 0) -> Axes:
    assert figure is not None
    return [axes for axes in figure.axes if label in (axes.get_ylabel(), axes.get_xlabel())][number]


def marks(axes: Axes, color: str) -> list[tuple[float, float]]:
    """Points of the joined line in this colour."""
    (line,) = [
        line
        for line in axes.lines
        if line.get_color() == color and line.get_linestyle() != "None" and len(line.get_xdata()) > 1
    ]
    return list(zip(map(float, line.get_xdata()), map(float, line.get_ydata()), strict=True))


def bars(axes: Axes, color: str) -> dict[float, tuple[float, float]]:
    """Low and high of each interval in this colour by its place."""
    found = {}
    for container in axes.containers:
        assert isinstance(container, ErrorbarContainer)
        for collection in container.lines[2]:
            ((x, low), (_, high)) = collection.get_segments()[0]
            if tuple(collection.get_color()[0][:3]) == _rgb(color):
                found[float(x)] = (float(low), float(high))
    return found


def _rgb(color: str) -> tuple[float, ...]:
    return tuple(int(color[at : at + 2], 16) / 255 for at in (1, 3, 5))


def values(ladder: Ladder, line: tuple[str, str], load: str, column: str) -> list[float]:
    """What stands in the rows of a ladder, as six digits of CSV keep it."""
    rows = [row for row in rows_of(ladder) if (row.system, row.config, row.load_name) == (*line, load)]
    return [float(f"{getattr(row, column):.6g}") for row in rows]


def t_interval(sample: list[float]) -> tuple[float, float, float]:
    logs = [math.log(value) for value in sample]
    half = T_FACTOR_OF_2 * stdev(logs) / math.sqrt(3)
    return tuple(math.exp(fmean(logs) + part) for part in (0, -half, half))


def test_a_run_of_many_loads_has_these_figures_and_a_run_of_few_the_others(
    figures: dict[str, Figure | None], tmp_path: Path
) -> None:
    assert names_of(figures) == set(OVER_LOAD)
    few = make_ladder(tmp_path, "few", replace(SMALL, concurrencies=(1, 8), rates=()))
    assert names_of({name: drawn(name, few) for name in FIGURES}) == {"throughput", "latency"}


@pytest.mark.parametrize(
    ("column", "figure"),
    [("joules_per_token", energy), ("roofline_share", roofline), ("attainment", attainment)],
)
def test_a_figure_without_its_column_is_not_drawn(tmp_path: Path, column: str, figure: object) -> None:
    changes = {(*line, None, None): {column: None} for line in SMALL.lines}
    without = make_ladder(tmp_path, "without", replace(SMALL, changes=changes))
    assert figure.draw(without) is None
    assert scaling.draw(without) is not None


@pytest.mark.parametrize("name", OVER_LOAD)
def test_every_figure_says_conditions_units_and_numbers(figures: dict[str, Figure | None], name: str) -> None:
    figure = figures[name]
    shown = texts(figure)
    joined = "\n".join(shown)
    assert "llama-3.2-1b, random weights, bfloat16 · NVIDIA H200, driver 580.159.04, 16 CPU cores" in joined
    assert "run r1 · commit ffffffffff" in joined
    assert {"engine", "vLLM", "vLLM · same features"} <= set(shown)
    assert sum(text.startswith("n = ") and "requests" in text for text in shown) >= 3
    assert figure is not None
    for axes in figure.axes:
        for label in (axes.get_xlabel(), axes.get_ylabel()):
            assert label in ("", "knee") or label.endswith(")"), label


def test_marks_and_bars_of_scaling_are_geometric_means_and_t_intervals(
    run: Run, figures: dict[str, Figure | None]
) -> None:
    axes = axes_of(figures["scaling"], "output tokens per second (tokens/s)")
    for line, look in run_looks(run).items():
        expected = [
            t_interval(values(SMALL, line, f"closed-{number}", "output_tokens_per_s"))
            for number in (1, 8, 64)
        ]
        assert np.allclose(
            marks(axes, look.color), [(1, expected[0][0]), (8, expected[1][0]), (64, expected[2][0])]
        )
        found = bars(axes, look.color)
        assert np.allclose(
            [found[number] for number in (1, 8, 64)], [each[1:] for each in expected], rtol=1e-6
        )


def test_ratios_of_scaling_are_of_pairs_with_the_better_peer(
    run: Run, figures: dict[str, Figure | None]
) -> None:
    axes = axes_of(figures["scaling"], "engine /\nbetter peer (ratio)")
    color = run_looks(run)["engine", "default"].color
    expected = []
    for number in (1, 8, 64):
        ours, theirs = (
            values(SMALL, (system, "default"), f"closed-{number}", "output_tokens_per_s")
            for system in ("engine", "vllm")
        )
        expected.append(t_interval([a / b for a, b in zip(ours, theirs, strict=True)]))
    assert np.allclose([y for _, y in marks(axes, color)], [each[0] for each in expected])
    assert np.allclose(list(bars(axes, color).values()), [each[1:] for each in expected], rtol=1e-6)
    assert "better peer:\nvLLM" in texts(figures["scaling"])


def test_two_repetitions_have_their_ends_for_bars_and_one_has_none(tmp_path: Path) -> None:
    two = make_ladder(tmp_path, "two", replace(SMALL, repetitions=2, rates=()))
    axes = axes_of(drawn("scaling", two), "output tokens per second (tokens/s)")
    color = run_looks(two)["engine", "default"].color
    sample = values(SMALL, ("engine", "default"), "closed-8", "output_tokens_per_s")[:2]
    assert np.allclose(bars(axes, color)[8], (min(sample), max(sample)))
    assert "bars: smallest to largest" in "\n".join(texts(drawn("scaling", two)))
    one = make_ladder(tmp_path, "one", replace(SMALL, repetitions=1, rates=()))
    axes = axes_of(drawn("scaling", one), "output tokens per second (tokens/s)")
    assert list(axes.containers) == []
    assert "one repetition each, so no interval" in "\n".join(texts(drawn("scaling", one)))


def test_a_repetition_of_different_schedules_is_left_out_and_said(tmp_path: Path) -> None:
    changes = {("vllm", "default", "closed-8", 1): {"schedule_sha256": "9" * 64}}
    differing = make_ladder(tmp_path, "differing", replace(SMALL, changes=changes))
    (chart,) = closed_charts(differing)
    assert chart.left_out == [(8.0, 1)]
    for line in chart.lines:
        assert sorted(line.at[8.0]["repetition"]) == [0, 2]
        assert sorted(line.at[64.0]["repetition"]) == [0, 1, 2]
    said = "left out, for the systems played different schedules: 8 in flight, repetition 1"
    for name in ("scaling", "tradeoff", "roofline", "energy"):
        assert said in texts(drawn(name, differing))


def test_a_concurrency_without_a_common_schedule_is_no_point(tmp_path: Path) -> None:
    changes = {("vllm", "default", "closed-8", None): {"schedule_sha256": "9" * 64}}
    apart = make_ladder(tmp_path, "apart", replace(SMALL, concurrencies=(1, 8, 16, 64), changes=changes))
    (chart,) = closed_charts(apart)
    assert chart.loads == [1, 16, 64]


def test_invalid_cells_are_not_drawn_and_their_systems_are_named(tmp_path: Path) -> None:
    changes = {
        ("vllm", "same_features", "closed-64", None): {"verdict": "INVALID", "reasons": "x"},
        ("engine", "default", "closed-8", 0): {"verdict": "INVALID", "reasons": "x"},
    }
    some = make_ladder(tmp_path, "some", replace(SMALL, changes=changes))
    axes = axes_of(drawn("scaling", some), "output tokens per second (tokens/s)")
    looks = run_looks(some)
    assert [x for x, _ in marks(axes, looks["vllm", "same_features"].color)] == [1, 8]
    kept = values(SMALL, ("engine", "default"), "closed-8", "output_tokens_per_s")[1:]
    assert math.isclose(dict(marks(axes, looks["engine", "default"].color))[8], math.prod(kept) ** 0.5)
    shown = texts(drawn("scaling", some))
    assert "not drawn: 4 INVALID cells (engine, vLLM · same features), see serving.csv" in shown
    assert any(text.endswith("2–3 rep.") for text in shown)


def test_configurations_of_one_system_are_compared_with_its_default(tmp_path: Path) -> None:
    lines = (("vllm", "tuned"), ("vllm", "default"))
    one = make_ladder(tmp_path, "one", replace(SMALL, lines=lines, rates=()))
    axes = axes_of(drawn("scaling", one), "vLLM\n= 1 (ratio)")
    ratios = [
        t_interval(
            [
                a / b
                for a, b in zip(
                    *(
                        values(replace(SMALL, lines=lines), line, "closed-8", "output_tokens_per_s")
                        for line in lines
                    ),
                    strict=True,
                )
            ]
        )[0]
    ]
    assert math.isclose(dict(marks(axes, run_looks(one)["vllm", "tuned"].color))[8], ratios[0], rel_tol=1e-9)


def test_tradeoff_has_a_point_a_concurrency_with_its_number(
    run: Run, figures: dict[str, Figure | None]
) -> None:
    figure = figures["tradeoff"]
    axes = axes_of(figure, "median time per output token, TPOT (ms)")
    line = ("engine", "default")
    expected = [
        tuple(
            t_interval(values(SMALL, line, f"closed-{number}", column))[0]
            for column in ("output_tokens_per_s", "tpot_ms_p50")
        )
        for number in (1, 8, 64)
    ]
    assert np.allclose(marks(axes, run_looks(run)[line].color), expected)
    assert {"1", "8", "64"} <= {text.get_text() for text in axes.texts}


def test_energy_is_joules_a_token_and_cost_follows_the_price(
    run: Run, figures: dict[str, Figure | None]
) -> None:
    figure = figures["energy"]
    color = run_looks(run)["engine", "default"].color
    joules = values(SMALL, ("engine", "default"), "closed-8", "joules_per_token")
    axes = axes_of(figure, "energy per output token (J/token)")
    assert math.isclose(dict(marks(axes, color))[8], t_interval(joules)[0])
    price = price_of("NVIDIA H200")
    assert price is not None
    mean, low, high = t_interval(values(SMALL, ("engine", "default"), "closed-8", "output_tokens_per_s"))
    axes = axes_of(figure, "cost of output (US$ / 10⁶ tokens)")
    dollars = price.usd_per_gpu_hour * 1e6 / 3600
    assert math.isclose(dict(marks(axes, color))[8], dollars / mean)
    assert np.allclose(bars(axes, color)[8], (dollars / high, dollars / low), rtol=1e-6)
    assert f"{price.seller}, {price.kind}, {price.date}" in "\n".join(texts(figure))


def test_without_a_price_there_is_energy_alone(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "price_of", lambda gpu: None)
    shown = texts(energy.draw(run))
    assert "energy per output token (J/token)" in shown
    assert not any("US$" in text for text in shown)


def test_prices_are_those_of_known_gpus() -> None:
    assert price_of(None) is None
    assert price_of("NVIDIA A0") is None


def test_attainment_is_by_offered_rate_with_ends_for_bars(
    run: Run, figures: dict[str, Figure | None]
) -> None:
    figure = figures["attainment"]
    color = run_looks(run)["engine", "default"].color
    sample = values(SMALL, ("engine", "default"), "poisson-20rps", "attainment")
    axes = axes_of(figure, "attainment (% of requests)")
    assert math.isclose(dict(marks(axes, color))[20], fmean(sample))
    assert np.allclose(bars(axes, color)[20], (min(sample), max(sample)))
    goodput = values(SMALL, ("engine", "default"), "poisson-20rps", "goodput_rps")
    assert math.isclose(dict(marks(axes_of(figure, "goodput (requests/s)"), color))[20], fmean(goodput))
    assert "TTFT ≤ 200 ms and TPOT ≤ 10 ms" in "\n".join(texts(figure))


def test_knees_stand_below_the_rates_of_their_search_alone(
    run: Run, figures: dict[str, Figure | None]
) -> None:
    assert [(chart.search, chart.loads) for chart in open_charts(run)] == [
        ("", [5, 20, 80]),
        ("knee", [10, 14.6, 17.7]),
    ]
    figure = figures["attainment"]
    assert figure is not None
    (strip,) = [axes for axes in figure.axes if axes.get_ylabel() == "knee"]
    assert [text.get_text() for text in strip.texts] == ["14.6–17.7", "at least 17.7", "below 10.0"]
    spans = [patch.get_paths()[0].get_extents() for patch in strip.collections]
    lowest, highest = strip.get_xlim()
    assert np.allclose([(span.x0, span.x1) for span in spans], [(14.6, 17.7), (17.7, highest), (lowest, 10)])


def test_distributions_show_lowest_middle_and_highest_load(
    run: Run, figures: dict[str, Figure | None], tmp_path: Path
) -> None:
    shown = texts(figures["distributions"])
    loads = [text.partition(", token_ids")[0] for text in shown if ", token_ids" in text]
    assert loads == [
        "closed loop, 1 in flight",
        "closed loop, 8 in flight",
        "closed loop, 64 in flight",
        "Poisson arrivals, 5 requests/s",
        "Poisson arrivals, 17.7 requests/s",
        "Poisson arrivals, 80 requests/s",
    ]
    assert "Shown: 6 of 9 loads, the lowest, middle and highest of each kind; n: over these." in shown
    assert f"n = {6 * 3 * 24} requests, {6 * 3 * 24 * 31:,} gaps" in shown


def test_curves_of_distributions_end_at_all_and_mark_the_median(
    run: Run, figures: dict[str, Figure | None]
) -> None:
    figure = figures["distributions"]
    assert figure is not None
    cells = run.serving[(run.serving["system"] == "engine") & (run.serving["load_name"] == "closed-8")][
        "cell"
    ]
    requests = run.requests[run.requests["cell"].isin(cells)]
    ttft = np.sort((requests["first_ns"] - requests["intended_ns"]).to_numpy(dtype=float) / 1e6)
    events = run.events[run.events["cell"].isin(cells)]
    gaps = np.sort(events[events.duplicated(["cell", "request"])]["gap_us"].to_numpy(dtype=float) / 1000)
    color = run_looks(run)["engine", "default"].color
    row = [axes for axes in figure.axes if axes.get_yticks().size == 5][3:6]
    for axes, expected in ((row[0], ttft), (row[2], gaps)):
        curve, median = (line for line in axes.lines if line.get_color() == color)
        assert curve.get_ydata()[-1] == 1
        assert curve.get_xdata()[-1] == expected[-1]
        assert len(curve.get_xdata()) <= STEPS + 1
        assert float(np.ravel(median.get_xdata())[0]) == expected[math.ceil(expected.size / 2) - 1]
        share = np.searchsorted(expected, curve.get_xdata()[1:], side="right") / expected.size
        assert np.all(share >= curve.get_ydata()[1:])
        assert np.all(share - curve.get_ydata()[1:] < 0.02)


def test_gaps_of_one_read_are_clipped_and_said(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributions, "icl_ms", lambda requests, events: np.array([0.0, 0.0, 0.0, 5.0]))
    said = "Gaps below 0.01 ms (75.0%, events that came with one read) stand there."
    assert said in texts(distributions.draw(run))


@pytest.mark.parametrize(
    ("load", "label", "shape"),
    [
        ("closed", "", "Closed loops"),
        ("closed", "closed, 8 in flight", "Closed loops"),
        ("closed", "closed, 8 in flight, started over 2 s", "Closed, started over 2 s"),
        ("poisson", "", "Poisson arrivals"),
        ("poisson", "Poisson arrivals, 12.5 requests/s", "Poisson arrivals"),
        ("gamma", "gamma arrivals, 10 requests/s, CV 2", "Gamma arrivals, CV 2"),
        ("trace", "arrivals of azure_conv x2", "Arrivals of azure_conv"),
    ],
)
def test_loads_that_differ_in_their_amount_alone_are_one_line(load: str, label: str, shape: str) -> None:
    assert shape_of(load, label) == shape


@pytest.mark.parametrize(
    "lines",
    [
        (*LINES, ("vllm", "tuned"), ("sglang", "tuned")),
        tuple(("vllm", config) for config in ("default", *(f"tune-{number}" for number in range(7)))),
    ],
)
def test_eight_lines_differ_in_colour_and_in_what_grey_print_shows(
    tmp_path: Path, lines: tuple[tuple[str, str], ...]
) -> None:
    ladder = Ladder(lines=lines, concurrencies=(1, 2, 3), rates=(), repetitions=1, requests=1)
    looks = run_looks(make_ladder(tmp_path, "eight", ladder)).values()
    assert len({look.color for look in looks}) == 8
    assert len({(look.marker, look.fill) for look in looks}) == 8
    assert len({look.dashes for look in looks}) == 8


def test_twelve_concurrencies_fit(tmp_path: Path) -> None:
    numbers = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 512)
    ladder = Ladder(lines=LINES, concurrencies=numbers, rates=(), repetitions=1, requests=1)
    made = make_ladder(tmp_path, "twelve", ladder)
    ticks = list(axes_of(drawn("energy", made), "energy per output token (J/token)").get_xticks())
    assert set(ticks) < set(numbers)
    assert ticks[0] == 512


def test_names_at_the_ends_keep_their_order_and_distance() -> None:
    places = spread_apart([2.0, 1.99, 0.1, 2.01, 1.0], 0.25, 2.0)
    assert sorted(range(5), key=lambda index: places[index]) == [2, 4, 1, 0, 3]
    ordered = sorted(places)
    assert all(b - a >= 0.25 - 1e-9 for a, b in pairwise(ordered))
    assert ordered[0] >= 0
    assert ordered[-1] <= 2.0
    assert places[2] == 0.1 and places[4] == 1.0
