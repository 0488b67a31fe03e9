"""What arrived when over all requests of a play, in bins: its size depends on the time played, not on the
events."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

EVENTS_A_BATCH = 4_096
"""Events binned at once: numpy costs some 50 us a call however few they are, and a stall of the worker must
stay well under a millisecond."""


@dataclass(frozen=True)
class Received:
    """Counts of the bins in which anything arrived, in order of time: int64 arrays of equal length.

    t_ms    start of the bin, from the start of play; every play has bins of RECEIVED_BIN_MS (harness.schema)
    events  events that carried a generated token
    reads   socket reads that brought them: events of a request with one stamp came in one read
    tokens  generated tokens
    """

    t_ms: np.ndarray
    events: np.ndarray
    reads: np.ndarray
    tokens: np.ndarray

    @staticmethod
    def empty() -> Received:
        return Received(*np.zeros((4, 0), np.int64))

    @staticmethod
    def total(parts: Sequence[Received]) -> Received:
        """The sum of what several workers received, in bins of one length."""
        both = [np.stack([part.t_ms, part.events, part.reads, part.tokens]) for part in parts]
        t_ms, *counts = np.concatenate([np.zeros((4, 0), np.int64), *both], axis=1)
        t_ms, bins = np.unique(t_ms, return_inverse=True)
        totals = np.zeros((3, len(t_ms)), np.int64)
        np.add.at(totals, (slice(None), bins), counts)
        return Received(t_ms, *totals)


class Tally:
    """Counts the events of one request after the other in bins of `bin_ms`."""

    def __init__(self, bin_ms: int) -> None:
        self._bin_ms = bin_ms
        self._counts = np.zeros((3, 1_000), np.int64)
        self._start_batch()

    def add(self, chunk_ns: array[int], chunk_tokens: array[int]) -> None:
        """Receipt (ns from the start of play) and tokens of each event of a request."""
        if not chunk_ns:
            return
        self._first_of_request.append(len(self._stamps_ns))
        self._stamps_ns.extend(chunk_ns)
        self._tokens.extend(chunk_tokens)
        if len(self._stamps_ns) >= EVENTS_A_BATCH:
            self._count_batch()

    def received(self) -> Received:
        """Of all that was added so far."""
        if self._stamps_ns:
            self._count_batch()
        bins = np.flatnonzero(self._counts[0])
        return Received(bins * self._bin_ms, *self._counts[:, bins])

    def _start_batch(self) -> None:
        self._stamps_ns, self._tokens = array("q"), array("i")
        self._first_of_request: list[int] = []

    def _count_batch(self) -> None:
        stamps_ns = np.frombuffer(self._stamps_ns, np.int64)
        tokens = np.frombuffer(self._tokens, np.intc)
        is_read = np.empty(len(stamps_ns), bool)
        np.not_equal(stamps_ns[1:], stamps_ns[:-1], out=is_read[1:])
        is_read[self._first_of_request] = True
        bins = stamps_ns // (self._bin_ms * 1_000_000)
        first, last = int(bins.min()), int(bins.max())
        if last >= self._counts.shape[1]:
            self._counts = np.pad(self._counts, ((0, 0), (0, last)))  # at least doubled
        bins -= first
        for counts, weights in zip(self._counts, (None, is_read, tokens), strict=True):
            # Sums as float64: exact up to 2^53.
            counts[first : last + 1] += np.bincount(bins, weights).astype(np.int64)
        self._start_batch()
