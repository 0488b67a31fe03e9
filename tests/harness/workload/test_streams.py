"""Random streams: independent by name, exact ranges, exponential gaps by inversion."""

import math
import random
import statistics
from decimal import Decimal
from fractions import Fraction

import pytest

from harness.workload.streams import (
    exactly,
    exponential_ns,
    gamma,
    gamma_ns,
    lognormal_int,
    named_stream,
    normal,
    shuffle,
    to_ns,
    uniform_int,
)


class Fixed(random.Random):
    """A stream that returns what the test says."""

    def __init__(self, *values: float) -> None:
        self._values = list(values)

    def random(self) -> float:
        return self._values.pop(0)


def test_a_stream_depends_on_seed_and_name_only() -> None:
    def draws(seed: int, name: str) -> tuple[float, ...]:
        stream = named_stream(seed, name)
        return tuple(stream.random() for _ in range(4))

    assert len({draws(seed, name) for seed in (0, 1) for name in ("arrivals", "lengths")}) == 4
    assert draws(0, "lengths") == draws(0, "lengths")


def test_known_draws() -> None:
    """The values themselves are part of the promise, not only that they repeat within a process."""
    assert named_stream(7, "lengths").random().hex() == "0x1.a3f335653fca9p-1"


def test_uniform_int_reaches_both_ends_and_nothing_else() -> None:
    largest = 1 - 2**-53
    assert uniform_int(Fixed(0.0), 3, 5) == 3
    assert uniform_int(Fixed(largest), 3, 5) == 5
    assert uniform_int(Fixed(largest), 4, 4) == 4
    stream = named_stream(1, "test")
    counts = [0] * 6
    for _ in range(6_000):
        counts[uniform_int(stream, 0, 5)] += 1
    assert all(abs(count - 1_000) < 5 * (6_000 * (1 / 6) * (5 / 6)) ** 0.5 for count in counts)


def test_shuffle_keeps_items_and_mixes_evenly() -> None:
    stream = named_stream(2, "test")
    firsts = [0] * 4
    for _ in range(4_000):
        items = list(range(4))
        shuffle(stream, items)
        assert sorted(items) == [0, 1, 2, 3]
        firsts[items[0]] += 1
    assert all(abs(count - 1_000) < 5 * (4_000 * 0.25 * 0.75) ** 0.5 for count in firsts)


def test_exponential_is_the_inverse_of_its_distribution() -> None:
    for u in (0.0, 2**-53, 0.25, 0.5, 0.999, 1 - 2**-53):
        expected_ns = -math.log(1 - u) / 2.5 * 1e9
        assert abs(exponential_ns(Fixed(u), 2.5) - expected_ns) <= 0.5 + 1e-12 * expected_ns
    assert exponential_ns(Fixed(0.0), 2.5) == 0


def test_normal_variates_are_normal() -> None:
    stream = named_stream(1, "test")
    draws = [float(normal(stream)) for _ in range(10_000)]
    assert abs(statistics.mean(draws)) < 4 / 100
    assert abs(statistics.stdev(draws) - 1) < 4 / 20_000**0.5
    expected = statistics.NormalDist()
    for point in (-2.0, -1.0, 0.0, 0.5, 1.5):
        share = expected.cdf(point)
        assert (
            abs(sum(draw <= point for draw in draws) / 10_000 - share)
            < 4 * (share * (1 - share)) ** 0.5 / 100
        )


def test_normal_is_the_polar_method() -> None:
    """(0.5, -0.25) after a point outside the disc, and one at its centre, whose logarithm does not exist."""
    stream = Fixed(0.99, 0.99, 0.5, 0.5, 0.75, 0.375)
    s = 0.5**2 + 0.25**2
    assert math.isclose(float(normal(stream)), 0.5 * math.sqrt(-2 * math.log(s) / s))


@pytest.mark.parametrize("shape", ["0.1", "0.5", "1", "2.5", "16"])
def test_gamma_variates_have_the_moments_of_their_shape(shape: str) -> None:
    """Mean k, variance k; the fourth central moment, 3 k^2 + 6 k, gives the sample variance its spread."""
    k, count, stream = float(shape), 6_000, named_stream(2, "test")
    draws = [float(gamma(stream, Decimal(shape))) for _ in range(count)]
    assert min(draws) >= 0
    assert abs(statistics.mean(draws) - k) < 4 * (k / count) ** 0.5
    assert abs(statistics.variance(draws) - k) < 4 * ((2 * k**2 + 6 * k) / count) ** 0.5


def test_gamma_below_shape_one_has_the_right_distribution() -> None:
    """Of shape 1/2 it is z^2 / 2 for a standard normal z."""
    stream = named_stream(3, "test")
    draws = [float(gamma(stream, Decimal("0.5"))) for _ in range(6_000)]
    for point in (0.01, 0.1, 0.5, 2.0):
        share = 2 * statistics.NormalDist().cdf((2 * point) ** 0.5) - 1
        assert (
            abs(sum(draw <= point for draw in draws) / 6_000 - share)
            < 4 * (share * (1 - share) / 6_000) ** 0.5
        )


def test_known_gamma_gap() -> None:
    stream = named_stream(7, "arrivals")
    assert [gamma_ns(stream, 2.5, 2.0) for _ in range(3)] == [133_630_400, 5_481_415, 5_932_745]


def test_lognormal_has_its_median_and_spread() -> None:
    stream = named_stream(4, "test")
    draws = [lognormal_int(stream, 10_000, 0.5) for _ in range(6_000)]
    logs = [math.log(draw / 10_000) for draw in draws]
    assert abs(statistics.mean(logs)) < 4 * 0.5 / 6_000**0.5
    assert abs(statistics.stdev(logs) - 0.5) < 4 * 0.5 / 12_000**0.5


def test_numbers_are_taken_as_written() -> None:
    assert exactly(0.1) == Fraction(1, 10)
    assert exactly(3) == exactly(3.0) == 3
    assert to_ns(0.0000000015) == 2
    assert to_ns(86_399.999999999) == 86_399_999_999_999
