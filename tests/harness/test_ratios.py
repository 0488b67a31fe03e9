"""Ratios of rows with known truth: pairs, intervals, what is left out, and what is refused."""

import math
import random
from typing import get_args

import pytest

from harness.compare import remarks
from harness.errors import BadInput
from harness.ratios import METRICS, compare, unmatched
from harness.schema import ServingRow
from harness.stats import MIN_PAIRS
from tests.harness.made_serving import COMPARISONS, against, interleaved, repetitions, row, side, simulated


def binomial_band(trials, share, outside=0.01):
    """Fewest and most successes, each tail outside them with at most half of `outside`."""
    chances = [math.comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(trials + 1)]
    low = next(k for k in range(trials + 1) if sum(chances[: k + 1]) > outside / 2)
    high = next(k for k in range(trials, -1, -1) if sum(chances[k:]) > outside / 2)
    return low, high


@pytest.mark.parametrize("noise", [0.01, 0.02])
def test_a_against_a_covers_one_in_the_stated_share(noise):
    found = simulated(11, 1.0, noise=noise)
    covering = sum(each.intervals["c8"].low <= 1 <= each.intervals["c8"].high for each in found)
    low, high = binomial_band(COMPARISONS, 0.95)
    assert (low, high) == (43, 50)
    assert low <= covering <= high
    assert sum(each.verdict(each.intervals["c8"]) == "not told apart" for each in found) == covering


def test_a_server_slowed_by_five_percent_is_told_apart():
    found = simulated(12, 0.95, noise=0.01)
    assert sum(each.verdict(each.intervals["c8"]) == "B worse" for each in found) >= 0.95 * COMPARISONS


def test_the_drift_of_a_run_is_seen_apart_from_the_ratio():
    found = simulated(13, 0.8, noise=0.002, over_run=0.5)
    assert all(set(each.drifts) == {"r1"} for each in found)
    assert sum(each.drifts["r1"].p < 0.05 for each in found) > 0.95 * COMPARISONS
    assert all(each.mean_lag == 0 for each in found)


def test_a_drift_without_noise_is_exact_in_a_mirrored_run():
    (found,) = compare(*interleaved(random.Random(16), 0.8, noise=0, prompts=0, over_run=0.2))
    assert found.drifts["r1"].slope == pytest.approx(math.log(1.2) / 11, rel=1e-9)
    assert found.loads[0].ratio == pytest.approx(0.8, rel=1e-9)


def test_pairs_are_repetitions_of_a_load_on_the_same_schedule():
    found = against([100, 200, 400], [110, 210, 440])
    (load,) = found.loads
    assert [(pair.a, pair.b) for pair in load.pairs] == [(100, 110), (200, 210), (400, 440)]
    assert load.a == pytest.approx(200) and load.ratio == pytest.approx((1.1 * 1.05 * 1.1) ** (1 / 3))
    assert load.interval.caveat == "interval from n < 6 pairs: 3"
    assert found.left_out == () and found.pooled is None


def test_sessions_matter_within_a_run_only():
    assert len(against([100, 100], [100, 100], session=3).loads[0].pairs) == 2


def test_one_repetition_has_a_ratio_and_no_interval():
    found = against([100], [90])
    assert found.loads[0].ratio == pytest.approx(0.9)
    assert found.intervals == {} and found.pooled is None
    assert found.verdict(found.loads[0].interval) == "no interval"


def loads(ratios, **changes):
    """Two runs of one repetition a load, whose ratios are given."""
    names = [f"c{number}" for number in range(len(ratios))]
    a = [each for name in names for each in repetitions([100.0], load_name=name)]
    b = [
        each
        for name, ratio in zip(names, ratios, strict=True)
        for each in repetitions([100.0 * ratio], load_name=name, run="r2", **changes)
    ]
    return compare(side(*a), side(*b, run="r2"))[0]


def test_loads_with_few_pairs_are_pooled():
    found = loads([0.9, 0.91, 0.92, 0.9, 0.91, 0.92])
    assert found.intervals == {}
    assert found.pooled_name == "pooled, 6 loads"
    assert found.pooled.pairs == 6 and found.pooled.high < 0.93


def test_loads_with_enough_pairs_are_not_pooled():
    values = [100.0] * MIN_PAIRS
    rows = [each for name in ("c1", "c2") for each in repetitions(values, load_name=name)]
    others = [each.model_copy(update={"run": "r2"}) for each in rows]
    found = compare(side(*rows), side(*others, run="r2"))[0]
    assert set(found.intervals) == {"c1", "c2"} and found.pooled is None


def test_a_pooled_interval_takes_the_spread_between_loads_for_noise():
    even, uneven = loads([0.9, 0.9, 0.91, 0.91]), loads([0.7, 0.8, 1.0, 1.2])
    assert even.pooled.high < 1
    assert uneven.pooled.low < 0.9 < 1 < uneven.pooled.high


def test_invalid_rows_are_left_out_and_said():
    broken = row(run="r2", repetition=1, schedule_sha256="c8-1", verdict="INVALID", reasons="failed: 3 of 9")
    first, _, third = repetitions([100, 100, 100], run="r2")
    found = compare(side(*repetitions([100, 100, 100])), side(first, broken, third, run="r2"))[0]
    assert [pair.repetition for pair in found.loads[0].pairs] == [0, 2]
    assert found.left_out == ("c8, repetition 1: B is INVALID: failed: 3 of 9",)
    assert not found.loads[0].lost


def test_cells_of_one_side_are_said():
    a = [*repetitions([100, 100]), *repetitions([100], load_name="c1")]
    b = [*repetitions([100, 100, 100], run="r2"), *repetitions([100], load_name="c64", run="r2")]
    assert compare(side(*a), side(*b, run="r2"))[0].left_out == (
        "c1: only A has it",
        "c64: only B has it",
        "c8, repetition 2: only B has it",
    )


def test_other_schedules_models_and_sessions_are_no_pairs():
    a = repetitions([100, 100, 100])
    other_schedule = a[1].model_copy(update={"run": "r2", "schedule_sha256": "c3d4" * 16})
    other_model = a[2].model_copy(update={"run": "r2", "model": "n"})
    b = side(*repetitions([100], run="r2"), other_schedule, other_model, run="r2")
    found = compare(side(*a), b)[0]
    assert [pair.repetition for pair in found.loads[0].pairs] == [0]
    assert found.left_out == (
        "c8, repetition 1: schedules differ: c8-1 and c3d4c3d4",
        "c8, repetition 2: models differ: m and n",
    )
    resumed = [each.model_copy(update={"system": "vllm", "session": n}) for n, each in enumerate(a[:2])]
    rows = [*a[:2], *resumed]
    found = compare(side(*rows, system="engine"), side(*rows, system="vllm"))[0]
    assert found.left_out == ("c8, repetition 1: measured in sessions 0 and 1 of the run: no neighbours",)


@pytest.mark.parametrize(
    ("value", "said"), [(0.0, "has goodput_rps 0: no ratio"), (None, "has no goodput_rps")]
)
def test_values_without_a_ratio_are_left_out_and_said(value, said):
    found = against([5.0, 5.0], [5.0, value], "goodput_rps")
    assert found.left_out == (f"c8, repetition 1: B {said}",)
    assert len(found.loads[0].pairs) == 1


def test_an_infinite_latency_is_left_out_and_loses_the_load():
    found = against([5.0, 5.0], [math.inf, math.inf], "ttft_ms_p50")
    assert found.loads[0].lost and found.loads[0].ratio is None
    assert found.left_out[0] == "c8, repetition 0: B has ttft_ms_p50 inf: no ratio"


def test_a_percentile_of_too_few_requests_loses_nothing():
    with pytest.raises(BadInput, match="repetition 0: B has no ttft_ms_p99"):
        against([5.0], [None], "ttft_ms_p99")


@pytest.mark.parametrize(
    ("metric", "verdict"),
    [("output_tokens_per_s", "B worse"), ("ttft_ms_p50", "B better"), ("joules_per_token", "B better")],
)
def test_which_way_is_better_depends_on_the_metric(metric, verdict):
    found = against([100, 101, 99] * 2, [90, 91, 89] * 2, metric)
    assert found.verdict(found.loads[0].interval) == verdict
    swapped = against([90, 91, 89] * 2, [100, 101, 99] * 2, metric)
    assert (
        swapped.verdict(swapped.loads[0].interval) == {"B worse": "B better", "B better": "B worse"}[verdict]
    )


def test_each_metric_is_a_column_with_numbers():
    for metric in METRICS:
        annotation = ServingRow.model_fields[metric].annotation
        assert float in (get_args(annotation) or (annotation,)), metric


def test_runs_are_compared_by_system_and_configuration():
    a = [row(system="engine"), row(system="vllm"), row(system="vllm", config="tuned")]
    b = [
        row(run="r2", system="vllm", config="tuned"), row(run="r2", system="sglang"),
        row(run="r2", system="engine"),
    ]  # fmt: skip
    found = compare(side(*a), side(*b, run="r2"))
    assert [(each.a, each.b) for each in found] == [
        ("r1/engine", "r2/engine"),
        ("r1/vllm:tuned", "r2/vllm:tuned"),
    ]
    assert unmatched(side(*a), side(*b)) == ["vllm: only A has it", "sglang: only B has it"]


def test_settings_that_differ_are_said():
    found = against([100], [100], box="mine", system_version="2", dtype="bfloat16")
    assert found.differs == ("box - / mine", "system_version - / 2", "dtype - / bfloat16")


def test_long_hashes_are_shortened_and_long_names_are_not():
    boxes = ["a-machine-with-a-long-name-1", "a-machine-with-a-long-name-2"]
    a = side(row(box=boxes[0], git_commit="a" * 40))
    found = compare(a, side(row(box=boxes[1], git_commit="b" * 40, run="r2"), run="r2"))[0]
    assert found.differs == (f"box {boxes[0]} / {boxes[1]}", f"git_commit {'a' * 12} / {'b' * 12}")


def test_a_drift_that_does_not_cancel_is_said_with_what_it_does():
    """Values grow by 1 % a place; in each repetition A is played two places before B."""
    a = [repetition.model_copy(update={"position": 4 * n}) for n, repetition in enumerate(growing(0))]
    b = [
        repetition.model_copy(update={"position": 4 * n + 2, "system": "vllm"})
        for n, repetition in enumerate(growing(2))
    ]
    found = compare(side(*a, *b, system="engine"), side(*a, *b, system="vllm"))[0]
    assert found.mean_lag == 2
    said = " ".join(remarks(found))
    assert "B stands +2.0 places after A on average" in said and "shifts the ratio by +2.0%" in said


def growing(behind):
    return repetitions([100 * 1.01 ** (4 * n + behind) * each for n, each in enumerate([1, 1.001, 1, 0.999])])


def test_rows_older_than_the_name_of_the_load_are_told_by_what_it_is():
    old = [
        row(load_name="", concurrency=8),
        row(load_name="", load="poisson", concurrency=None, rate_rps=2.5, schedule_sha256="b" * 64),
    ]
    new = [each.model_copy(update={"run": "r2"}) for each in old]
    found = compare(side(*old), side(*new, run="r2"))[0]
    assert [load.load for load in found.loads] == ["closed C=8", "poisson 2.5/s"]


@pytest.mark.parametrize(
    ("a", "b", "metric", "said"),
    [
        (side(row()), side(row(run="r2"), run="r2"), "speed", "no metric 'speed'; there are: output_tokens"),
        (side(row(), system="engine"), side(row()), "e2e_ms_p50", "name a system on both sides"),
        (side(row()), side(row()), "e2e_ms_p50", "r1 against itself"),
        (side(row(), system="engine"), side(row(), system="vlm"), "e2e_ms_p50", "no system 'vlm' in r1"),
        (side(row()), side(row(run="r2", system="vllm"), run="r2"), "e2e_ms_p50", "no system in common"),
        (side(row(), row()), side(row(run="r2"), run="r2"), "e2e_ms_p50", "r1 has two rows of engine, c8"),
        (
            side(row()),
            side(row(run="r2", schedule_sha256="b" * 64), run="r2"),
            "output_tokens_per_s",
            "schedules differ: aaaaaaaa and bbbbbbbb",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(a, b, metric, said):
    with pytest.raises(BadInput, match=said):
        compare(a, b, metric)
