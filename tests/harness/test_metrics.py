import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import metrics
from harness.metrics import Slo, Window, percentile
from harness.schema import GpuSampleRow
from harness.tables import records_to_frame
from tests.harness import made
from tests.harness.made import MS, S, frames, record, steady

WINDOW = Window(2 * S, 12 * S)
SLO = Slo(ttft_ms=500, tpot_ms=50)


def measured(records, window=WINDOW, slo=SLO):
    return made.measured(records, window, slo)


def test_a_steady_load_gives_its_own_numbers():
    result = measured(steady(140))
    assert result.requests == 100
    assert result.played == 140
    assert result.failed == 0
    assert result.ttft_ms_p50 == 20
    assert result.tpot_ms_p50 == 10
    assert result.e2e_ms_p50 == 60
    assert result.output_tokens == 500
    assert result.output_tokens_per_s == 50
    assert result.requests_per_s == 10
    assert result.events_per_token == 1
    assert result.prompt_tokens == 1000
    assert result.attainment == 1
    assert result.goodput_rps == 10
    assert result.mean_in_flight == pytest.approx(0.6)
    assert result.littles_law_ratio == pytest.approx(1)
    assert result.token_count_method == "continuous_usage"


def test_latency_counts_from_the_intended_send_not_from_the_late_one():
    requests, _ = frames([record(0, 0, [(300 * MS, 1), (310 * MS, 1)], lag_ns=250 * MS)])
    assert metrics.ttft_ms(requests).tolist() == [300]
    assert metrics.ttft_from_send_ms(requests).tolist() == [50]
    assert metrics.lag_ms(requests).tolist() == [250]


def test_tokens_of_the_first_event_do_not_count_as_speed():
    requests, _ = frames([record(0, 0, [(10 * MS, 4), (30 * MS, 2), (50 * MS, 2)])])
    assert metrics.tpot_ms(requests).tolist() == [10]


def test_tpot_of_an_answer_in_one_event_is_undefined_not_zero():
    requests, _ = frames([record(0, 0, [(10 * MS, 8)])])
    assert math.isnan(metrics.tpot_ms(requests)[0])
    assert percentile(metrics.tpot_ms(requests), 50) is None


def test_an_undefined_tpot_keeps_the_limit_only_for_a_single_token():
    requests, _ = frames([record(0, 0, [(10 * MS, 8)]), record(1, 0, [(10 * MS, 1)])])
    assert metrics.good(requests, SLO).tolist() == [False, True]


def test_a_failed_request_is_infinitely_late_and_not_good():
    failed = [record(i, 3 * S, [(3 * S + MS, 1)], status="reset", error="gone") for i in (1, 2)]
    result = measured([record(0, 3 * S, [(3 * S + MS, 1), (3 * S + 2 * MS, 1)]), *failed])
    assert result.failed == 2
    assert result.ttft_ms_p50 == math.inf
    assert result.e2e_ms_p50 == math.inf
    assert result.attainment == pytest.approx(1 / 3)


def test_tokens_count_where_they_were_received_not_where_their_request_began():
    early = record(0, 1 * S, [(1 * S, 1), (2 * S - 1000, 3), (2 * S, 5)])
    late = record(1, 11 * S, [(12 * S - 1000, 7), (12 * S, 11)])
    result = measured([early, late])
    assert result.output_tokens == 12
    assert result.requests == 1
    assert result.events_per_token == pytest.approx(2 / 12)


def test_without_requests_nothing_is_defined():
    result = measured([])
    assert (result.requests, result.output_tokens, result.output_tokens_per_s) == (0, 0, 0)
    assert result.ttft_ms_p50 is None
    assert result.attainment is None
    assert result.lag_ms_p99 is None
    assert result.token_count_method == "none"


def test_a_request_that_could_not_be_sent_failed_and_was_not_late():
    refused = record(0, 3 * S, [], sent_ns=None, status="reset", error="refused")
    result = measured([refused])
    assert result.lag_ms_p99 is None
    assert (result.failed, result.sent_in_window) == (1, 0)
    assert measured([refused, record(1, 3 * S, [(4 * S, 1)], lag_ns=2 * MS)]).lag_ms_p99 == 2


def test_a_server_that_does_not_report_cached_tokens_leaves_the_column_empty():
    assert measured(steady(140)).cached_tokens == 0
    assert measured([record(0, 3 * S, [(4 * S, 1)], cached_tokens=None)]).cached_tokens is None


def test_p99_needs_mlperfs_number_of_requests():
    n = metrics.MIN_REQUESTS_FOR_P99
    assert metrics.p99(np.arange(n - 1.0)) is None
    assert metrics.p99(np.arange(n * 1.0)) == math.ceil(0.99 * n) - 1
    at_most_one_above = [0.99**m + m * 0.01 * 0.99 ** (m - 1) for m in (n - 1, n)]
    assert at_most_one_above[0] > 0.01 >= at_most_one_above[1]


@given(st.lists(st.floats(0, 1e6) | st.just(math.inf), min_size=1), st.floats(0.1, 100))
def test_percentile_is_the_smallest_value_with_enough_values_below(values, percent):
    found = percentile(np.array(values), percent)
    needed = percent / 100 * len(values)
    assert found in values
    assert sum(value <= found for value in values) >= needed - 1e-9
    assert all(sum(value <= smaller for value in values) < needed for smaller in values if smaller < found)


@given(st.permutations(range(30)))
def test_the_order_of_requests_does_not_matter(order):
    records = steady(30)
    assert measured([records[i] for i in order], Window(0, 2 * S)) == measured(records, Window(0, 2 * S))


@given(
    st.lists(st.tuples(st.integers(0, 10 * S), st.integers(1, S)), min_size=1, max_size=20),
    st.integers(0, 9 * S),
)
def test_event_times_come_back_to_the_microsecond(starts_and_gaps, shift):
    records = [
        record(i, q, [(q + gap, 1), (q + 2 * gap + shift, 1)]) for i, (q, gap) in enumerate(starts_and_gaps)
    ]
    times = metrics.event_times_ns(*frames(records))
    assert times.tolist() == [at // 1000 * 1000 for made in records for at, _ in made.chunks]


def test_littles_law_shows_a_growing_queue():
    growing = [record(i, i * S, [(i * S + 4 * i * S + MS, 1)]) for i in range(12)]
    ratio = measured(growing).littles_law_ratio
    assert ratio is not None and ratio < 0.75


def samples(points: list[tuple[int, int]], gpu: int = 0) -> list[GpuSampleRow]:
    other = dict(
        power_mw=None, sm_clock_mhz=None, memory_clock_mhz=None, temperature_c=None, throttle_reasons=None
    )
    return [GpuSampleRow(cell="c0", gpu=gpu, t_ns=t, energy_mj=mj, **other) for t, mj in points]


def joules(rows: list[GpuSampleRow]) -> float | None:
    return metrics.joules(records_to_frame(GpuSampleRow, rows), WINDOW)


def test_energy_is_interpolated_at_the_edges_and_summed_over_gpus():
    one = samples([(0, 1_000_000), (4 * S, 1_400_000), (13 * S, 2_300_000)])
    assert joules(one) == pytest.approx(1000)
    assert joules(one + samples([(0, 0), (13 * S, 130_000)], gpu=1)) == pytest.approx(1100)


@pytest.mark.parametrize("rows", [[], samples([(3 * S, 0), (13 * S, 5)]), samples([(0, 0), (11 * S, 5)])])
def test_energy_is_unknown_without_readings_around_the_window(rows):
    assert joules(rows) is None


def test_frames_keep_integers_exact():
    requests, events = frames([record(0, 2**53 // 4 + 1, [(2**53 // 4 + 1_001, 1)])])
    assert requests["intended_ns"].tolist() == [2**53 // 4 + 1]
    assert isinstance(events["gap_us"].dtype, pd.Int64Dtype)


def test_what_arrived_is_the_same_from_events_and_from_bins():
    records = [
        record(0, 0, [(9_999_999, 2), (10_000_000, 1), (10_000_000, 1)]),
        record(3, 5 * MS, [(10_000_500, 1), (31 * MS, 4)]),
    ]
    made_ = made.tables(records)
    again = metrics.received_from_events(made_.requests, made_.events)
    pd.testing.assert_frame_equal(again, made_.received)
    assert again["t_ms"].tolist() == [0, 10, 30]
    assert again["events"].tolist() == [1, 3, 1]
    assert again["reads"].tolist() == [1, 2, 1]
    assert again["tokens"].tolist() == [2, 3, 4]


def test_no_events_are_an_empty_table():
    requests, events = frames([])
    assert metrics.received_from_events(requests, events).empty


def test_gaps_between_events_leave_out_the_first_and_other_requests():
    requests, events = frames(
        [record(0, 0, [(10 * MS, 1), (14 * MS, 3), (15 * MS, 1)]), record(1, 0, [(10 * MS, 1), (90 * MS, 1)])]
    )
    assert metrics.icl_ms(requests, events).tolist() == [4, 1, 80]
    assert metrics.icl_ms(requests[requests["request"] == 0], events).tolist() == [4, 1]


def test_gpu_state_is_that_of_the_window():
    def reading(t_ns, clock, temperature, bits):
        return GpuSampleRow(
            cell="c0", gpu=0, t_ns=t_ns, energy_mj=None, power_mw=None, sm_clock_mhz=clock,
            memory_clock_mhz=None, temperature_c=temperature, throttle_reasons=bits,
        )  # fmt: skip

    rows = [reading(S, 100, 99, 0x40), reading(3 * S, 1500, 60, 0x4), reading(4 * S, 1700, 65, 0x1)]
    found = metrics.gpu_state(records_to_frame(GpuSampleRow, rows), WINDOW)
    assert found == metrics.GpuState(1600, 65, 0x5)
    nothing = metrics.gpu_state(records_to_frame(GpuSampleRow, []), WINDOW)
    assert nothing == metrics.GpuState(None, None, 0)


def test_the_halves_of_a_window_are_compared():
    steady_ = made.tables(steady(140)).received
    assert metrics.halves_ratio(steady_, Window(2 * S, 12 * S)) == pytest.approx(1)
    late = made.tables([record(0, 0, [(3 * S, 2), (8 * S, 3)])]).received
    assert metrics.halves_ratio(late, Window(2 * S, 12 * S)) == 1.5
    assert metrics.halves_ratio(late[late["t_ms"] >= 8000], Window(2 * S, 12 * S)) is None
