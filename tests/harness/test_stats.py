"""Intervals of ratios and the drift test, against tables, by hand, and by simulation with known truth."""

import math
import random
from statistics import fmean, stdev

import pytest

from harness.errors import BadInput
from harness.stats import (
    MIN_PAIRS,
    Interval,
    central_probability,
    drift,
    ratio_interval,
    t_factor,
)

PAIRS = 6
SIMULATIONS = 4000


@pytest.mark.parametrize(
    ("confidence", "df", "expected"),
    [
        (0.95, 1, 12.7062),
        (0.95, 2, 4.3027),
        (0.95, 3, 3.1824),
        (0.95, 5, 2.5706),
        (0.95, 10, 2.2281),
        (0.95, 11, 2.2010),
        (0.99, 5, 4.0321),
        (0.99, 8, 3.3554),
        (0.80, 1, 3.0777),
        (0.90, 30, 1.6973),
        (0.95, 120, 1.9799),
    ],
)
def test_students_factor_is_that_of_the_printed_tables(confidence, df, expected):
    assert t_factor(confidence, df) == pytest.approx(expected, abs=5e-5)
    assert central_probability(t_factor(confidence, df), df) == pytest.approx(confidence, abs=1e-12)


def test_with_many_degrees_of_freedom_it_is_the_normal_one():
    assert t_factor(0.95, 200_000) == pytest.approx(1.959964, abs=2e-5)


@pytest.mark.parametrize(
    ("confidence", "df", "said"),
    [(1.0, 5, "confidence 1 "), (0.0, 5, "confidence 0 "), (0.95, 0, "0 degrees of freedom")],
)
def test_a_factor_that_does_not_exist_is_refused(confidence, df, said):
    with pytest.raises(BadInput, match=said):
        t_factor(confidence, df)


def test_an_interval_by_hand():
    """Logs 0, 0.02, 0.04: mean 0.02, s 0.02, t 4.3027."""
    found = ratio_interval([(10, 10), (5, 5 * math.exp(0.02)), (2, 2 * math.exp(0.04))])
    half = 4.302653 * 0.02 / math.sqrt(3)
    assert found.ratio == pytest.approx(math.exp(0.02))
    assert (found.low, found.high) == pytest.approx((math.exp(0.02 - half), math.exp(0.02 + half)))
    assert found.pairs == 3


def test_swapped_sides_give_the_reciprocal():
    pairs = [(100, 97), (103, 99), (98, 96)]
    found, swapped = ratio_interval(pairs), ratio_interval([(b, a) for a, b in pairs])
    assert (swapped.ratio, swapped.low, swapped.high) == pytest.approx(
        (1 / found.ratio, 1 / found.high, 1 / found.low)
    )


def test_equal_values_leave_no_width():
    assert ratio_interval([(7.0, 7.0)] * 3) == Interval(1.0, 1.0, 1.0, 3)


def test_too_few_pairs_are_said_or_refused():
    assert ratio_interval([(1, 1)] * (MIN_PAIRS - 1)).caveat == "interval from n < 6 pairs: 5"
    assert ratio_interval([(1, 1)] * MIN_PAIRS).caveat == ""
    with pytest.raises(BadInput, match="1 pairs: an interval needs at least 2"):
        ratio_interval([(1, 1)])


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_a_value_without_logarithm_is_refused(value):
    for pair in ((1.0, value), (value, 1.0)):
        with pytest.raises(BadInput, match="has no logarithm"):
            ratio_interval([(1, 1), pair])


def mirrored(stream, noise, over_run, ratio=1.0):
    """Pairs measured A B, B A, A B, …: log-normal noise a value, a linear drift from first place to last."""
    step = math.log(1 + over_run) / (2 * PAIRS - 1)

    def value(level, place):
        return level * math.exp(step * place + stream.gauss(0, noise))

    return [
        (value(1000, 2 * pair + pair % 2), value(1000 * ratio, 2 * pair + 1 - pair % 2))
        for pair in range(PAIRS)
    ]


def one_after_the_other(stream, noise, over_run):
    """The same values in the order A A A … B B B …."""
    step = math.log(1 + over_run) / (2 * PAIRS - 1)
    values = [1000 * math.exp(step * place + stream.gauss(0, noise)) for place in range(2 * PAIRS)]
    return list(zip(values[:PAIRS], values[PAIRS:], strict=True))


def unpaired(pairs):
    """The interval of the ratio of two independent samples, with a common variance."""
    logs_a, logs_b = ([math.log(value) for value in side] for side in zip(*pairs, strict=True))
    mean = fmean(logs_b) - fmean(logs_a)
    spread = math.sqrt((stdev(logs_a) ** 2 + stdev(logs_b) ** 2) / len(pairs))
    half = t_factor(0.95, 2 * len(pairs) - 2) * spread
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(pairs))


def share_covering(truth, intervals):
    return fmean(found.low <= truth <= found.high for found in intervals)


@pytest.mark.parametrize("noise", [0.01, 0.02])
@pytest.mark.parametrize("over_run", [0.0, 0.02, -0.02])
@pytest.mark.parametrize("ratio", [1.0, 0.95])
def test_intervals_cover_the_true_ratio_in_the_stated_share(noise, over_run, ratio):
    stream = random.Random(4)
    found = [ratio_interval(mirrored(stream, noise, over_run, ratio)) for _ in range(SIMULATIONS)]
    assert share_covering(ratio, found) == pytest.approx(0.95, abs=0.015)


@pytest.mark.parametrize("confidence", [0.8, 0.99])
def test_other_confidences_cover_as_they_say(confidence):
    stream = random.Random(5)
    found = [ratio_interval(mirrored(stream, 0.01, 0.0), confidence) for _ in range(SIMULATIONS)]
    assert share_covering(1, found) == pytest.approx(confidence, abs=0.015)


@pytest.mark.parametrize("over_run", [0.1, -0.3])
def test_a_strong_drift_makes_paired_intervals_wider_and_never_too_narrow(over_run):
    stream = random.Random(6)
    found = [ratio_interval(mirrored(stream, 0.01, over_run)) for _ in range(SIMULATIONS)]
    assert share_covering(1, found) >= 0.95
    assert fmean(math.log(interval.ratio) for interval in found) == pytest.approx(0, abs=5e-4)


def test_systems_measured_one_after_the_other_are_told_apart_though_they_are_the_same():
    stream = random.Random(7)
    measured = [one_after_the_other(stream, 0.01, 0.03) for _ in range(1000)]
    assert share_covering(1, [ratio_interval(pairs) for pairs in measured]) < 0.5
    assert share_covering(1, [unpaired(pairs) for pairs in measured]) < 0.5


def test_unpaired_intervals_take_the_drift_for_noise_and_miss_five_percent():
    """Of the same values: the stated share does not hold, and what pairs tell apart is lost."""
    stream = random.Random(8)
    same = [mirrored(stream, 0.01, 0.2) for _ in range(1000)]
    slower = [mirrored(stream, 0.01, 0.2, 0.95) for _ in range(1000)]
    assert share_covering(1, [unpaired(pairs) for pairs in same]) > 0.99
    assert share_covering(1, [unpaired(pairs) for pairs in slower]) > 0.5
    assert share_covering(1, [ratio_interval(pairs) for pairs in slower]) < 0.05


@pytest.mark.parametrize(("noise", "told_apart"), [(0.01, 0.999), (0.02, 0.9)])
def test_five_percent_are_told_apart(noise, told_apart):
    stream = random.Random(9)
    found = [ratio_interval(mirrored(stream, noise, 0.02, 0.95)) for _ in range(1000)]
    assert fmean(interval.high < 1 for interval in found) >= told_apart


def test_a_drift_by_hand():
    """Two loads of different level, logs 0, 0.01, 0.02 at places 6, 8, 10: slope 0.005, no residual."""
    rising = [(6, 1.0), (8, math.exp(0.01)), (10, math.exp(0.02))]
    found = drift([rising, [(place, 500 * value) for place, value in rising]])
    assert found is not None
    assert found.slope == pytest.approx(0.005)
    assert found.over_run == pytest.approx(math.exp(0.02))
    assert (found.values, found.span) == (6, 4)
    assert found.p < 1e-6


def test_the_p_value_of_a_drift_is_that_of_the_textbook_regression():
    """x 1..5, y 1 2 1.3 3.75 2.25: slope 0.425, standard error 0.305, t 1.39 with 3 df, p 0.258."""
    found = drift([[(x, math.exp(y)) for x, y in enumerate([1, 2, 1.3, 3.75, 2.25], 1)]])
    assert found is not None
    assert found.slope == pytest.approx(0.425)
    assert found.p == pytest.approx(0.258, abs=5e-4)


def test_without_a_degree_of_freedom_there_is_no_drift():
    assert drift([]) is None
    assert drift([[(0, 1.0), (1, 2.0)]]) is None
    assert drift([[(0, 1.0)], [(1, 2.0)], [(2, 1.5)]]) is None
    assert drift([[(3, 1.0), (3, 2.0), (3, 1.5)]]) is None


def test_drift_is_found_in_the_stated_share_where_there_is_none_and_nearly_always_where_there_is():
    stream = random.Random(10)

    def run(over_run):
        step = math.log(1 + over_run) / 23
        return [
            [(place, level * math.exp(step * place + stream.gauss(0, 0.01))) for place in range(first, 24, 4)]
            for first, level in enumerate((100, 900, 3000, 8000))
        ]

    without = [drift(run(0.0)).p for _ in range(SIMULATIONS)]
    assert fmean(p < 0.05 for p in without) == pytest.approx(0.05, abs=0.015)
    assert fmean(drift(run(0.05)).p < 0.05 for _ in range(500)) > 0.95
