"""Drawing lines over load: marks with intervals, names at the ends of lines or in a key above them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from matplotlib.axes import Axes

from figures.charts import Line
from figures.page import Page
from figures.spread import Spread
from figures.style import MUTED, RULE, SystemStyle

IN_FLIGHT = "requests in flight (requests)"
LABEL_IN = 0.28
LABEL_LEFT = 1.06
NAME_SIZE, NAME_CHARACTERS = 7.5, 25
KEY_ROW_IN = 0.34
KEY_COLUMNS = 3
KEY_LEFT_IN = 0.62
KEY_WIDTH_IN = 6.5
INTERVAL = {"elinewidth": 1.0, "capsize": 2.0, "capthick": 0.8}


def draw_line(axes: Axes, style: SystemStyle, spreads: dict[float, Spread]) -> None:
    """Marks joined by a line, with a bar from low to high where there are repetitions."""
    loads = list(spreads)
    means = [found.mean for found in spreads.values()]
    axes.plot(loads, means, **style.line)
    for load, found in spreads.items():
        if found.number > 1:
            _interval(axes, style, load, found)
    axes.plot(loads, means, linestyle="none", clip_on=False, **style.mark)


def _interval(axes: Axes, style: SystemStyle, load: float, found: Spread) -> None:
    reach = [[max(0.0, found.mean - found.low)], [max(0.0, found.high - found.mean)]]
    axes.errorbar(load, found.mean, yerr=reach, fmt="none", ecolor=style.color, **INTERVAL)


def limits_of(spreads: Sequence[dict[float, Spread]]) -> np.ndarray:
    """Every mean, low and high."""
    return np.array([value for each in spreads for s in each.values() for value in (s.mean, s.low, s.high)])


def label_ends(axes: Axes, height_in: float, ends: list[tuple[Line, float, float]]) -> None:
    """Names and numbers right of the axes at the height where each line (line, x, y) ends, moved apart as far
    as they need; a thin rule leads to each. Limits and scales of the axes must stand."""
    to_axes = axes.transData + axes.transAxes.inverted()
    wanted = [float(to_axes.transform((x, y))[1]) * height_in for _, x, y in ends]
    for (line, x, y), at_in in zip(ends, spread_apart(wanted, LABEL_IN, height_in), strict=True):
        place = (LABEL_LEFT, at_in / height_in)
        axes.annotate(
            "", (x, y), place, xycoords="data", textcoords="axes fraction",
            arrowprops={"arrowstyle": "-", "color": RULE, "linewidth": 0.7, "shrinkA": 4, "shrinkB": 4},
        )  # fmt: skip
        axes.plot(*place, transform=axes.transAxes, clip_on=False, **line.style.mark)
        for text, below, look in (
            (line.label, 0, name_look(line.label)),
            (line.numbers, -9.5, {"fontsize": 5.8, "color": MUTED}),
        ):
            axes.annotate(
                text, place, (6, below), xycoords="axes fraction", textcoords="offset points",
                va="center", **look,
            )  # fmt: skip


def name_look(name: str) -> dict[str, Any]:
    """Bold; smaller where the name would leave its place."""
    return {"fontweight": "bold", "fontsize": min(NAME_SIZE, NAME_SIZE * NAME_CHARACTERS / len(name))}


def spread_apart(wanted: Sequence[float], least: float, height: float) -> list[float]:
    """Places near the wanted ones with at least `least` between them, within 0 to height where they fit."""
    order = np.argsort(wanted, kind="stable")
    groups: list[list[float]] = []
    for index in order:
        groups.append([wanted[index]])
        while len(groups) > 1 and _center(groups[-1], least, height) - _center(groups[-2], least, height) < (
            least * (len(groups[-1]) + len(groups[-2])) / 2
        ):
            groups[-2:] = [groups[-2] + groups[-1]]
    places = []
    for group in groups:
        lowest = _center(group, least, height) - least * (len(group) - 1) / 2
        places += [lowest + least * number for number in range(len(group))]
    result = [0.0] * len(places)
    for index, place in zip(order, places, strict=True):
        result[index] = place
    return result


def _center(group: list[float], least: float, height: float) -> float:
    half = least * (len(group) - 1) / 2
    return min(max(float(np.mean(group)), half), max(height - half, half))


class Keyed(Protocol):
    """What a key tells of a line."""

    label: str
    style: SystemStyle

    @property
    def numbers(self) -> str: ...


@dataclass(frozen=True)
class KeyEntry:
    """An entry of a key by itself."""

    label: str
    style: SystemStyle
    numbers: str


def key_height(lines: Sequence[Keyed]) -> float:
    return KEY_ROW_IN * -(-len(lines) // KEY_COLUMNS) + 0.08


def draw_key(page: Page, top_in: float, lines: Sequence[Keyed]) -> None:
    """Names, looks and numbers of the lines, KEY_COLUMNS beside each other."""
    height_in = key_height(lines)
    axes = page.axes(KEY_LEFT_IN - 0.1, top_in, KEY_WIDTH_IN, height_in)
    axes.set_axis_off()
    axes.set_xlim(0, KEY_WIDTH_IN)
    axes.set_ylim(height_in, 0)
    for number, line in enumerate(lines):
        x = KEY_WIDTH_IN / KEY_COLUMNS * (number % KEY_COLUMNS)
        y = 0.1 + KEY_ROW_IN * (number // KEY_COLUMNS)
        axes.plot([x, x + 0.36], [y, y], **line.style.line)
        axes.plot(x + 0.18, y, **line.style.mark)
        axes.text(x + 0.44, y, line.label, va="center", **name_look(line.label))
        axes.text(x + 0.44, y + 0.14, line.numbers, va="center", fontsize=6.2, color=MUTED)
