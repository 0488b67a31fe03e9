"""Gates on comparisons whose ratio is known."""

import pytest

from harness.errors import BadInput
from harness.gate import Gate
from harness.ratios import compare
from harness.stats import MIN_PAIRS
from tests.harness.made_serving import COMPARISONS, against, repetitions, scaled, side, simulated


@pytest.mark.parametrize(
    ("ratio", "metric", "loses", "differs"),
    [
        (1.0, "output_tokens_per_s", False, False),
        (0.97, "output_tokens_per_s", False, False),
        (0.949, "output_tokens_per_s", False, True),
        (0.93, "output_tokens_per_s", True, True),
        (1.2, "output_tokens_per_s", False, True),
        (1.07, "ttft_ms_p50", True, True),
        (1.05, "ttft_ms_p50", False, True),
        (0.8, "ttft_ms_p50", False, True),
    ],
)
def test_gates(ratio, metric, loses, differs):
    found = against([100.0] * MIN_PAIRS, scaled(ratio), metric)
    assert bool(Gate("max-loss", 0.05).breaches(found)) == loses
    assert bool(Gate("within", 0.05).breaches(found)) == differs


def test_a_breach_says_what_broke_it():
    (line,) = Gate("max-loss", 0.05).breaches(against([100.0] * MIN_PAIRS, scaled(0.9)))
    assert line == "c8: 0.900 [0.893, 0.907]"


def test_a_wide_interval_is_no_agreement_and_no_shown_loss():
    noisy = against([100.0] * MIN_PAIRS, [80.0, 120.0, 100.0, 90.0, 110.0, 100.0])
    assert Gate("within", 0.05).breaches(noisy) and not Gate("max-loss", 0.05).breaches(noisy)
    assert [line[:3] for line in Gate("max-loss", 0.05).doubts(noisy)] == ["c8:"]


@pytest.mark.parametrize(
    ("ratio", "metric", "doubted"),
    [
        (0.97, "output_tokens_per_s", False),
        (0.951, "output_tokens_per_s", True),
        (0.9, "output_tokens_per_s", False),
        (1.049, "tpot_ms_p50", True),
        (1.03, "tpot_ms_p50", False),
        (1.1, "tpot_ms_p50", False),
    ],
)
def test_a_loss_that_is_neither_shown_nor_excluded_is_said(ratio, metric, doubted):
    found = against([100.0] * MIN_PAIRS, scaled(ratio), metric)
    assert bool(Gate("max-loss", 0.05).doubts(found)) == doubted
    assert Gate("within", 0.05).doubts(found) == []


def two_loads(ratios, counts):
    """Two runs of two loads with a number of repetitions each."""
    a, b = [], []
    for name, ratio, count in zip(("c1", "c8"), ratios, counts, strict=True):
        a += repetitions([100.0] * count, load_name=name)
        b += repetitions(scaled(ratio, count), load_name=name, run="r2")
    return compare(side(*a), side(*b, run="r2"))[0]


def test_where_repetitions_are_few_the_pooled_interval_is_judged():
    gate = Gate("within", 0.05)
    close = two_loads((1.0, 1.0), (2, 4))
    assert close.intervals["c1"].low < 0.95, "two pairs leave a wide interval"
    assert gate.breaches(close) == []
    apart = two_loads((0.94, 0.94), (3, 6))
    assert [line.partition(":")[0] for line in gate.breaches(apart)] == ["c8", "pooled, 2 loads"]


def test_few_repetitions_that_lie_wholly_outside_break_either_gate():
    found = two_loads((0.8, 1.0), (3, 6))
    for kind in ("within", "max-loss"):
        assert Gate(kind, 0.1).breaches(found)[0].startswith("c1: 0.8")


def test_a_load_that_b_lost_breaks_a_gate_and_one_that_it_never_played_does_not():
    a = [*repetitions([100.0] * MIN_PAIRS), *repetitions([100.0], load_name="c256")]
    b = repetitions([100.0] * MIN_PAIRS, run="r2")
    crashed = repetitions([100.0], load_name="c256", run="r2", verdict="INVALID", reasons="failure: gone")
    gate = Gate("max-loss", 0.05)
    assert gate.breaches(compare(side(*a), side(*b, run="r2"))[0]) == []
    assert gate.breaches(compare(side(*a), side(*b, *crashed, run="r2"))[0]) == ["c256: no usable repetition"]


def test_a_server_that_lost_all_there_was_breaks_a_gate_without_any_interval():
    found = against([100.0], [100.0], verdict="INVALID", reasons="failure: gone")
    assert Gate("within", 0.05).breaches(found) == ["c8: no usable repetition"]


def test_a_gate_without_an_interval_cannot_be_judged():
    with pytest.raises(BadInput, match="too few pairs for an interval"):
        Gate("max-loss", 0.05).breaches(against([100], [100]))


def test_a_slowed_server_breaks_a_gate_set_below_it_and_a_like_one_does_not():
    gate = Gate("max-loss", 0.02)
    slowed, like = simulated(14, 0.95), simulated(15, 1.0)
    assert sum(bool(gate.breaches(each)) for each in slowed) >= 0.9 * COMPARISONS
    assert not any(gate.breaches(each) for each in like)
