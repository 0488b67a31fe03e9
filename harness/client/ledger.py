"""The records of a worker, in memory that does not grow with the number of events."""

from __future__ import annotations

from harness.client.received import Received, Tally
from harness.client.record import RequestRecord

EVENTS_KEPT = 400_000
"""Events of a play that are kept one by one. Their quantiles are then known to some 0.1 %, and the largest
play takes about 1.2 MB of events.csv.gz; an hour at 60,000 events/s would take 650 MB."""

LEAST_WEIGHT = 16
"""What a request counts at least against EVENTS_KEPT: thinning visits the kept requests one by one, and must
not stall the worker for tens of milliseconds where answers are of one token."""


class Ledger:
    """Keeps each record, but the events of those requests only whose index is a multiple of `stride`.

    `stride` doubles whenever more than `events_kept` events are held, and what it no longer takes in is
    dropped: what is kept at the end is what the last stride alone would have kept. (Index 0 always is,
    however long.)
    """

    def __init__(self, events_kept: int, bin_ms: int) -> None:
        self.records: list[RequestRecord] = []
        self.stride = 1
        self._tally = Tally(bin_ms)
        self._events_kept = events_kept
        self._with_events: list[RequestRecord] = []
        self._weight = 0

    def add(self, record: RequestRecord) -> None:
        """A finished request, with all its events."""
        self.records.append(record)
        self._tally.add(record.chunk_ns, record.chunk_tokens)
        if record.index % self.stride:
            record.drop_events()
            return
        self._with_events.append(record)
        self._weight += _weight(record)
        while self._weight > self._events_kept and len(self._with_events) > 1:
            self.stride *= 2
            self._with_events = thin(self._with_events, self.stride)
            self._weight = sum(map(_weight, self._with_events))

    def received(self) -> Received:
        """All events, also those that are not kept."""
        return self._tally.received()


def _weight(record: RequestRecord) -> int:
    return max(record.events, LEAST_WEIGHT)


def thin(records: list[RequestRecord], stride: int) -> list[RequestRecord]:
    """Drop the events of all requests but each `stride`-th; the records that keep theirs."""
    kept = []
    for record in records:
        if record.index % stride:
            record.drop_events()
        else:
            kept.append(record)
    return kept
