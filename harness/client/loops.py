"""When the requests of a worker start: open loop by the schedule, closed loop by free slots."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator

from harness.client.dispatcher import Dispatcher
from harness.client.pacer import Pacer
from harness.client.wire import Tickets, WireRequests

REST_AFTER_FAILURE_NS = 100_000_000
"""Pause of a closed-loop slot after a failed request, so that a dead server does not eat the list in a
second."""


class Loop(ABC):
    """Common to both: `finished` is done when nothing is left to start and everything started has ended.

    `exhausted` tells that a closed loop ran out of requests before its time was over.
    """

    def __init__(self, dispatcher: Dispatcher, pacer: Pacer, epoch_ns: int, drain_ns: int) -> None:
        self.finished = asyncio.get_running_loop().create_future()
        self.exhausted = False
        self._dispatcher = dispatcher
        self._pacer = pacer
        self._epoch_ns = epoch_ns
        self._drain_ns = drain_ns
        self._all_started = False
        dispatcher.on_end = self._ended

    @abstractmethod
    def begin(self) -> None:
        """Start requests from the start of play on."""

    def _ended(self, failed: bool, end_ns: int) -> None:
        self._finish_if_over()

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
    """Starts each of `indices` at its intended time, whatever the server does.

    Times are absolute. A request that cannot start in time (a busy core) starts as soon as possible and moves
    no other; none is left out.
    """

    def __init__(
        self,
        indices: Iterator[int],
        requests: WireRequests,
        dispatcher: Dispatcher,
        pacer: Pacer,
        epoch_ns: int,
        drain_ns: int,
    ) -> None:
        super().__init__(dispatcher, pacer, epoch_ns, drain_ns)
        self._indices = indices
        self._requests = requests

    def begin(self) -> None:
        self._schedule_next()

    def _schedule_next(self) -> None:
        index = next(self._indices, None)
        if index is None:
            self._no_more_starts()
            return
        due_ns = self._epoch_ns + self._requests.intended_ns(index)
        self._pacer.call_at(due_ns, lambda: self._start(index, due_ns))

    def _start(self, index: int, due_ns: int) -> None:
        self._dispatcher.start(index, due_ns)
        self._schedule_next()


class ClosedLoop(Loop):
    """`slots` requests in flight: a slot that is free takes the next ticket, until `stop_ns` or the last
    ticket.

    All slots are free at the start of play. A slot is free again when its answer has ended on the connection
    (which is when [DONE] is followed by the end of the HTTP body), after a failure REST_AFTER_FAILURE_NS
    later; that moment is the intended time of its next request.
    """

    def __init__(
        self,
        slots: int,
        tickets: Tickets,
        stop_ns: int | None,
        dispatcher: Dispatcher,
        pacer: Pacer,
        epoch_ns: int,
        drain_ns: int,
    ) -> None:
        super().__init__(dispatcher, pacer, epoch_ns, drain_ns)
        self._slots = slots
        self._tickets = tickets
        self._stop_ns = stop_ns

    def begin(self) -> None:
        for _ in range(self._slots):
            self._pacer.call_at(self._epoch_ns, lambda: self._slot_free(self._epoch_ns))
        if self._stop_ns is not None:
            self._pacer.call_at(self._stop_ns, self._no_more_starts)

    def _ended(self, failed: bool, end_ns: int) -> None:
        if failed:
            free_ns = end_ns + REST_AFTER_FAILURE_NS
            self._pacer.call_at(free_ns, lambda: self._slot_free(free_ns))
        else:
            self._slot_free(end_ns)
        self._finish_if_over()

    def _slot_free(self, free_ns: int) -> None:
        if self._all_started or (self._stop_ns is not None and free_ns >= self._stop_ns):
            return
        index = self._tickets.take()
        if index is not None:
            self._dispatcher.start(index, free_ns)
        else:
            self.exhausted = self._stop_ns is not None
            self._no_more_starts()
