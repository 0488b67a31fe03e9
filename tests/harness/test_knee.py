"""The search of the highest rate, against servers that answer as a formula says."""

import itertools
import random

import pytest

from harness.errors import BadInput
from harness.knee import grid, interval, next_probe

RATES = grid(10, 200, 1.1)


def search(keeps_up, repeats=2, rates=RATES):
    """Plays until the search is done: what it found, and the rates in the order they were played."""
    outcomes, played = {}, []
    while (rate := next_probe(rates, outcomes, repeats)) is not None:
        assert len(played) < 100, "the search does not end"
        outcomes.setdefault(rate, []).append(keeps_up(rate))
        played.append(rate)
    return interval(rates, outcomes, repeats), played


def test_the_grid_has_both_ends_and_the_same_decimals_everywhere():
    assert grid(1, 10, 2) == [1, 2, 4, 8, 10]
    assert grid(1, 8, 2) == [1, 2, 4, 8]
    assert grid(1, 2, 1.99999) == [1, 2], "a rate that is the last one to 4 digits"
    assert grid(0.1, 0.3, 1.1) == [0.1, 0.11, 0.121, 0.1331, 0.1464, 0.1611, 0.1772, 0.1949, 0.2144, 0.2358,
                                   0.2594, 0.2853, 0.3]  # fmt: skip
    assert grid(10, 200, 1.1)[-3:] == [174.5, 191.9, 200]


@pytest.mark.parametrize("ratio", [1.01, 1.05, 1.5, 3])
def test_neighbours_are_a_ratio_apart(ratio):
    rates = grid(3, 1000, ratio)
    steps = [high / low for low, high in itertools.pairwise(rates)]
    assert steps[:-1] == pytest.approx([ratio] * (len(steps) - 1), rel=1.1e-3)
    assert 1 < steps[-1] <= ratio * 1.001


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((0, 10, 2), "rates from 0 to 10"),
        ((10, 10, 2), "rates from 10 to 10"),
        ((1, 10, 1.0), "ratio 1 "),
        ((1, 10, 1.00001), "the same to 4 digits"),
    ],
)
def test_a_grid_that_is_none_is_refused(arguments, said):
    with pytest.raises(BadInput, match=said):
        grid(*arguments)


@pytest.mark.parametrize("repeats", [1, 2, 3])
def test_every_knee_is_found_between_its_two_neighbours(repeats):
    for place, knee in enumerate(RATES[:-1]):
        found, played = search(lambda rate, knee=knee: rate <= knee, repeats)
        assert found == (knee, RATES[place + 1])
        assert len(set(played)) <= len(RATES).bit_length()


def test_a_server_that_always_keeps_up_has_no_upper_end():
    found, played = search(lambda rate: True)
    assert found == (RATES[-1], None)
    assert played[-2:] == [RATES[-1], RATES[-1]]


def test_a_server_that_never_keeps_up_has_no_lower_end():
    found, played = search(lambda rate: False)
    assert found == (None, RATES[0])
    assert len(played) == len(set(played)), "one miss is enough"


def test_a_grid_of_one_step_is_played_at_both_ends():
    assert search(lambda rate: rate < 2, repeats=1, rates=[1, 2]) == ((1, 2), [1, 2])


def test_a_rate_is_repeated_before_it_counts_as_kept_up_with():
    rates = [1.0, 2.0, 3.0]
    assert next_probe(rates, {}, 2) == 2
    assert next_probe(rates, {2.0: [True]}, 2) == 2
    assert interval(rates, {2.0: [True]}, 2) == (None, None)
    assert next_probe(rates, {2.0: [True, True]}, 2) == 3
    assert next_probe(rates, {2.0: [True, False]}, 2) == 1
    assert interval(rates, {2.0: [True, False], 1.0: [True, True]}, 2) == (1, 2)


def test_a_search_that_was_cut_goes_on_where_it_was():
    whole, played = search(lambda rate: rate <= 60)
    for cut in range(len(played)):
        outcomes = {}
        for rate in played[:cut]:
            outcomes.setdefault(rate, []).append(rate <= 60)
        assert next_probe(RATES, outcomes, 2) == played[cut]
    assert whole[0] <= 60 < whole[1]


def test_a_rate_kept_up_with_above_one_that_was_not_counts_for_nothing():
    outcomes = {10.0: [True, True], RATES[1]: [False], RATES[2]: [True, True]}
    assert interval(RATES, outcomes, 2) == (10, RATES[1])
    assert next_probe(RATES, outcomes, 2) is None


def test_a_noisy_server_gives_an_interval_near_its_knee_and_rather_below():
    """Keeps up with probability 1 / (1 + (rate / 60)^40): half at 60, 98 % at 54, 2 % at 66."""
    stream = random.Random(3)

    def keeps_up(rate):
        return stream.random() < 1 / (1 + (rate / 60) ** 40)

    found = [search(keeps_up, repeats=3)[0] for _ in range(300)]
    assert all(low is not None and high is not None for low, high in found)
    near = [low >= 45 and high <= 70 for low, high in found]
    assert sum(near) >= 270
    assert sum(high for _, high in found) / len(found) < 62
    assert all(RATES.index(high) == RATES.index(low) + 1 for low, high in found)
