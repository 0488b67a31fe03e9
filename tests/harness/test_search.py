"""What the cells of a search say about a system."""

from typing import Any

import pytest

from harness.rows import serving_row
from harness.schema import KneeRow, KneeSearch, ServingRow
from harness.search import cell_name, kept_up, knees, outcomes
from tests.harness.made import MS, cell_record, identity, record, steady, tables

SEARCH = KneeSearch(
    name="knee", low_rps=10, high_rps=40, ratio=2, repetitions=2, target_attainment=0.99
)  # rates 10, 20, 40


def row(rate: float, repetition: int, **changes: Any) -> ServingRow:
    record_ = cell_record(name=cell_name(SEARCH, rate), repetition=repetition)
    return serving_row(identity(), record_, tables(steady(140))).model_copy(update=changes)


def test_a_valid_cell_keeps_up_at_the_target_itself():
    assert kept_up(row(10, 0, attainment=0.99), 0.99) is True
    assert kept_up(row(10, 0, attainment=0.9899), 0.99) is False


@pytest.mark.parametrize(
    ("reasons", "kept"),
    [
        ("failed_requests: 3 of 140", False),
        ("failed_requests: 3 of 140; nothing_measured: no requests or no tokens in the window", False),
        ("not_measured: server ended with status 1 while it was used", False),
        ("not_measured: server ended with status 1 before it was ready", None),
        ("not_measured: load generator process 3 failed: Too many open files", None),
        ("client_lag: p99 20 ms > 10 ms", None),
        ("failed_requests: 3 of 140; client_lag: p99 20 ms > 10 ms", None),
        ("gpu_shared: pid 1 on GPU 0", None),
        ("token_mismatch: 2 of 140 requests", None),
    ],
)
def test_an_invalid_cell_counts_only_when_the_server_is_to_blame(reasons, kept):
    assert kept_up(row(10, 0, verdict="INVALID", reasons=reasons), 0.99) is kept


def test_a_request_that_failed_under_overload_is_a_rate_not_kept_up():
    made = [*steady(139), record(139, 139 * 100 * MS, [], status="timeout", error="x")]
    found = serving_row(identity(), cell_record(name="knee-10rps"), tables(made))
    assert found.verdict == "INVALID"
    assert outcomes(SEARCH, [found]) == {10: [False]}


def test_outcomes_are_in_order_of_repetition_and_of_this_search_alone():
    rows = [row(20, 1, attainment=0.5), row(20, 0), row(10, 0), row(10, 1, load_name="closed-c1")]
    assert outcomes(SEARCH, rows) == {20: [True, False], 10: [True]}


def test_knees_are_one_interval_a_system():
    rows = [
        row(20, 0), row(20, 1), row(40, 0, attainment=0.2),
        row(20, 0, system="vllm", attainment=0.9), row(10, 0, system="vllm", attainment=0.9),
    ]  # fmt: skip
    found = knees([SEARCH], rows)
    assert [(knee.system, knee.low_rps, knee.high_rps, knee.cells, knee.complete) for knee in found] == [
        ("engine", 20, 40, 3, True),
        ("vllm", None, 10, 2, True),
    ]
    assert not knees([SEARCH], rows[:1])[0].complete
    assert isinstance(found[0], KneeRow) and found[0].slo_ttft_ms == 500
    assert knees([], rows) == []
