"""When the requests of a worker start: open loop by the schedule, closed loop by free slots.

Both play conversations: the first turn starts as above, each later one when the turn before it has ended and
its delay is over. A request on its own is a conversation of one turn.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from harness.client.dispatcher import Dispatcher
from harness.client.pacer import Pacer
from harness.client.wire import Tickets, WireRequests

REST_AFTER_FAILURE_NS = 100_000_000
"""Pause of a closed-loop slot after a failed request, so that a dead server does not eat the list in a
second."""


class Loop(ABC):
    """Common to both: `finished` is done when nothing is left to start and everything started has ended.

    A turn ends when its answer has ended on the connection (which is when [DONE] is followed by the end of
    the HTTP body); the next turn's intended time is that moment plus its delay. A turn that fails ends its
    conversation.

    `exhausted` tells that a closed loop ran out of requests before its time was over.
    """

    def __init__(
        self, requests: WireRequests, dispatcher: Dispatcher, pacer: Pacer, epoch_ns: int, drain_ns: int
    ) -> None:
        self.finished = asyncio.get_running_loop().create_future()
        self.exhausted = False
        self._requests = requests
        self._dispatcher = dispatcher
        self._pacer = pacer
        self._epoch_ns = epoch_ns
        self._drain_ns = drain_ns
        self._all_begun = False  # no further conversation begins
        self._going_on = 0  # conversations with a turn still to start
        self._all_started = False
        dispatcher.on_end = self._ended

    @abstractmethod
    def begin(self) -> None:
        """Start requests from the start of play on."""

    @abstractmethod
    def _conversation_ended(self, failed: bool, unplayed: int | None, end_ns: int) -> None:
        """Its last turn has ended, or one that failed: then `unplayed` is the turn after that, if any."""

    def _start(self, index: int, due_ns: int) -> None:
        if self._requests.next_turn(index) is not None:
            self._going_on += 1
        self._dispatcher.start(index, due_ns)

    def _ended(self, index: int, failed: bool, end_ns: int) -> None:
        following = self._requests.next_turn(index)
        if following is not None and not failed:
            self._queue_next_turn(following, end_ns)
        else:
            if following is not None:
                self._going_on -= 1
            self._conversation_ended(failed, following, end_ns)
            self._check_last_start()
        self._finish_if_over()

    def _queue_next_turn(self, index: int, end_ns: int) -> None:
        delay_ns = self._requests.delay_ns(index)
        if delay_ns == 0:
            self._start_next_turn(index, end_ns)
        else:
            due_ns = end_ns + delay_ns
            self._pacer.call_at(due_ns, lambda: self._start_next_turn(index, due_ns))

    def _start_next_turn(self, index: int, due_ns: int) -> None:
        self._going_on -= 1
        self._start(index, due_ns)
        self._check_last_start()

    def _check_last_start(self) -> None:
        if self._all_begun and self._going_on == 0:
            self._no_more_starts()

    def _no_more_starts(self) -> None:
        if not self._all_started:
            self._all_started = True
            self._pacer.call_at(time.monotonic_ns() + self._drain_ns, self._end_drain)
        self._finish_if_over()

    def _end_drain(self) -> None:
        self._dispatcher.give_up_all(f"still running {self._drain_ns / 1e9:g} s after the last start")

    def _finish_if_over(self) -> None:
        if self._all_started and self._dispatcher.in_flight == 0 and not self.finished.done():
            self.finished.set_result(None)


class OpenLoop(Loop):
    """Starts each of `firsts` at its intended time, whatever the server does, and later turns after theirs.

    Times are absolute. A request that cannot start in time (a busy core) starts as soon as possible and moves
    no other; none is left out: the turns after one that failed are recorded as failed, too.
    """

    def __init__(
        self,
        firsts: Iterator[int],
        requests: WireRequests,
        dispatcher: Dispatcher,
        pacer: Pacer,
        epoch_ns: int,
        drain_ns: int,
    ) -> None:
        super().__init__(requests, dispatcher, pacer, epoch_ns, drain_ns)
        self._firsts = firsts

    def begin(self) -> None:
        self._schedule_next()

    def _schedule_next(self) -> None:
        index = next(self._firsts, None)
        if index is None:
            self._all_begun = True
            self._check_last_start()
            return
        due_ns = self._epoch_ns + self._requests.intended_ns(index)
        self._pacer.call_at(due_ns, lambda: self._start_first_turn(index, due_ns))

    def _start_first_turn(self, index: int, due_ns: int) -> None:
        self._start(index, due_ns)
        self._schedule_next()

    def _conversation_ended(self, failed: bool, unplayed: int | None, end_ns: int) -> None:
        due_ns = end_ns
        while unplayed is not None:
            due_ns += self._requests.delay_ns(unplayed)
            self._dispatcher.skip(unplayed, due_ns, "predecessor failed")
            unplayed = self._requests.next_turn(unplayed)


class ClosedLoop(Loop):
    """A slot that is free takes the next ticket and plays that conversation, until `stop_ns` or the last
    ticket.

    A slot is free at its start, and again when its conversation has ended, after a failure
    REST_AFTER_FAILURE_NS later; that moment is the intended time of its next first turn. The turns after one
    that failed, and those due at `stop_ns` or later, are not started and have no record.
    """

    def __init__(
        self,
        slot_starts_ns: Sequence[int],
        tickets: Tickets,
        stop_ns: int | None,
        requests: WireRequests,
        dispatcher: Dispatcher,
        pacer: Pacer,
        epoch_ns: int,
        drain_ns: int,
    ) -> None:
        super().__init__(requests, dispatcher, pacer, epoch_ns, drain_ns)
        self._slot_starts_ns = slot_starts_ns
        self._tickets = tickets
        self._stop_ns = stop_ns

    def begin(self) -> None:
        for start_ns in self._slot_starts_ns:
            self._free_slot_at(self._epoch_ns + start_ns)
        if self._stop_ns is not None:
            self._pacer.call_at(self._stop_ns, self._no_more_starts)

    def _free_slot_at(self, free_ns: int) -> None:
        self._pacer.call_at(free_ns, lambda: self._slot_free(free_ns))

    def _conversation_ended(self, failed: bool, unplayed: int | None, end_ns: int) -> None:
        if failed:
            self._free_slot_at(end_ns + REST_AFTER_FAILURE_NS)
        else:
            self._slot_free(end_ns)

    def _slot_free(self, free_ns: int) -> None:
        if self._is_over(free_ns):
            return
        ticket = self._tickets.take()
        if ticket is not None:
            self._start(self._requests.firsts[ticket], free_ns)
        else:
            self.exhausted = self._stop_ns is not None
            self._all_begun = True
            self._check_last_start()

    def _start_next_turn(self, index: int, due_ns: int) -> None:
        if not self._is_over(due_ns):
            super()._start_next_turn(index, due_ns)

    def _is_over(self, due_ns: int) -> bool:
        return self._all_started or (self._stop_ns is not None and due_ns >= self._stop_ns)
