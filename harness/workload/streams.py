"""Named random streams whose values are the same on every machine and Python version.

Only `random.Random.random()` is used, which Python keeps the same for a given seed. Everything derived from
it is integer arithmetic, or `decimal` arithmetic with a stated precision: the C library's logarithm may
differ in the last bit from machine to machine, decimal's logarithm, exponential and square root are correctly
rounded everywhere.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import MutableSequence
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction

NS_PER_S = 10**9
_EXACT = Context(prec=34, rounding=ROUND_HALF_EVEN)


def named_stream(seed: int, name: str) -> random.Random:
    """A generator of its own for each use of randomness, so that drawing more lengths moves no arrival.

    Seeded with SHA-256 of "seed:name" (the idea of AIPerf's named generators).
    """
    return random.Random(int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest(), "big"))


def uniform_int(stream: random.Random, low: int, high: int) -> int:
    """Uniform over low..high, both included, for ranges far below 2**53 (by scaling one random())."""
    return low + int(stream.random() * (high - low + 1))


def shuffle(stream: random.Random, items: MutableSequence) -> None:
    """Fisher-Yates in place (`random.shuffle` promises no stable sequence)."""
    for last in range(len(items) - 1, 0, -1):
        chosen = uniform_int(stream, 0, last)
        items[last], items[chosen] = items[chosen], items[last]


def exponential_ns(stream: random.Random, rate_per_s: float) -> int:
    """A gap of a Poisson process in whole ns: -ln(1 - u) / rate by inversion, u from [0, 1); never
    negative."""
    gap_s = _EXACT.divide(_EXACT.minus(_EXACT.ln(_above_zero(stream))), Decimal(rate_per_s))
    return int(_EXACT.multiply(gap_s, Decimal(NS_PER_S)).to_integral_value(ROUND_HALF_EVEN))


def normal(stream: random.Random) -> Decimal:
    """A standard normal variate, by Marsaglia's polar method (Marsaglia and Bray, SIAM Review 6, 1964).

    For a point (x, y) uniform in the unit disc and s = x^2 + y^2: x * sqrt(-2 ln(s) / s). The second variate
    of the pair is not used, so that a draw leaves no state behind.
    """
    while True:
        x, y = Decimal(2 * stream.random() - 1), Decimal(2 * stream.random() - 1)
        s = _EXACT.fma(x, x, _EXACT.multiply(y, y))
        if 0 < s < 1:
            return _EXACT.multiply(x, _EXACT.sqrt(_EXACT.divide(_EXACT.multiply(-2, _EXACT.ln(s)), s)))


def gamma(stream: random.Random, shape: Decimal) -> Decimal:
    """A gamma variate of this shape (above 0) and scale 1; mean and variance are both `shape`.

    Rejection from the cube of a normal variate (Marsaglia and Tsang, ACM TOMS 26, 2000): with
    d = shape - 1/3, c = 1 / sqrt(9 d) and v = (1 + c x)^3, d v is accepted when
    ln(u) < x^2 / 2 + d - d v + d ln(v). Below shape 1, theirs too: gamma(shape + 1) * u^(1 / shape).
    """
    if shape < 1:
        larger = gamma(stream, _EXACT.add(shape, 1))
        exponent = _EXACT.divide(_EXACT.ln(_above_zero(stream)), shape)
        return _EXACT.multiply(larger, _EXACT.exp(exponent))
    d = _EXACT.subtract(shape, _EXACT.divide(Decimal(1), Decimal(3)))
    c = _EXACT.divide(Decimal(1), _EXACT.sqrt(_EXACT.multiply(9, d)))
    while True:
        x = normal(stream)
        root = _EXACT.fma(c, x, 1)
        u = _above_zero(stream)
        if root <= 0:
            continue
        v = _EXACT.multiply(_EXACT.multiply(root, root), root)
        bound = _EXACT.fma(
            x, _EXACT.divide(x, 2), _EXACT.multiply(d, _EXACT.add(_EXACT.ln(v), _EXACT.subtract(1, v)))
        )
        if _EXACT.ln(u) < bound:
            return _EXACT.multiply(d, v)


def gamma_ns(stream: random.Random, rate_per_s: float, cv: float) -> int:
    """A gap of a renewal process in whole ns: gamma with mean 1 / rate and coefficient of variation `cv`.

    A gamma variate of shape k has CV 1 / sqrt(k): k = 1 / cv^2, scaled by 1 / (k rate) = cv^2 / rate.
    """
    squared = _EXACT.power(Decimal(str(cv)), 2)
    gap_s = _EXACT.divide(
        _EXACT.multiply(gamma(stream, _EXACT.divide(1, squared)), squared), Decimal(str(rate_per_s))
    )
    return int(_EXACT.multiply(gap_s, Decimal(NS_PER_S)).to_integral_value(ROUND_HALF_EVEN))


def lognormal_int(stream: random.Random, median: int, sigma: float) -> int:
    """median * exp(sigma * z) for a standard normal z, rounded to a whole number."""
    factor = _EXACT.exp(_EXACT.multiply(Decimal(str(sigma)), normal(stream)))
    return int(_EXACT.multiply(median, factor).to_integral_value(ROUND_HALF_EVEN))


def exactly(value: float) -> Fraction:
    """The number that was written: 0.1 is one tenth, not the binary fraction next to it."""
    return Fraction(str(value))


def to_ns(seconds: float) -> int:
    """Whole ns, the nearest to the number of seconds written."""
    return round(exactly(seconds) * NS_PER_S)


def _above_zero(stream: random.Random) -> Decimal:
    """1 - u, exact as u is a multiple of 2**-53: uniform over (0, 1]."""
    return Decimal(1.0 - stream.random())
