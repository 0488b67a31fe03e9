"""One HTTP/1.1 connection: writes a request, reads its answer, may then serve another.

Our own protocol on httptools' parser instead of a client library: each read is stamped before it is parsed,
nothing is pooled, retried or redirected behind our back, and there is no cap on connections.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable

import httptools

from harness.client.exchange import Exchange
from harness.client.record import Status

monotonic_ns = time.monotonic_ns

SWITCHING_PROTOCOLS = 101


class Connection(asyncio.Protocol):
    """`on_end(connection, exchange, end_ns)` is called once for each exchange, when nothing more will come
    for it.

    By then `reusable` says whether the connection can serve another; it turns false when the server closes.
    """

    def __init__(self, on_end: Callable[[Connection, Exchange, int], None]) -> None:
        self._on_end = on_end
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._exchange: Exchange | None = None
        self._headers: dict[bytes, bytes] = {}
        self._stamp_ns = 0
        self._is_interim = False  # a 1xx answer, which another follows
        self._answered = False  # the answer's head has come
        self._complete = False  # the answer is whole
        self._keeps_alive = False
        self._has_served = False
        self.reusable = False
        self.idle_since_ns = 0

    def send(self, exchange: Exchange, request: bytes) -> None:
        """Write a request; only while open and without another exchange."""
        self._exchange = exchange
        self._answered = self._complete = self.reusable = False
        exchange.sent(monotonic_ns(), reused=self._has_served)
        self._transport.write(request)

    def give_up(self, status: Status, error: str) -> None:
        """End the present exchange as failed and drop the connection."""
        self._exchange.fail(status, error)
        self._end(monotonic_ns(), reusable=False)

    def close(self) -> None:
        """Drop the connection at once."""
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    def _end(self, end_ns: int, *, reusable: bool) -> None:
        exchange, self._exchange = self._exchange, None
        self._has_served = True
        self.reusable = reusable
        self.idle_since_ns = end_ns
        if not reusable:
            self.close()
        self._on_end(self, exchange, end_ns)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reusable = True
        self.idle_since_ns = monotonic_ns()

    def data_received(self, data: bytes) -> None:
        self._stamp_ns = monotonic_ns()
        if self._exchange is None:
            self.close()  # nothing was asked for
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._keeps_alive = False  # after a whole answer: junk that is no part of it
            if not self._complete:
                self.give_up("stream_error", f"malformed HTTP: {error}")
                return
        if self._complete:
            self._end(self._stamp_ns, reusable=self._keeps_alive)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._exchange is not None:
            if error is not None:
                self._exchange.fail("reset", f"the connection broke: {error}")
            elif not self._answered:
                self._exchange.fail("reset", "the connection was closed before an answer")
            self._end(monotonic_ns(), reusable=False)
        self.reusable = False
        self._parser = None  # the garbage collector is off during a play: open the circle by hand

    # httptools.HttpResponseParser

    def on_message_begin(self) -> None:
        if self._complete:
            self._keeps_alive = False  # a second answer to one request
        self._headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        self._is_interim = status < 200 and status != SWITCHING_PROTOCOLS
        if not (self._complete or self._is_interim):
            self._answered = True
            self._exchange.head(status, self._headers)

    def on_body(self, body: bytes) -> None:
        if not self._complete:
            self._exchange.body(body, self._stamp_ns)

    def on_message_complete(self) -> None:
        if self._is_interim:
            return
        self._keeps_alive = not self._complete and self._parser.should_keep_alive()
        self._complete = True
