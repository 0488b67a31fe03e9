"""Empirical distribution functions: a curve through few of many values, and a mark at the median."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from figures.style import SystemStyle
from harness.metrics import percentile

STEPS = 400
"""A curve goes through this many ranks: finer than print, and a million events stay a small file."""

LEAST_MS = 0.01
"""Smaller values stand here: a logarithmic axis has no zero."""


def through(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values and shares at STEPS ranks or fewer of sorted values, the first and last among them."""
    if values.size == 0:
        return np.empty(0), np.empty(0)
    ranks = np.unique(np.linspace(1, values.size, min(STEPS, values.size)).round().astype(np.int64))
    return np.maximum(values[ranks - 1], LEAST_MS), ranks / values.size


def draw_ecdf(axes: Axes, style: SystemStyle, values: np.ndarray) -> None:
    """Share of values at or below each; `values` in ms, sorted, infinite where a request failed."""
    if values.size == 0:
        return
    value, share = through(values)
    axes.step(np.concatenate([value[:1], value]), np.concatenate([[0], share]), where="post", **style.line)
    median = percentile(values, 50)
    if median is not None and np.isfinite(median):
        axes.plot(max(median, LEAST_MS), 0.5, **style.mark)
