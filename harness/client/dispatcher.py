"""Sends requests over kept-alive connections and records how each ends; when to send is decided elsewhere."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from harness.client.connection import Connection
from harness.client.exchange import Exchange, Observer
from harness.client.ledger import Ledger
from harness.client.wire import WireRequests

IDLE_LIMIT_NS = 1_000_000_000
"""A connection idle for longer is not used again. Servers close idle connections after 2 s or more (uvicorn:
5 s); a request that meets such a close is lost, and retrying it silently would hide a failure."""


@dataclass(slots=True)
class _Flight:
    """A request under way: when it is given up, and its connection once it has one."""

    deadline_ns: int
    connection: Connection | None = None


class Dispatcher:
    """As many connections as there are requests in flight, without a cap; the latest idle one is used first.

    `on_end(index, failed, end_ns)` is called when a request has ended, before its record is made and added to
    the ledger. Nothing is retried. Times are CLOCK_MONOTONIC ns.
    """

    def __init__(
        self,
        address: tuple[str, int],
        requests: WireRequests,
        observer: Observer,
        ledger: Ledger,
        timeout_ns: int,
    ) -> None:
        self.on_end: Callable[[int, bool, int], None] = lambda index, failed, end_ns: None
        self._ledger = ledger
        self._address = address
        self._requests = requests
        self._observer = observer
        self._timeout_ns = timeout_ns
        self._idle: list[Connection] = []  # the longest idle one first
        self._in_flight: dict[Exchange, _Flight] = {}  # in order of their deadlines
        self._connecting: set[asyncio.Task[None]] = set()

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    async def open_idle(self, count: int) -> None:
        """Have `count` connections open before play starts. Raises OSError when the server takes none."""
        self._idle += await asyncio.gather(*(self._open() for _ in range(count)))

    def start(self, index: int, intended_ns: int) -> None:
        """Send a request now: at once on an idle connection, else as soon as a new one is open."""
        exchange = Exchange(self._requests.asked(index), intended_ns, self._observer)
        now_ns = time.monotonic_ns()
        flight = self._in_flight[exchange] = _Flight(now_ns + self._timeout_ns)
        connection = self._take_idle(now_ns)
        if connection is not None:
            flight.connection = connection
            connection.send(exchange, self._requests.bytes_of(index))
        else:
            task = asyncio.get_running_loop().create_task(self._connect_and_send(exchange, flight))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    def skip(self, index: int, intended_ns: int, error: str) -> None:
        """Record a request that is not sent as failed, at the time it was due."""
        exchange = Exchange(self._requests.asked(index), intended_ns, self._observer)
        exchange.fail("reset", error)
        self._ledger.add(exchange.record(intended_ns))

    def expire(self, now_ns: int) -> None:
        """Give up the requests that have had their time."""
        for exchange, flight in list(self._in_flight.items()):
            if flight.deadline_ns > now_ns:
                break
            self._give_up(exchange, flight, f"no end within {self._timeout_ns / 1e9:g} s")

    def give_up_all(self, error: str) -> None:
        """End everything that is in flight as timed out."""
        for exchange, flight in list(self._in_flight.items()):
            self._give_up(exchange, flight, error)

    def close(self) -> None:
        for connection in self._idle:
            connection.close()

    def _give_up(self, exchange: Exchange, flight: _Flight, error: str) -> None:
        if flight.connection is not None:
            flight.connection.give_up("timeout", error)
        else:
            exchange.fail("timeout", f"{error} (no connection yet)")
            self._ended(exchange, time.monotonic_ns())

    def _take_idle(self, now_ns: int) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and now_ns - connection.idle_since_ns <= IDLE_LIMIT_NS:
                return connection
            connection.close()
        return None

    async def _open(self) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: Connection(self._connection_ended), *self._address
        )
        return connection

    async def _connect_and_send(self, exchange: Exchange, flight: _Flight) -> None:
        try:
            connection = await self._open()
        except OSError as error:
            if exchange in self._in_flight:
                exchange.fail("reset", f"cannot connect: {error}")
                self._ended(exchange, time.monotonic_ns())
            return
        if exchange not in self._in_flight:  # given up meanwhile
            connection.close()
            return
        flight.connection = connection
        connection.send(exchange, self._requests.bytes_of(exchange.asked.index))

    def _connection_ended(self, connection: Connection, exchange: Exchange, end_ns: int) -> None:
        if connection.reusable:
            self._idle.append(connection)
        self._ended(exchange, end_ns)

    def _ended(self, exchange: Exchange, end_ns: int) -> None:
        del self._in_flight[exchange]
        # The next request of a closed loop goes out first, the record is made afterwards.
        self.on_end(exchange.asked.index, exchange.failed, end_ns)
        self._ledger.add(exchange.record(end_ns))
