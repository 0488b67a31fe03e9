import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from harness.metrics import Slo, Window
from harness.verdict import Limits, Surroundings, judge
from tests.harness.made import S, measured, record, steady

METRICS = measured(steady(140), Window(2 * S, 12 * S), Slo(500, 50))
LIMITS = Limits(lag_p99_ms=10)
AROUND = Surroundings(
    failure=None,
    open_loop=True,
    schedule_exhausted=False,
    ceiling_events_per_s=1000,
    correctness_identical=True,
    undeclared_gpu_processes=(),
)


def codes(lines):
    return [line.partition(":")[0] for line in lines]


def verdict(metrics_changes=None, around_changes=None):
    return judge(
        dataclasses.replace(METRICS, **(metrics_changes or {})),
        LIMITS,
        dataclasses.replace(AROUND, **(around_changes or {})),
    )


def test_a_clean_cell_is_valid_without_notes():
    assert verdict().valid
    assert verdict() == dataclasses.replace(verdict(), reasons=(), notes=())


@pytest.mark.parametrize(
    ("metrics_changes", "around_changes", "reason"),
    [
        ({"window_s": 9.9}, {}, "window_too_short: 9.9 s < 10 s"),
        ({"output_tokens": 0}, {}, "nothing_measured: no requests or no tokens in the window"),
        (
            {"requests": 0, "sent_in_window": 0},
            {},
            "nothing_measured: no requests or no tokens in the window",
        ),
        ({"played_failed": 3}, {}, "failed_requests: 3 of 140"),
        ({"played_failed": 2, "mismatched": 2}, {}, "token_mismatch: 2 of 140 requests"),
        ({"lag_ms_p99": 10.5}, {}, "client_lag: p99 10.5 ms > 10 ms"),
        ({"lag_ms_p99": float("inf")}, {}, "client_lag: p99 inf ms > 10 ms"),
        ({}, {"client_busy": 0.68}, "client_busy: 0.68 of a core > 0.67"),
        ({}, {"client_stall_ms": 201.0}, "client_stalled: 201 ms > 200 ms"),
        ({}, {"ceiling_events_per_s": 74.9}, "client_headroom: 1.5 < 1.5"),
        ({"sent_in_window": 94}, {}, "rate_not_achieved: 94 of 100 requests sent in the window"),
        (
            {},
            {"schedule_exhausted": True},
            "schedule_too_short: all of its 140 requests were sent before the time was over",
        ),
        ({}, {"correctness_identical": False}, "wrong_output: greedy output differs from the reference"),
        ({}, {"undeclared_gpu_processes": ("pid 7 on GPU 0",)}, "gpu_shared: pid 7 on GPU 0"),
        ({"requests": 0}, {"failure": "ended with status 1"}, "not_measured: ended with status 1"),
    ],
)
def test_each_reason_alone_makes_a_cell_invalid(metrics_changes, around_changes, reason):
    found = verdict(metrics_changes, around_changes)
    assert found.reasons == (reason,)
    assert not found.valid


@pytest.mark.parametrize(
    ("metrics_changes", "around_changes", "note"),
    [
        ({}, {"ceiling_events_per_s": 100}, "client_headroom_low"),
        ({"token_count_method": "assumed"}, {}, "tokens_assumed"),
        ({"littles_law_ratio": 0.5}, {}, "not_steady"),
    ],
)
def test_a_note_leaves_the_cell_valid(metrics_changes, around_changes, note):
    found = verdict(metrics_changes, around_changes)
    assert found.valid
    assert codes(found.notes) == [note]


def test_what_a_closed_loop_does_not_promise_is_not_asked_of_it():
    assert verdict({"sent_in_window": 0}, {"open_loop": False}).valid


def test_the_edges_of_a_window_with_few_requests_are_not_called_unsteady():
    few = {"littles_law_ratio": 0.7, "mean_in_flight": 4.0, "requests": 12, "sent_in_window": 12}
    assert verdict(few).notes == ()
    assert codes(verdict(few | {"requests": 400, "sent_in_window": 400}).notes) == ["not_steady"]


def test_one_request_may_cross_the_edge_of_a_short_window():
    assert verdict({"requests": 10, "sent_in_window": 9}).valid
    assert not verdict({"requests": 10, "sent_in_window": 8}).valid


def test_without_a_ceiling_and_a_correctness_check_neither_is_judged():
    assert verdict({}, {"ceiling_events_per_s": None, "correctness_identical": None}).valid


def test_all_reasons_are_given_at_once():
    found = verdict({"window_s": 1, "lag_ms_p99": 99}, {"schedule_exhausted": True})
    assert codes(found.reasons) == ["window_too_short", "client_lag", "schedule_too_short"]


@given(lag=st.floats(0, 1e4), limit=st.floats(0.1, 1e4))
def test_the_lag_limit_itself_is_allowed(lag, limit):
    found = judge(dataclasses.replace(METRICS, lag_ms_p99=lag), Limits(lag_p99_ms=limit), AROUND)
    assert found.valid == (lag <= limit)


@given(ceiling=st.floats(1, 1e6))
def test_headroom_is_invalid_noted_or_fine(ceiling):
    found = verdict({}, {"ceiling_events_per_s": ceiling})
    headroom = ceiling / METRICS.events_per_s
    assert found.valid == (headroom >= 1.5)
    assert ("client_headroom_low" in codes(found.notes)) == (1.5 <= headroom < 3)


@given(
    failures=st.lists(
        st.sampled_from(["http_error", "reset", "timeout", "truncated", "stream_error", "mismatch"])
    )
)
def test_any_failed_request_anywhere_in_the_play_is_a_reason(failures):
    records = steady(140) + [
        record(140 + i, 0, [], status=status, error="x") for i, status in enumerate(failures)
    ]
    metrics = measured(records, Window(2 * S, 12 * S), Slo(None, None))
    assert judge(metrics, LIMITS, AROUND).valid == (not failures)


def test_a_window_that_is_not_steady_is_noted():
    growing = {"littles_law_ratio": 0.3, "mean_in_flight": 900.0, "requests": 1000, "sent_in_window": 1000}
    assert codes(verdict(growing).notes) == ["not_steady"]
    assert verdict(growing, {"rules": 2}).notes == ()
    assert codes(verdict({"halves_ratio": 1.38}).notes) == ["halves_differ"]
    assert verdict({"halves_ratio": 1.1}).notes == verdict({"halves_ratio": None}).notes == ()


def test_a_client_that_uses_much_of_a_core_is_noted():
    assert codes(verdict({}, {"client_busy": 0.5}).notes) == ["client_rather_busy"]
    assert verdict({}, {"client_busy": 0.3}).notes == ()


def test_a_cache_that_the_server_says_nothing_of_is_noted():
    assert verdict({}, {"has_prefix_cache": True, "cached_tokens": 0}).notes == ()
    found = verdict({}, {"has_prefix_cache": True, "cached_tokens": None})
    assert found.valid and codes(found.notes) == ["cache_unknown"]
    assert verdict({}, {"has_prefix_cache": True, "cached_tokens": None, "rules": 1}).notes == ()
    assert verdict({}, {"has_prefix_cache": False, "cached_tokens": None}).notes == ()


def test_throttled_clocks_are_a_reason_a_power_cap_is_a_note():
    assert verdict({}, {"throttle_reasons": 0x40 | 0x8}).reasons == (
        "clocks_throttled: hardware slowdown, hardware thermal",
    )
    capped = verdict({}, {"throttle_reasons": 0x4 | 0x1})
    assert capped.valid and codes(capped.notes) == ["power_capped"]


@given(cached=st.integers(0, 1400), shared=st.booleans())
def test_a_warm_prefix_cache_is_a_reason_where_prompts_share_nothing(cached, shared):
    found = verdict({}, {"cached_tokens": cached, "shares_prefixes": shared})
    assert METRICS.played_prompt_tokens == 1400
    assert found.valid == (shared or cached <= 140)


def test_limits_are_checked():
    with pytest.raises(ValidationError):
        Limits(lag_p99_ms=0)
    with pytest.raises(ValidationError):
        Limits(lag_p99_ms=1, min_windw_s=10)
