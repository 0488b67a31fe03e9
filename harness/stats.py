"""Intervals of ratios from pairs, and a test for drift: Student's t on logarithms.

Pairs are measured next to each other, in alternating order (A B, then B A): a drift of d per place adds +d to
the log ratio of one order and -d to that of the other. Where both orders are equally frequent it cancels in
the mean; in the spread it stays, so that it makes intervals wider and never too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, stdev

from harness.errors import BadInput

MIN_PAIRS = 6
"""From here on Student's factor is at most 2.6. With two pairs it is 12.7: such an interval covers as often,
but is wide, and leans wholly on the noise being log-normal."""


@dataclass(frozen=True)
class Interval:
    """A ratio between the ends of its confidence interval, and the pairs it comes from."""

    ratio: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        return f"{self.ratio:.3f} [{self.low:.3f}, {self.high:.3f}]"

    @property
    def caveat(self) -> str:
        """What has to be said of it, or ''."""
        return f"interval from n < {MIN_PAIRS} pairs: {self.pairs}" if self.pairs < MIN_PAIRS else ""


@dataclass(frozen=True)
class Drift:
    """A trend over places in the order of a run, in log value: 0.01 is about 1 % for each place.

    `p`: probability of a slope this steep, either way, without a drift. `span`: first to last place.
    """

    slope: float
    p: float
    values: int
    span: float

    @property
    def over_run(self) -> float:
        """Value at the last place over that at the first."""
        return math.exp(self.slope * self.span)


def central_probability(t: float, df: int) -> float:
    """P(|T| < t) of Student's t with a whole number of degrees of freedom.

    The finite sums over powers of cos(theta), theta = atan(t / sqrt(df)), of Abramowitz and Stegun, Handbook
    of Mathematical Functions, 26.7.3 and 26.7.4; exact but for rounding.
    """
    theta = math.atan(t / math.sqrt(df))
    cosine, sine = math.cos(theta), math.sin(theta)
    odd = df % 2
    term = cosine if odd else 1.0
    total = 0.0
    for step in range(1, (df - 1) // 2 + 1 if odd else df // 2 + 1):
        total += term
        term *= cosine * cosine * (2 * step / (2 * step + 1) if odd else (2 * step - 1) / (2 * step))
    return 2 / math.pi * (theta + sine * total) if odd else sine * total


@lru_cache
def t_factor(confidence: float, df: int) -> float:
    """The t with P(|T| < t) = confidence: 2.571 at 0.95 and 5 degrees of freedom.

    By bisection of the angle atan(t / sqrt(df)), in which the probability rises without a long tail. Raises
    BadInput for a confidence outside (0, 1) or df below 1.
    """
    if not 0 < confidence < 1:
        raise BadInput(f"confidence {confidence:g} must lie between 0 and 1")
    if df < 1:
        raise BadInput(f"{df} degrees of freedom: at least 1 is needed")
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        if central_probability(math.sqrt(df) * math.tan(middle), df) < confidence:
            low = middle
        else:
            high = middle
    return math.sqrt(df) * math.tan(low)


def ratio_interval(pairs: Sequence[tuple[float, float]], confidence: float = 0.95) -> Interval:
    """Interval of b / a from pairs (a, b): exp(m -+ t s / sqrt(n)).

    m and s are mean and standard deviation of log(b / a) over the n pairs, t Student's factor with n - 1
    degrees of freedom; `ratio` = exp(m), the geometric mean. At log-normal noise of 1 % a value, six pairs
    give an interval of about +-1.4 %.

    Raises BadInput for fewer than 2 pairs, and for a value that is not positive and finite.
    """
    if len(pairs) < 2:
        raise BadInput(f"{len(pairs)} pairs: an interval needs at least 2")
    logs = [log_ratio(a, b) for a, b in pairs]
    mean = fmean(logs)
    half = t_factor(confidence, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(logs))


def log_ratio(a: float, b: float) -> float:
    """log(b / a). Raises BadInput for a value that is not positive and finite."""
    for value in (a, b):
        if not 0 < value < math.inf:
            raise BadInput(f"value {value:g} has no logarithm: a ratio needs positive, finite values")
    return math.log(b / a)


def drift(groups: Sequence[Sequence[tuple[float, float]]]) -> Drift | None:
    """Slope of log value against place, common to groups of (place, value) that have a level each.

    Least squares within groups: slope = sum (x - x_g)(y - y_g) / sum (x - x_g)^2, its standard error from the
    residuals with (values - groups - 1) degrees of freedom, p from Student's t. A group is one load: values
    of different loads are not compared. Values that share a cause (the systems of one block played the same
    prompts) must be made one before, or they count for more than they tell.

    None without a degree of freedom, or when all values of each group stand at one place. Values must be
    positive and finite, else BadInput.
    """
    centred = [point for group in groups if group for point in _centred(group)]
    df = len(centred) - sum(1 for group in groups if group) - 1
    spread = sum(x * x for x, _ in centred)
    if df < 1 or spread == 0:
        return None
    slope = sum(x * y for x, y in centred) / spread
    residual = sum((y - slope * x) ** 2 for x, y in centred)
    places = [place for group in groups for place, _ in group]
    error = math.sqrt(residual / df / spread)
    p = max(0.0, 1 - central_probability(abs(slope) / error, df)) if error > 0 else float(slope == 0)
    return Drift(slope, p, len(centred), max(places) - min(places))


def _centred(group: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    logs = [log_ratio(1.0, value) for _, value in group]
    place, level = fmean(place for place, _ in group), fmean(logs)
    return [(x - place, y - level) for (x, _), y in zip(group, logs, strict=True)]
