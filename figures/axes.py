"""Axes that several figures share: logarithmic ones with round ticks, and one of concurrencies."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator, StrMethodFormatter

TICK_STEPS = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7), tuple(np.arange(10, 100, 2) / 10))
LEAST_LOOKING_LOGARITHMIC = 2
EVEN = MaxNLocator(4, steps=[1, 2, 5, 10])
ROOM_FOR_A_TICK_IN = 0.3


def span(values: np.ndarray) -> tuple[float, float]:
    """Limits of a logarithmic axis with a little room around all finite values."""
    finite = values[np.isfinite(values)]
    if finite.size == 0:
        return 1, 10
    room = max(1.05, (float(finite.max()) / float(finite.min())) ** 0.05)
    return float(finite.min()) / room, float(finite.max()) * room


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers from low to high: the coarsest choice that has three or more, else the finest; evenly
    spaced ones where the axis is too short to look logarithmic."""
    if high / low < LEAST_LOOKING_LOGARITHMIC:
        return [tick for tick in EVEN.tick_values(low, high) if low <= tick <= high]
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    for steps in TICK_STEPS:
        rounded = [round(step * 10.0**decade, 9) for decade in decades for step in steps]
        ticks = [tick for tick in rounded if low <= tick <= high]
        if len(ticks) >= 3:
            break
    return ticks


def log_axis(axes: Axes, which: Literal["x", "y"], limits: tuple[float, float]) -> None:
    """Logarithmic between the limits."""
    if which == "x":
        axes.set_xscale("log")
        axes.set_xlim(limits)
    else:
        axes.set_yscale("log")
        axes.set_ylim(limits)
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(FixedLocator(log_ticks(*limits)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(StrMethodFormatter("{x:,g}"))


def load_axis(axes: Axes, loads: list[float], width_in: float, label: str) -> None:
    """Logarithmic, with a tick at each load for which there is room."""
    axes.set_xscale("log")
    axes.set_xlim(*_around(loads))
    low, high = np.log(axes.get_xlim())
    ticks: list[float] = []
    for load in reversed(loads):
        if not ticks or (math.log(ticks[-1] / load)) / (high - low) * width_in >= ROOM_FOR_A_TICK_IN:
            ticks.append(load)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.set_xlabel(label)


def _around(loads: list[float]) -> tuple[float, float]:
    room = max(1.05, (loads[-1] / loads[0]) ** 0.04)
    return loads[0] / room, loads[-1] * room
