"""How many generated tokens each event of an answer carried."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from harness.client.record import TokenCountMethod

SeenEvent = tuple[int, int | None, int | None, str, bool]
"""What counts of an event: receipt (CLOCK_MONOTONIC ns), running completion_tokens and number of token ids
(None when it gave none), text, and whether it had a choice. A bare tuple: one is made for each event
received."""

STAMP, TOTAL, IDS, TEXT, HAS_CHOICE = range(5)


@dataclass
class TokenCount:
    """Receipt and tokens of each event that carried any, as the RequestRecord defines it.

    `total` is None when neither usage nor ids say it; `error` is set when the server's numbers contradict
    themselves.
    """

    epoch_ns: int
    method: TokenCountMethod | None = None
    total: int | None = None
    chunk_ns: array[int] = field(default_factory=lambda: array("q"))
    chunk_tokens: array[int] = field(default_factory=lambda: array("i"))
    error: str = ""

    def add(self, stamp_ns: int, tokens: int) -> None:
        if tokens > 0:
            self.chunk_ns.append(stamp_ns - self.epoch_ns)
            self.chunk_tokens.append(tokens)


def count_tokens(events: list[SeenEvent], epoch_ns: int) -> TokenCount:
    """Tokens of each event, received so long after `epoch_ns`, by the first of the three methods for which
    the server said enough.

    A method that needs numbers in the stream is believed only when every event with text brought them: a
    usage that comes just once, on the last piece of text, says nothing about the earlier ones.
    """
    texts = [event for event in events if event[TEXT]]
    if any(event[HAS_CHOICE] and event[TOTAL] is not None for event in events) and all(
        event[TOTAL] is not None for event in texts
    ):
        return _by_usage(events, epoch_ns)
    totals = [event[TOTAL] for event in events if event[TOTAL] is not None]
    if any(event[IDS] for event in events) and all(event[IDS] is not None for event in texts):
        return _by_ids(events, totals[-1] if totals else None, epoch_ns)
    if totals:
        return _assumed(texts or [event for event in events if event[HAS_CHOICE]][-1:], totals[-1], epoch_ns)
    return TokenCount(epoch_ns)


def _by_usage(events: list[SeenEvent], epoch_ns: int) -> TokenCount:
    count = TokenCount(epoch_ns, "continuous_usage")
    so_far = 0
    for stamp_ns, total, _, _, _ in events:
        if total is None:
            continue
        if total < so_far:
            count.error = f"completion_tokens went back from {so_far} to {total}"
        count.add(stamp_ns, total - so_far)
        so_far = total
    count.total = so_far
    return count


def _by_ids(events: list[SeenEvent], usage_total: int | None, epoch_ns: int) -> TokenCount:
    count = TokenCount(epoch_ns, "returned_ids")
    for event in events:
        count.add(event[STAMP], event[IDS] or 0)
    returned = sum(count.chunk_tokens)
    count.total = returned if usage_total is None else usage_total
    if count.total != returned:
        count.error = f"usage says {usage_total} completion tokens, {returned} ids were returned"
    return count


def _assumed(carriers: list[SeenEvent], total: int, epoch_ns: int) -> TokenCount:
    count = TokenCount(epoch_ns, "assumed", total)
    left = total
    for event in carriers[:-1]:
        count.add(event[STAMP], min(left, 1))
        left -= min(left, 1)
    if carriers:
        count.add(carriers[-1][STAMP], left)
    return count
