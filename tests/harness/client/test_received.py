"""Received counts every event; the ledger keeps each event of some requests only, in bounded memory."""

import gc
import os
from array import array
from collections import Counter

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.client import received as module
from harness.client.ledger import LEAST_WEIGHT, Ledger, thin
from harness.client.received import Received, Tally
from harness.client.record import RequestRecord

BIN_MS = 7
BIN_NS = BIN_MS * 10**6


def record(
    index: int, stamps_ns: list[int] | array, tokens: list[int] | array | None = None
) -> RequestRecord:
    return RequestRecord(
        index=index,
        worker=0,
        max_tokens=len(stamps_ns),
        intended_ns=0,
        sent_ns=0,
        first_ns=stamps_ns[0] if stamps_ns else None,
        last_ns=stamps_ns[-1] if stamps_ns else None,
        done_ns=0,
        status="ok",
        error="",
        http_status=200,
        connection_reused=True,
        prompt_tokens=1,
        output_tokens=len(stamps_ns),
        cached_tokens=None,
        first_event_tokens=1,
        finish_reason="length",
        output_sha256=f"{index:016x}",
        output_text=None,
        output_ids=None,
        token_count_method="continuous_usage",
        events=len(stamps_ns),
        empty_events=1,
        bytes_after_done=0,
        chunk_ns=array("q", stamps_ns),
        chunk_tokens=array("i", tokens or [1] * len(stamps_ns)),
    )


def as_rows(received: Received) -> list[tuple[int, int, int, int]]:
    return [
        tuple(map(int, row))
        for row in zip(received.t_ms, received.events, received.reads, received.tokens, strict=True)
    ]


STAMPS = st.lists(st.integers(0, 40 * BIN_NS) | st.sampled_from([0, BIN_NS - 1, BIN_NS]), max_size=12).map(
    sorted
)
REQUESTS = st.lists(st.tuples(STAMPS, st.integers(1, 5)), max_size=8)


@given(REQUESTS, st.integers(1, 20))
def test_every_event_is_counted_in_its_bin(requests: list[tuple[list[int], int]], batch: int) -> None:
    events, reads, tokens = Counter(), Counter(), Counter()
    tally = Tally(BIN_MS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "EVENTS_A_BATCH", batch)
        for stamps, each in requests:
            tally.add(array("q", stamps), array("i", [each] * len(stamps)))
            events.update(stamp // BIN_NS for stamp in stamps)
            tokens.update({bin: each * count for bin, count in Counter(s // BIN_NS for s in stamps).items()})
            reads.update(stamp // BIN_NS for stamp in set(stamps))
    expected = [(bin * BIN_MS, events[bin], reads[bin], tokens[bin]) for bin in sorted(events)]
    assert as_rows(tally.received()) == expected


def test_events_of_two_requests_with_one_stamp_are_two_reads() -> None:
    tally = Tally(BIN_MS)
    for _ in range(2):
        tally.add(array("q", [5, 5]), array("i", [1, 3]))
    assert as_rows(tally.received()) == [(0, 4, 2, 8)]


def test_an_hour_later() -> None:
    tally = Tally(BIN_MS)
    tally.add(array("q", [0]), array("i", [1]))
    tally.add(array("q", [3_600 * 10**9]), array("i", [2]))
    assert as_rows(tally.received()) == [(0, 1, 1, 1), (3_600_000 // BIN_MS * BIN_MS, 1, 1, 2)]


def test_total_of_workers() -> None:
    parts = []
    for stamps in ([1, BIN_NS], [BIN_NS, 7 * BIN_NS], []):
        tally = Tally(BIN_MS)
        tally.add(array("q", stamps), array("i", [2] * len(stamps)))
        parts.append(tally.received())
    assert as_rows(Received.total(parts)) == [(0, 1, 1, 2), (BIN_MS, 2, 2, 4), (7 * BIN_MS, 1, 1, 2)]
    assert as_rows(Received.total([Received.empty()])) == []


EVENTS = 20


def test_events_of_each_stride_th_request_are_kept() -> None:
    ledger = Ledger(10 * EVENTS, BIN_MS)
    for index in (*range(1, 100, 2), *range(0, 100, 2)):  # requests do not end in order
        ledger.add(record(index, list(range(EVENTS))))
        held = [kept for kept in ledger.records if kept.chunk_ns]
        assert sum(kept.events for kept in held) <= 10 * EVENTS
        assert all(kept.index % ledger.stride == 0 for kept in held)
    assert ledger.stride == 16
    assert sorted(kept.index for kept in held) == list(range(0, 100, 16))
    assert len(ledger.records) == 100
    for kept in ledger.records:
        assert (kept.events, kept.first_ns, kept.last_ns, kept.output_tokens) == (
            EVENTS,
            0,
            EVENTS - 1,
            EVENTS,
        )
        assert len(kept.chunk_ns) == len(kept.chunk_tokens) == (0 if kept.index % 16 else EVENTS)
    assert ledger.received().events.sum() == 100 * EVENTS


def test_nothing_is_dropped_below_the_limit() -> None:
    ledger = Ledger(10 * LEAST_WEIGHT, BIN_MS)
    for index in range(10):
        ledger.add(record(index, [1]))
    assert (ledger.stride, [len(kept.chunk_ns) for kept in ledger.records]) == (1, [1] * 10)


def test_one_answer_longer_than_the_limit() -> None:
    ledger = Ledger(10, BIN_MS)
    for index in (3, 0, 5):
        ledger.add(record(index, list(range(100))))
    assert [len(kept.chunk_ns) for kept in ledger.records] == [0, 100, 0]


def test_thin_to_the_largest_stride() -> None:
    records = [record(index, [1]) for index in range(9)]
    assert [kept.index for kept in thin(records, 4)] == [0, 4, 8]
    assert [len(each.chunk_ns) for each in records] == [1, 0, 0, 0, 1, 0, 0, 0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("events", [128, 1])
def test_memory_of_three_million_events(events: int) -> None:
    """What grows is a record a request, at most 1 KiB each; the events take 12 bytes each up to their limit,
    and the bins of Received 24 bytes each."""
    process = psutil.Process(os.getpid())
    requests = 3_000_000 // events if events > 1 else 300_000
    step_ns = 3_600 * 10**9 // (requests * events)  # over an hour
    gc.collect()
    before = process.memory_info().rss
    ledger = Ledger(50_000, BIN_MS)
    for index in range(requests):
        start_ns = index * events * step_ns
        stamps = array("q", range(start_ns, start_ns + events * step_ns, step_ns))
        ledger.add(record(index, stamps, array("i", [1]) * events))
    growth = process.memory_info().rss - before
    received = ledger.received()
    assert int(received.events.sum()) == requests * events
    assert growth < 1024 * requests + 2 * 12 * 50_000 + 3 * 24 * 3_600_000 // BIN_MS + 8 * 2**20
