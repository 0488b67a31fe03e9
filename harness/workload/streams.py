"""Named random streams whose values are the same on every machine and Python version.

Only `random.Random.random()` is used, which Python keeps the same for a given seed. Everything derived from
it is integer arithmetic, or `decimal` arithmetic with a stated precision: the C library's logarithm may
differ in the last bit from machine to machine, decimal's is correctly rounded everywhere.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import MutableSequence
from decimal import ROUND_HALF_EVEN, Context, Decimal

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
    survival = Decimal(1.0 - stream.random())  # exact: u is a multiple of 2**-53
    gap_s = _EXACT.divide(_EXACT.minus(_EXACT.ln(survival)), Decimal(rate_per_s))
    return int(_EXACT.multiply(gap_s, Decimal(NS_PER_S)).to_integral_value(ROUND_HALF_EVEN))
