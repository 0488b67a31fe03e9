"""Where the time of a step goes: kernels by category and the pauses between them, beside the floor."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from figures.format import three_digits
from figures.page import Page
from figures.style import INK, MUTED
from harness.schema import StepsRow
from harness.store import Run

LOOKS: dict[str, tuple[str, str]] = {
    "gemm": ("#0072B2", ""),
    "attention": ("#E69F00", ""),
    "norm": ("#009E73", "////"),
    "rope": ("#56B4E9", "...."),
    "activation": ("#CC79A7", "\\\\\\\\"),
    "sampling": ("#D55E00", "xxxx"),
    "copy": ("#F0E442", "----"),
    "other": ("#999999", "||||"),
}
"""Colour and hatching by category; Okabe and Ito's colours, and hatching tells all but two apart without."""
PAUSE = ("white", "")
KEY_IN, TITLE_IN, BAR_IN, AXIS_IN, LAST_AXIS_IN = 0.56, 0.3, 0.3, 0.34, 0.2
KEY_COLUMNS = 5
LEFT_IN, WIDTH_IN = 0.9, 4.9
LEAST_SHARE_NAMED = 0.09


def draw(run: Run) -> Figure | None:
    """The figure, or None for a run without a profile."""
    loads = run.records(StepsRow)
    if not loads:
        return None
    kernels = run.table("profile.csv")
    row_in = TITLE_IN + 2 * BAR_IN + AXIS_IN
    first = loads[0]
    notes = [
        f"Mean step of the engine in one process without HTTP, {first.dtype}. Kernels: n = "
        f"{first.traced_steps} traced steps a load; whole bar: wall time, n = {first.timed_steps} steps "
        "without the profiler. White: nothing ran.",
        "Floor: time of max(bytes, FLOPs) at the GPU's measured rates for the same lengths, prompts included "
        "(harness/roofline.py)."
        if any(load.floor_us for load in loads)
        else "Floor: not known for this machine.",
    ]
    page = Page(run, "Where the time of a step goes", KEY_IN + row_in * len(loads) + LAST_AXIS_IN, notes)
    _draw_key(page)
    for number, load in enumerate(loads):
        axes = page.axes(LEFT_IN, KEY_IN + number * row_in + TITLE_IN, WIDTH_IN, 2 * BAR_IN)
        _draw_load(axes, load, kernels[kernels["load"] == load.load])
    axes.set_xlabel("time of a step (µs)", loc="left")
    return page.figure


def _draw_load(axes: Axes, load: StepsRow, kernels: pd.DataFrame) -> None:
    by_category = kernels.groupby("category")["step_us"].sum()
    axes.set_title(f"{load.concurrency} in flight")
    axes.set_title(
        f"{load.tokens_per_step:.4g} tokens/step, device busy {100 * load.busy_share:.0f} % of it",
        loc="right", fontsize=6.5, color=MUTED,
    )  # fmt: skip
    end = 0.0
    for category, look in LOOKS.items():
        if (width := float(by_category.get(category, 0.0))) > 0:
            _segment(axes, end, width, look, category if width / load.wall_us > LEAST_SHARE_NAMED else "")
            end += width
    if load.wall_us > end:
        _segment(axes, end, load.wall_us - end, PAUSE, "")
        end = load.wall_us
    _at_end(axes, end, 0, f"{three_digits(load.wall_us)} µs")
    if load.floor_us is not None:
        axes.barh(1, load.floor_us, height=0.5, color=INK)
        share = load.floor_us / load.wall_us
        _at_end(axes, load.floor_us, 1, f"{three_digits(load.floor_us)} µs, {100 * share:.0f} % of the step")
    axes.set_xlim(0, 1.02 * end)
    axes.set_ylim(1.5, -0.5)
    axes.set_yticks([0, 1], ["step", "floor"])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _segment(axes: Axes, left: float, width: float, look: tuple[str, str], name: str) -> None:
    color, hatch = look
    axes.barh(0, width, left=left, height=0.72, color=color, hatch=hatch, edgecolor=INK, linewidth=0.4)
    if name:
        axes.text(
            left + width / 2, 0, three_digits(width), ha="center", va="center", fontsize=6.5,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.85},
        )  # fmt: skip


def _at_end(axes: Axes, x: float, place: int, text: str) -> None:
    axes.annotate(text, (x, place), (5, 0), textcoords="offset points", va="center", fontweight="bold")


def _draw_key(page: Page) -> None:
    axes = page.axes(LEFT_IN, 0.0, WIDTH_IN, KEY_IN)
    axes.set_axis_off()
    axes.set_xlim(0, WIDTH_IN)
    axes.set_ylim(KEY_IN, 0)
    for number, (name, (color, hatch)) in enumerate({**LOOKS, "pause": PAUSE}.items()):
        x = WIDTH_IN / KEY_COLUMNS * (number % KEY_COLUMNS)
        y = 0.08 + 0.22 * (number // KEY_COLUMNS)
        box = Rectangle((x, y), 0.2, 0.13, facecolor=color, hatch=hatch, edgecolor=INK, linewidth=0.4)
        axes.add_patch(box)
        axes.text(x + 0.27, y + 0.065, name, va="center", fontsize=7.5)
