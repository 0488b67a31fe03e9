"""The highest rate a system keeps up with: bisection over a grid of rates, played in repetitions.

A rate keeps up when every repetition at it reached the target; one that did not is enough to fail it, so
noise near the knee makes the answer lower, never higher. That a system which keeps up with a rate keeps up
with all lower ones is taken for granted, which is why the result is an interval of the grid and not a number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal

from harness.errors import BadInput

DIGITS = 4


def grid(low_rps: float, high_rps: float, ratio: float) -> list[float]:
    """Rates from low to high, both included, each `ratio` times the one before, to 4 digits; ascending.

    Decimal arithmetic: the same numbers on every machine. The last step may be smaller. Raises BadInput when
    the ends are no range of positive rates, or the ratio is so near 1 that two rates would be the same.
    """
    if not 0 < low_rps < high_rps:
        raise BadInput(
            f"rates from {low_rps:g} to {high_rps:g}: the first must be positive and below the last"
        )
    if ratio <= 1:
        raise BadInput(f"ratio {ratio:g} of neighbouring rates must be above 1")
    exact, rounded = (
        Context(prec=28, rounding=ROUND_HALF_EVEN),
        Context(prec=DIGITS, rounding=ROUND_HALF_EVEN),
    )
    factor, last = Decimal(repr(ratio)), Decimal(repr(high_rps))
    rate = Decimal(repr(low_rps))
    rates = [rate]
    while (rate := exact.multiply(rate, factor)) < last:
        step = rounded.plus(rate)
        if step <= rates[-1]:
            raise BadInput(f"ratio {ratio:g}: neighbouring rates are the same to {DIGITS} digits, {step}")
        rates.append(step)
    return [float(step) for step in rates if step < last] + [float(last)]


def _bracket(rates: Sequence[float], outcomes: Mapping[float, list[bool]], repeats: int) -> tuple[int, int]:
    """Places of the highest rate that keeps up below the lowest that does not, and of that one.

    -1 and len(rates) stand for the rates below and above the grid, taken to keep up and to fail.
    """
    failing = [place for place, rate in enumerate(rates) if not all(outcomes.get(rate, []))]
    high = failing[0] if failing else len(rates)
    passing = [place for place in range(high) if len(outcomes.get(rates[place], [])) >= repeats]
    return (passing[-1] if passing else -1), high


def next_probe(rates: Sequence[float], outcomes: Mapping[float, list[bool]], repeats: int) -> float | None:
    """The rate to play next, once; None when the interval is one step of the grid.

    `outcomes`: for each rate played, whether each repetition so far reached the target. A rate is played
    until one repetition misses or `repeats` reached it. Takes the outcomes of a search that was cut, too.
    """
    low, high = _bracket(rates, outcomes, repeats)
    return None if high - low == 1 else rates[(low + high) // 2]


def interval(
    rates: Sequence[float], outcomes: Mapping[float, list[bool]], repeats: int
) -> tuple[float | None, float | None]:
    """Highest rate that kept up and lowest that did not, as far as `outcomes` say.

    None for the first: not even the lowest rate kept up (or none was played often enough). None for the
    second: no rate failed. A rate above a failing one counts for nothing.
    """
    low, high = _bracket(rates, outcomes, repeats)
    return (rates[low] if low >= 0 else None), (rates[high] if high < len(rates) else None)
