"""HTTP/1.1 on one connection: requests in, one after the other; answers out, whole or as a stream.

`Connection` parses and guards its limits; it gives each request to a handler as an `Exchange`, which is all
that the rest of the server sees. Pipelined requests are parsed as they come (so a disconnect is always
noticed) and answered one at a time, in order. Nothing here knows of JSON, models or tokens.
"""

import asyncio
import fcntl
import socket
import sys
import termios
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus

import httptools

PIPELINE_DEPTH = 16
EVENT_STREAM = "text/event-stream; charset=utf-8"
JSON = "application/json"


@dataclass(frozen=True)
class Limits:
    """What one connection may take of the server. Sizes in bytes, times in seconds."""

    head_bytes: int = 64 << 10
    body_bytes: int = 4 << 20
    head_seconds: float = 10.0
    body_seconds: float = 60.0
    idle_seconds: float = 75.0
    """Between an answer and the next request."""
    stalled_seconds: float = 120.0
    """A peer that takes nothing of its answer for this long is cut off."""
    linger_seconds: float = 5.0
    """What a refused peer still sends is read and dropped for this long, so that it gets to read the
    refusal."""
    write_buffer_bytes: int = 64 << 10
    """Beyond this an exchange is not `writable`."""


@dataclass(slots=True)
class Request:
    """One request. target: path and query as sent; headers: names in lower case, the last of equal names
    wins."""

    method: str = ""
    target: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    version: str = "1.1"
    keep_alive: bool = True

    def take_body(self) -> bytes:
        """The body, given up by the request: it need not stay in memory while its answer is generated."""
        body, self.body = self.body, b""
        return body


@dataclass(frozen=True)
class Refusal:
    """A request that is not handed on, and ends its connection; `status` stands in the answer."""

    status: int
    message: str


class Exchange:
    """One request and its answer: either `respond`, or `start_stream`, any number of `write`, then `finish`.

    `on_disconnect` is called once if the peer goes before the answer is complete; `on_writable` each time a
    slow peer has caught up. After the end and after a disconnect every method does nothing.
    """

    __slots__ = (
        "_chunked",
        "_connection",
        "_unsent",
        "on_disconnect",
        "on_writable",
        "open",
        "request",
        "streaming",
    )

    def __init__(self, connection: "Connection", request: Request) -> None:
        self._connection = connection
        self._chunked = request.version == "1.1"
        self._unsent = b""
        self.request = request
        self.open = True
        self.streaming = False
        self.on_disconnect: Callable[[], None] | None = None
        self.on_writable: Callable[[], None] | None = None

    @property
    def writable(self) -> bool:
        """False while the peer is behind: what is written now only fills memory."""
        return self.open and not self._connection.paused

    def respond(
        self, status: int, body: bytes, content_type: str = JSON, headers: Iterable[tuple[str, str]] = ()
    ) -> None:
        if not self.open:
            return
        length = ("content-length", str(len(body)))
        head = self._head(status, (("content-type", content_type), length, *headers))
        self._end(head if self.request.method == "HEAD" else head + body)

    def start_stream(self, content_type: str = EVENT_STREAM) -> None:
        """The head of a stream; it goes out together with what is written first."""
        if not self.open:
            return
        self.streaming = True
        headers = [("content-type", content_type), ("cache-control", "no-cache")]
        if self._chunked:
            headers.append(("transfer-encoding", "chunked"))
        self._unsent = self._head(HTTPStatus.OK, headers)

    def write(self, data: bytes) -> None:
        if self.open:
            self._connection.write(self._chunk(data))

    def finish(self, data: bytes) -> None:
        """End the stream with its last, non-empty data."""
        if self.open:
            self._end(self._chunk(data) + (b"0\r\n\r\n" if self._chunked else b""))

    def lose(self) -> None:
        """The connection's news that the peer has gone."""
        if self.open:
            on_disconnect = self.on_disconnect
            self._close()
            if on_disconnect is not None:
                on_disconnect()

    def _chunk(self, data: bytes) -> bytes:
        head, self._unsent = self._unsent, b""
        return b"%b%x\r\n%b\r\n" % (head, len(data), data) if self._chunked else head + data

    def _head(self, status: int, headers: Iterable[tuple[str, str]]) -> bytes:
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", f"date: {formatdate(usegmt=True)}"]
        lines += [f"{name}: {value}" for name, value in headers]
        if not self.request.keep_alive:
            lines.append("connection: close")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def _close(self) -> None:
        # The callbacks' owners hold this exchange: without them no cycle is left to the garbage collector.
        self.open = False
        self.on_disconnect = self.on_writable = None

    def _end(self, data: bytes) -> None:
        self._close()
        self._connection.write(data)
        self._connection.exchange_ended(self)


class Connection(asyncio.Protocol):
    """One peer. handle(exchange) starts the work of a request and returns at once; refuse(exchange,
    refusal) answers what breaks a limit. `connections` is the server's set of live connections: each adds
    and removes itself.
    """

    def __init__(
        self,
        handle: Callable[[Exchange], None],
        refuse: Callable[[Exchange, Refusal], None],
        limits: Limits,
        connections: "set[Connection]",
    ) -> None:
        self._handle = handle
        self._refuse = refuse
        self._limits = limits
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._incoming: Request | None = None
        self._in_head = False
        self._head_bytes = 0
        self._body = bytearray()
        self._bytes_before = 0
        self._waiting: deque[Request | Refusal] = deque()
        self._continue_due = False
        self._deaf = False
        self._refused = False
        self._closing = False
        self._read_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self.exchange: Exchange | None = None
        self.paused = False

    # ---- called by the exchange and the server

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def exchange_ended(self, exchange: Exchange) -> None:
        self.exchange = None
        if exchange.request.keep_alive and not self._closing:
            # Not at once: answers given in the same call would nest a frame for each pipelined request.
            self._loop.call_soon(self._next)
        elif self._refused:
            self._linger()
        else:
            self._close()

    def close_when_idle(self) -> None:
        """Close now if no answer is under way, else after it."""
        self._closing = True
        if self.exchange is None:
            self._close()
        elif not self.exchange.streaming:
            self.exchange.request.keep_alive = False

    def abort(self) -> None:
        self._cancel_timers()
        self._transport.abort()

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        peer = transport.get_extra_info("socket")
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Left to itself the kernel would hold megabytes for a peer that does not read.
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._limits.write_buffer_bytes)
        transport.set_write_buffer_limits(high=self._limits.write_buffer_bytes)
        self._connections.add(self)
        self._read_within(self._limits.head_seconds)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        head_before = self._in_head
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._stop_reading(Refusal(400, f"this is not valid HTTP/1.1: {error}"))
        if head_before and self._in_head:
            self._head_bytes += len(data)
            self._check_head()
        self._next()

    def eof_received(self) -> bool:
        self._lose_exchange()
        self._close()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._deaf = True
        self._cancel_timers()
        self._waiting.clear()
        self._connections.discard(self)
        self._lose_exchange()

    def pause_writing(self) -> None:
        self.paused = True
        if not self._transport.is_closing():
            self._expect_progress()

    def resume_writing(self) -> None:
        self.paused = False
        if self._write_timer is not None and not self._transport.is_closing():
            self._write_timer.cancel()
        if self.exchange is None:
            self._next()
        elif self.exchange.on_writable is not None:
            self.exchange.on_writable()

    # ---- parser callbacks

    def on_message_begin(self) -> None:
        if self._deaf:
            return
        self._incoming = Request()
        self._in_head = True
        self._head_bytes = 0
        self._body = bytearray()
        self._bytes_before = sum(len(item.body) for item in self._waiting if isinstance(item, Request))
        self._read_within(self._limits.head_seconds)

    def on_url(self, url: bytes) -> None:
        if not self._deaf:
            self._incoming.target += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._deaf:
            self._incoming.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._deaf:
            return
        request = self._incoming
        request.method = self._parser.get_method().decode("ascii")
        request.version = self._parser.get_http_version()
        self._in_head = False
        self._head_bytes = len(request.target) + sum(
            len(name) + len(text) for name, text in request.headers.items()
        )
        self._check_head()
        self._check_body(int(request.headers.get("content-length", 0)))
        if self._deaf:
            return
        self._read_within(self._limits.body_seconds)
        if request.headers.get("expect", "").lower() == "100-continue" and request.version == "1.1":
            self._continue_due = True

    def on_body(self, body: bytes) -> None:
        if self._deaf:
            return
        self._continue_due = False
        self._body += body
        self._check_body(len(self._body))

    def on_message_complete(self) -> None:
        if self._deaf:
            return
        request, self._incoming = self._incoming, None
        request.body, self._body = bytes(self._body), bytearray()
        request.keep_alive = self._parser.should_keep_alive() and request.version == "1.1"
        self._continue_due = False
        self._cancel_read_timer()
        self._waiting.append(request)
        if len(self._waiting) > PIPELINE_DEPTH:
            self._stop_reading(Refusal(400, f"more than {PIPELINE_DEPTH} requests are pipelined"))

    # ---- the order of exchanges

    def _next(self) -> None:
        """Start the next exchange, unless one is under way or the peer has not taken the last answer yet."""
        if self.exchange is not None or self.paused or self._transport.is_closing():
            return
        if self._waiting:
            request = self._waiting.popleft()
            if isinstance(request, Refusal):
                self.exchange = Exchange(self, Request(keep_alive=False))
                self._refuse(self.exchange, request)
            else:
                self.exchange = Exchange(self, request)
                self._handle(self.exchange)
        elif self._continue_due:
            self._continue_due = False
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        elif self._incoming is None and self._read_timer is None:
            self._read_within(self._limits.idle_seconds)

    def _stop_reading(self, refusal: Refusal) -> None:
        """Answer what is complete, then refuse the rest and end the connection."""
        if not self._deaf:
            self._deaf = self._refused = True
            self._cancel_read_timer()
            self._incoming, self._body = None, bytearray()
            self._waiting.append(refusal)

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Read a request again as if it had not asked to change the protocol (RFC 9110, 7.8): the parser
        has taken what follows its head for the other protocol."""
        if self._deaf:
            return
        request = self._waiting[-1]
        if request.method == "CONNECT":
            request.keep_alive = False
            self._deaf = True
            return
        self._waiting.pop()
        lines = [f"{request.method} {request.target} HTTP/1.1"]
        lines += [
            f"{name}: {value}"
            for name, value in request.headers.items()
            if name not in ("upgrade", "connection")
        ]
        self._parser = httptools.HttpRequestParser(self)
        self.data_received("\r\n".join([*lines, "\r\n"]).encode("latin-1") + rest)

    def _check_head(self) -> None:
        if self._head_bytes > self._limits.head_bytes:
            self._stop_reading(
                Refusal(431, f"the request head is larger than the limit of {self._limits.head_bytes} bytes")
            )

    def _check_body(self, size: int) -> None:
        """Bodies that wait for their turn count together with the one that comes in."""
        size, limit = self._bytes_before + size, self._limits.body_bytes
        if size > limit:
            self._stop_reading(
                Refusal(413, f"a body of {size} bytes or more exceeds the limit of {limit} bytes")
            )

    def _lose_exchange(self) -> None:
        if self.exchange is not None:
            exchange, self.exchange = self.exchange, None
            exchange.lose()

    # ---- time limits and the end

    def _read_within(self, seconds: float) -> None:
        self._cancel_read_timer()
        self._read_timer = self._loop.call_later(seconds, self._read_timed_out)

    def _read_timed_out(self) -> None:
        if self._incoming is None:
            self._close()
        else:
            part = "head" if self._in_head else "body"
            seconds = self._limits.head_seconds if self._in_head else self._limits.body_seconds
            self._stop_reading(Refusal(408, f"the request {part} did not arrive within {seconds:g} s"))
            self._next()

    def _expect_progress(self, left_before: int | None = None) -> None:
        """Cut the peer off when it has taken nothing since the last look, one `stalled_seconds` ago."""
        left = self._transport.get_write_buffer_size() + _unacknowledged_bytes(self._transport)
        if left_before is not None and left >= left_before:
            self.abort()
        else:
            delay = self._limits.stalled_seconds
            self._write_timer = self._loop.call_later(delay, self._expect_progress, left)

    def _linger(self) -> None:
        """Say that no more will come, and drop what still arrives: closing with unread bytes would reset the
        connection and could take the answer with it (RFC 9112, 9.6)."""
        self._deaf = True
        self._transport.write_eof()
        self._cancel_read_timer()
        self._read_timer = self._loop.call_later(self._limits.linger_seconds, self._close)

    def _close(self) -> None:
        if not self._transport.is_closing():
            self._deaf = True
            self._cancel_timers()
            self._transport.close()
            self._expect_progress()

    def _cancel_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _cancel_timers(self) -> None:
        self._cancel_read_timer()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


def _unacknowledged_bytes(transport: asyncio.Transport) -> int:
    """What the kernel still holds of what was written to the peer."""
    answer = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, b"\0" * 4)
    return int.from_bytes(answer, sys.byteorder)
