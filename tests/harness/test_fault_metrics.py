"""Faults of other harnesses in what they make of raw rows; see test_public_faults.py."""

import math

import pytest

from harness import metrics
from harness.metrics import Slo, Window
from harness.report import remarks
from harness.rows import serving_row
from harness.schema import ServingRow
from tests.harness.made import MS, S, cell_record, frames, identity, measured, record, steady, tables

WINDOW = Window(2 * S, 12 * S)
SLO = Slo(ttft_ms=500, tpot_ms=50)


def row(records, **changes) -> ServingRow:
    return serving_row(identity(), cell_record(**changes), tables(records))


def test_a_late_end_of_the_play_changes_no_throughput():
    """It is over the declared window: neither a drain nor what the harness does afterwards is part of it."""
    straggler = record(140, 13 * S, [(14 * S, 1), (90 * S, 1)], done_ns=300 * S)
    prompt_end, late_end = row(steady(140)), row([*steady(140), straggler])
    assert prompt_end.output_tokens_per_s == late_end.output_tokens_per_s == 50
    assert prompt_end.window_s == late_end.window_s == 10


@pytest.mark.parametrize("tokens", [1, 4, 64])
def test_throughput_counts_tokens_however_they_are_cut_into_events(tokens):
    """64 tokens a request, 64, 16 or 1 of them to an event: the same tokens in the same window."""
    records = [
        record(i, 3 * S + i * S, [(3 * S + i * S + 500 * MS, tokens)] * (64 // tokens)) for i in range(5)
    ]
    found = measured(records, WINDOW, SLO)
    assert found.output_tokens_per_s == 5 * 64 / 10
    assert found.events_per_token == 1 / tokens
    # All at one moment: no speed follows from it, neither 0 ms a token nor a high rate.
    assert found.tpot_ms_p50 == (None if tokens == 64 else 0)


def test_tokens_of_an_answer_that_was_given_up_were_received():
    given_up = record(140, 3 * S, [(4 * S, 2), (5 * S, 3)], status="timeout", error="no end", max_tokens=9)
    found = measured([*steady(140), given_up], WINDOW, SLO)
    assert found.output_tokens == 500 + 5
    assert (found.requests, found.failed) == (101, 1)
    assert found.requests_per_s == 10


@pytest.mark.parametrize("failed", [1, 30, 60])
def test_failures_move_percentiles_up_and_never_down(failed):
    """A server that refuses fast must not look fast: neither left out nor counted with the time they took."""
    refused = [
        record(140 + i, 3 * S + i * MS, [], status="http_error", error="HTTP 503", done_ns=3 * S + i * MS + 1)
        for i in range(failed)
    ]
    requests, _ = frames(refused)
    assert metrics.ttft_ms(requests).tolist() == [math.inf] * failed
    assert metrics.tpot_ms(requests).tolist() == [math.inf] * failed
    found = measured([*steady(140), *refused], WINDOW, SLO)
    assert found.ttft_ms_p50 == 20
    assert found.attainment == 100 / (100 + failed)
    values = metrics.ttft_ms(frames([*steady(140)[20:120], *refused])[0])
    assert metrics.percentile(values, 100 * 100 / (100 + failed) - 0.01) == 20
    assert metrics.percentile(values, 100) == math.inf


@pytest.mark.parametrize(
    "status", ["http_error", "stream_error", "timeout", "reset", "truncated", "mismatch"]
)
def test_the_number_of_failures_is_in_the_row_and_said(status):
    failures = [record(140 + i, 3 * S, [], status=status, error="x") for i in range(3)]
    found = row([*steady(140), *failures])
    assert (found.failed, found.played_failed, found.verdict) == (3, 3, "INVALID")
    (line,) = remarks([found])
    assert "3 of 143" in line and "INVALID" in line


@pytest.mark.parametrize(
    ("slo", "kept"),
    [
        (Slo(ttft_ms=100, tpot_ms=None), True),
        (Slo(ttft_ms=99, tpot_ms=None), False),
        (Slo(ttft_ms=None, tpot_ms=10), True),
        (Slo(ttft_ms=None, tpot_ms=9.9), False),
        (Slo(ttft_ms=100, tpot_ms=10), True),
    ],
)
def test_each_limit_is_that_of_its_own_latency(slo, kept):
    """TTFT 100 ms, TPOT 10 ms, 1,090 ms in all: a limit of one is no limit of another."""
    requests, _ = frames([record(0, 0, [(100 * MS + place * 10 * MS, 1) for place in range(100)])])
    assert metrics.e2e_ms(requests).tolist() == [1090]
    assert metrics.good(requests, slo).tolist() == [kept]


def test_what_the_cache_answered_is_recorded_and_judged():
    """By the server's own counters where it has them, which a server that keeps it from usage cannot hide."""
    counted = dict(counters_before={"cached_tokens": 100.0}, counters_after={"cached_tokens": 900.0})
    warm = row(steady(140), **counted)
    assert (warm.server_cached_tokens, warm.prefix_cache, warm.verdict) == (800, "on", "INVALID")
    assert warm.reasons.startswith("warm_cache: 0.57 ")
    assert row(steady(140), **counted, shares_prefixes=True).verdict == "VALID"
    by_usage = [
        record(i, each.intended_ns, each.chunks, cached_tokens=8) for i, each in enumerate(steady(140))
    ]
    assert row(by_usage).reasons.startswith("warm_cache: 0.8 ")
