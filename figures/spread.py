"""A value over repetitions: its mean, its interval, and what a reader is told of both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from harness.stats import MIN_PAIRS, ratio_interval

LEAST_FOR_T = 3


@dataclass(frozen=True)
class Spread:
    """`low` and `high` are those of the 95 % t-interval from LEAST_FOR_T values on, of the values themselves
    below; one value has no interval."""

    mean: float
    low: float
    high: float
    number: int


def of_ratios(pairs: Sequence[tuple[float, float]]) -> Spread:
    """Geometric mean of b / a over (a, b) pairs of positive numbers; t-interval on the logarithms.

    Raises ValueError without a pair.
    """
    if not pairs:
        raise ValueError("a spread needs a value")
    if len(pairs) >= LEAST_FOR_T:
        found = ratio_interval(pairs)
        return Spread(found.ratio, found.low, found.high, found.pairs)
    ratios = np.array([b / a for a, b in pairs])
    return Spread(float(np.exp(np.log(ratios).mean())), float(ratios.min()), float(ratios.max()), len(pairs))


def of_values(values: Iterable[float]) -> Spread:
    """As of_ratios, of positive numbers; so the ratio of two means is the mean of the ratios of pairs."""
    return of_ratios([(1.0, value) for value in values])


def of_shares(values: Iterable[float]) -> Spread:
    """Of numbers that may be zero or at their greatest: mean, smallest and largest."""
    array = np.array(list(values))
    return Spread(float(array.mean()), float(array.min()), float(array.max()), len(array))


def described_in_table(ratios: Sequence[Spread]) -> str:
    """What stands in brackets after ratios of pairs, and how many pairs there are."""
    least, most = min(each.number for each in ratios), max(each.number for each in ratios)
    pairs = f"{most} pair{'s' if most > 1 else ''}" if least == most else f"{least} to {most} pairs"
    if most == 1:
        return f"{pairs}, so no interval"
    if most < LEAST_FOR_T:
        return f"{pairs}, [smallest, largest]"
    caveat = f"; an interval of fewer than {MIN_PAIRS} pairs leans on log-normal noise"
    return f"{pairs}, [95 % t-interval on logarithms]{caveat if least < MIN_PAIRS else ''}"


def described(numbers: Iterable[int]) -> str:
    """What marks and bars are, for spreads of these numbers of repetitions."""
    seen = set(numbers)
    if seen <= {1}:
        return "one repetition each, so no interval"
    if min(seen) >= LEAST_FOR_T:
        bars = "95 % t-interval on logarithms"
    elif max(seen) < LEAST_FOR_T:
        bars = "smallest to largest"
    else:
        bars = f"95 % t-interval on logarithms, smallest to largest below {LEAST_FOR_T} repetitions"
    return f"marks: geometric mean of the repetitions; bars: {bars} (within the mark where none shows)"
