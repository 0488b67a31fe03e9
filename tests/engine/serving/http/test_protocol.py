"""HTTP mechanics of one connection, with a handler that the test writes: order, limits, hostile peers, back
pressure.

A fault others had, a disconnect that is not noticed during a plain request (ROCm/ATOM PR#1562), is met in
`test_a_disconnect_is_told_once_and_at_once`.
"""

import asyncio
import contextlib
import socket
import tracemalloc
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

import pytest

from engine.serving.http.protocol import Connection, Exchange, Limits, Refusal
from tests.engine.serving.http.fake_engine import Peer, run

QUICK = Limits(head_bytes=4096, body_bytes=10_000)


@dataclass
class Site:
    """A server whose handler puts each exchange where the test finds it, or answers by `respond`."""

    respond: Callable[[Exchange], None] | None = None
    port: int = 0
    connections: set[Connection] = field(default_factory=set)
    exchanges: list[Exchange] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def handle(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        self.arrived.set()
        if self.respond is not None:
            self.respond(exchange)

    def refuse(self, exchange: Exchange, refusal: Refusal) -> None:
        exchange.respond(refusal.status, refusal.message.encode(), "text/plain")

    async def exchange(self, at: int) -> Exchange:
        while len(self.exchanges) <= at:
            self.arrived.clear()
            await self.arrived.wait()
        return self.exchanges[at]


@contextlib.asynccontextmanager
async def site(
    respond: Callable[[Exchange], None] | None = None, limits: Limits = QUICK
) -> AsyncIterator[Site]:
    made = Site(respond)
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(made.handle, made.refuse, limits, made.connections), "127.0.0.1", 0
    )
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for connection in tuple(made.connections):
            connection.abort()


def echo(exchange: Exchange) -> None:
    exchange.respond(200, exchange.request.target.encode() + b" " + exchange.request.body, "text/plain")


async def eventually(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


# ---- requests


def test_requests_follow_each_other_on_one_connection() -> None:
    async def test() -> None:
        async with site(echo) as made:
            peer = await Peer.connect(made.port)
            for path in ("/a", "/b?c=d"):
                peer.post(b"body", path)
                answer = await peer.answer()
                assert (answer.status, answer.body) == (200, path.encode() + b" body")
                assert "connection" not in answer.headers
            assert len(made.connections) == 1
            peer.close()

    run(test())


def test_pipelined_requests_are_answered_one_at_a_time_in_order() -> None:
    async def test() -> None:
        async with site() as made:
            peer = await Peer.connect(made.port)
            for path in ("/1", "/2", "/3"):
                peer.post(b"x", path)
            for at, path in enumerate(("/1", "/2", "/3")):
                exchange = await made.exchange(at)
                assert exchange.request.target == path
                await asyncio.sleep(0.01)
                assert len(made.exchanges) == at + 1, "the next one waits for this answer"
                echo(exchange)
                assert (await peer.answer()).body == path.encode() + b" x"
            peer.close()

    run(test())


def test_a_disconnect_is_noticed_behind_pipelined_requests() -> None:
    async def test() -> None:
        async with site() as made:
            peer = await Peer.connect(made.port)
            peer.post(b"x" * 5000)
            peer.post(b"x" * 5000)
            exchange, lost = await made.exchange(0), asyncio.Event()
            exchange.on_disconnect = lost.set
            peer.close()
            await lost.wait()
            await eventually(lambda: not made.connections)
            assert len(made.exchanges) == 1

    run(test())


def test_too_many_pipelined_requests_are_refused_after_the_answers_due() -> None:
    async def test() -> None:
        async with site(echo) as made:
            peer = await Peer.connect(made.port)
            peer.send(b"GET / HTTP/1.1\r\n\r\n" * 40)
            statuses = [(await peer.answer()).status for _ in range(18)]
            assert statuses == [200] * 17 + [400]
            assert await peer.ended()

    run(test())


def test_pipelined_bodies_count_together() -> None:
    async def test() -> None:
        async with site() as made:
            peer = await Peer.connect(made.port)
            peer.post(b"x" * 4000)
            await made.exchange(0)
            for _ in range(3):
                peer.post(b"x" * 4000)
            for at in range(3):
                echo(await made.exchange(at))
            assert [(await peer.answer()).status for _ in range(4)] == [200, 200, 200, 413]
            assert await peer.ended()

    run(test())


def test_chunked_bodies() -> None:
    async def test() -> None:
        async with site(echo) as made:
            peer = await Peer.connect(made.port)
            for _ in range(2):
                peer.send(b"POST /c HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n")
                peer.send(b"2;x=y\r\nde\r\n0\r\n\r\n")
                assert (await peer.answer()).body == b"/c abcde"
            peer.close()

    run(test())


def test_expect_100_continue() -> None:
    head = b"POST /e HTTP/1.1\r\ncontent-length: %d\r\nexpect: 100-continue\r\n\r\n"

    async def test() -> None:
        async with site() as made:
            peer = await Peer.connect(made.port)
            peer.get("/first")
            exchange = await made.exchange(0)
            peer.send(head % 3)
            await asyncio.sleep(0.01)
            echo(exchange)
            assert (await peer.answer()).body == b"/first "
            assert (await peer.answer()).status == 100
            peer.send(b"abc")
            echo(await made.exchange(1))
            assert (await peer.answer()).body == b"/e abc"
            peer.send(head % 20_000)
            assert (await peer.answer()).status == 413, "no 100 for what will be refused"
            assert await peer.ended()

    run(test())


def test_an_upgrade_is_ignored() -> None:
    async def test() -> None:
        async with site(echo) as made:
            peer = await Peer.connect(made.port)
            upgrade = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMA\r\n"
            peer.send(b"GET /u HTTP/1.1\r\n" + upgrade + b"\r\n" + b"GET /v HTTP/1.1\r\n\r\n")
            assert [(await peer.answer()).body for _ in range(2)] == [b"/u ", b"/v "]
            peer.send(b"POST /w HTTP/1.1\r\n" + upgrade + b"content-length: 2\r\n\r\nab")
            assert (await peer.answer()).body == b"/w ab"
            peer.close()

    run(test())


@pytest.mark.parametrize(
    "request_head", [b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n"]
)
def test_a_connection_ends_when_the_peer_says_so(request_head: bytes) -> None:
    async def test() -> None:
        async with site(echo) as made:
            peer = await Peer.connect(made.port)
            peer.send(request_head + b"GET /ignored HTTP/1.1\r\n\r\n")
            answer = await peer.answer()
            assert (answer.body, answer.headers["connection"]) == (b"/ ", "close")
            assert await peer.ended()
            assert len(made.exchanges) == 1

    run(test())


def test_head_has_no_body() -> None:
    async def test() -> None:
        async with site(echo) as made:
            peer = await Peer.connect(made.port)
            peer.get("/h", "HEAD")
            peer.get("/g")
            assert (await peer.answer("HEAD")).headers["content-length"] == "3"
            assert (await peer.answer()).body == b"/g "
            peer.close()

    run(test())


GARBAGE = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # the start of a TLS handshake
    b"hello\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"POST / HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
    b"POST / HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
    b"POST / HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
    b"POST / HTTP/1.1\r\ncontent-length: 99999999999999999999999\r\n\r\n",
    b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"GET / HTTP/1.1\r\nno colon here\r\n\r\n",
]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_is_refused_after_the_answers_due(garbage: bytes) -> None:
    async def test() -> None:
        async with site(echo) as made:
            peer = await Peer.connect(made.port)
            peer.send(b"GET /fine HTTP/1.1\r\n\r\n" + garbage)
            assert [(await peer.answer()).status for _ in range(2)] == [200, 400]
            assert await peer.ended()
            assert len(made.exchanges) == 1

    run(test())


# ---- limits


def test_a_body_of_100_mb_is_refused_without_being_kept() -> None:
    piece = b"x" * (1 << 20)

    async def test() -> None:
        async with site(echo) as made:
            tracemalloc.start()
            try:
                for head in (b"content-length: %d" % (100 << 20), b"transfer-encoding: chunked"):
                    peer = await Peer.connect(made.port)
                    peer.send(b"POST / HTTP/1.1\r\n" + head + b"\r\n\r\n")
                    with contextlib.suppress(ConnectionError):
                        for _ in range(100):
                            chunk = piece if b"length" in head else b"100000\r\n%b\r\n" % piece
                            peer.send(chunk)
                            await peer.writer.drain()
                    answer = await peer.answer()
                    assert answer.status == 413
                    assert b"10000 bytes" in answer.body
                    peer.close()
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert peak < 8 << 20
            assert not made.exchanges

    run(test())


def test_nothing_is_kept_of_a_refused_body_behind_a_running_answer() -> None:
    async def test() -> None:
        async with site() as made:
            peer = await Peer.connect(made.port)
            peer.get("/slow")
            exchange = await made.exchange(0)
            [connection] = made.connections
            peer.send(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n")
            for _ in range(100):
                peer.send(b"1000\r\n%b\r\n" % (b"x" * 4096))
                await peer.writer.drain()
                await asyncio.sleep(0)
                assert len(connection._body) <= QUICK.body_bytes + 4096
            await eventually(lambda: connection._refused)
            assert len(connection._waiting) == 1
            echo(exchange)
            assert [(await peer.answer()).status for _ in range(2)] == [200, 413]
            assert await peer.ended()

    run(test())


@pytest.mark.parametrize("line", [b"x-a: " + b"a" * 500 + b"\r\n", b"a" * 500])
@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\nx-b: ", b"GET /"])
def test_an_endless_head_is_refused(line: bytes, start: bytes) -> None:
    async def test() -> None:
        async with site(echo) as made:
            peer = await Peer.connect(made.port)
            peer.send(start)
            answer = asyncio.ensure_future(peer.answer())
            while not answer.done():
                peer.send(line if start.endswith(b" ") else b"a" * 500)
                await asyncio.sleep(0)
            assert (await answer).status == 431
            assert b"4096" in (await answer).body
            peer.close()

    run(test())


def test_a_large_head_in_one_piece_is_refused_and_one_behind_a_large_body_is_not() -> None:
    async def test() -> None:
        async with site(echo) as made:
            peer = await Peer.connect(made.port)
            peer.post(b"x" * 9000)
            peer.send(b"GET /a HTTP/1.1\r\nx: y\r\n")
            peer.send(b"\r\n")
            assert [(await peer.answer()).status for _ in range(2)] == [200, 200]
            peer.send(b"GET / HTTP/1.1\r\nx: " + b"a" * 5000 + b"\r\n\r\n")
            assert (await peer.answer()).status == 431
            assert await peer.ended()

    run(test())


def test_a_byte_at_a_time_head_runs_out_of_time() -> None:
    async def test() -> None:
        async with site(echo, replace(QUICK, head_seconds=0.2, idle_seconds=3600)) as made:
            peer = await Peer.connect(made.port)
            peer.get("/")
            assert (await peer.answer()).status == 200, "the limit holds on a used connection as well"
            answer = asyncio.ensure_future(peer.answer())
            for byte in b"GET / HTTP/1.1\r\nx: ":
                peer.send(bytes([byte]))
                await asyncio.sleep(0.001)
            while not answer.done():
                peer.send(b"a")
                await asyncio.sleep(0.01)
            assert (await answer).status == 408
            peer.close()

    run(test())


def test_a_slow_body_runs_out_of_time() -> None:
    async def test() -> None:
        async with site(echo, replace(QUICK, body_seconds=0.1, head_seconds=3600)) as made:
            peer = await Peer.connect(made.port)
            peer.send(b"POST / HTTP/1.1\r\ncontent-length: 100\r\n\r\nabc")
            answer = await peer.answer()
            assert answer.status == 408
            assert b"body" in answer.body
            assert await peer.ended()

    run(test())


@pytest.mark.parametrize("used", [False, True])
def test_an_idle_connection_is_closed_in_silence(used: bool) -> None:
    async def test() -> None:
        limits = replace(QUICK, head_seconds=3600 if used else 0.1, idle_seconds=0.1 if used else 3600)
        async with site(echo, limits) as made:
            peer = await Peer.connect(made.port)
            if used:
                peer.get("/")
                await peer.answer()
            assert await peer.reader.read() == b""

    run(test())


def test_no_limit_of_reading_runs_while_an_answer_is_made() -> None:
    async def test() -> None:
        limits = replace(QUICK, head_seconds=0.05, body_seconds=0.05, idle_seconds=0.05)
        async with site(limits=limits) as made:
            peer = await Peer.connect(made.port)
            peer.post(b"x")
            exchange = await made.exchange(0)
            await asyncio.sleep(0.3)
            echo(exchange)
            assert (await peer.answer()).status == 200

    run(test())


# ---- answers


def test_streams_are_chunked_and_leave_the_connection_usable() -> None:
    async def test() -> None:
        async with site() as made:
            peer = await Peer.connect(made.port)
            for at in range(2):
                peer.get("/s")
                exchange = await made.exchange(at)
                exchange.start_stream()
                exchange.write(b"one")
                exchange.write(b"two")
                exchange.finish(b"three")
                assert (await peer.answer()).body == b"onetwothree"
                exchange.write(b"after the end")
                exchange.respond(500, b"after the end")
            peer.close()

    run(test())


def test_a_stream_for_http_1_0_ends_with_the_connection() -> None:
    async def test() -> None:
        async with site() as made:
            peer = await Peer.connect(made.port)
            peer.send(b"GET / HTTP/1.0\r\n\r\n")
            exchange = await made.exchange(0)
            exchange.start_stream()
            exchange.write(b"one")
            exchange.finish(b"two")
            answer = await peer.answer()
            assert "transfer-encoding" not in answer.headers
            assert answer.body == b"onetwo"

    run(test())


@pytest.mark.parametrize("goodbye", ["close", "reset", "half-close"])
@pytest.mark.parametrize("streaming", [False, True])
def test_a_disconnect_is_told_once_and_at_once(goodbye: str, streaming: bool) -> None:
    async def test() -> None:
        async with site() as made:
            peer = await Peer.connect(made.port)
            peer.get("/")
            exchange, told = await made.exchange(0), []
            exchange.on_disconnect = lambda: told.append(exchange.open)
            if streaming:
                exchange.start_stream()
                exchange.write(b"one")
                await peer.reader.readuntil(b"one")
            peer.writer.write_eof() if goodbye == "half-close" else getattr(peer, goodbye)()
            await eventually(lambda: not made.connections)
            assert told == [False]
            assert not exchange.writable
            exchange.write(b"two")
            exchange.finish(b"three")

    run(test())


async def fill(exchange: Exchange) -> int:
    """Write until the peer is behind; returns the bytes written."""
    exchange.start_stream()
    written = 0
    while exchange.writable:
        exchange.write(b"x" * 1000)
        written += 1000
        await asyncio.sleep(0)
    return written


@contextlib.asynccontextmanager
async def sleepy_peer(port: int) -> AsyncIterator[socket.socket]:
    """A peer that has sent a request and reads only what the test reads; its kernel takes little for it."""
    with socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.setblocking(False)
        await asyncio.get_running_loop().sock_connect(peer, ("127.0.0.1", port))
        await asyncio.get_running_loop().sock_sendall(peer, b"GET / HTTP/1.1\r\n\r\n")
        yield peer


def test_back_pressure_reaches_the_application_and_ends() -> None:
    async def test() -> None:
        async with site() as made:
            peer = await Peer.connect(made.port, buffer=1 << 12)
            peer.get("/")
            exchange, caught_up = await made.exchange(0), asyncio.Event()
            exchange.on_writable = caught_up.set
            written = await fill(exchange)
            assert not caught_up.is_set()
            body = asyncio.ensure_future(peer.answer())
            await caught_up.wait()
            assert exchange.writable
            exchange.finish(b"end")
            assert (await body).body == b"x" * written + b"end"
            peer.close()

    run(test())


def test_answers_wait_for_a_peer_that_pipelines_and_does_not_read() -> None:
    async def test() -> None:
        async with site(lambda exchange: exchange.respond(200, b"x" * 100_000)) as made:
            peer = await Peer.connect(made.port, buffer=1 << 12)
            for _ in range(1000):
                peer.get("/")
                await asyncio.sleep(0)
            [connection] = made.connections or [None]
            assert connection._transport.get_write_buffer_size() < 1 << 18
            assert len(made.exchanges) < 100
            peer.reset()

    run(test())


@pytest.mark.parametrize("complete", [False, True])
def test_a_peer_that_takes_nothing_is_cut_off(complete: bool) -> None:
    async def test() -> None:
        limits = replace(QUICK, stalled_seconds=0.3, idle_seconds=0.1)
        async with site(limits=limits) as made, sleepy_peer(made.port):
            exchange, lost = await made.exchange(0), []
            exchange.on_disconnect = lambda: lost.append(True)
            await fill(exchange)
            if complete:
                exchange.finish(b"end")
            await eventually(lambda: not made.connections)
            assert lost == ([] if complete else [True])

    run(test())


def test_a_peer_that_reads_slowly_is_not_cut_off() -> None:
    async def test() -> None:
        async with site(limits=replace(QUICK, stalled_seconds=0.5)) as made, sleepy_peer(made.port) as peer:
            exchange, lost = await made.exchange(0), []
            exchange.on_disconnect = lambda: lost.append(True)
            await fill(exchange)
            loop = asyncio.get_running_loop()
            start = loop.time()
            while loop.time() - start < 1.5:
                assert await loop.sock_recv(peer, 2000)
                await asyncio.sleep(0.02)
            assert not lost

    run(test())


@pytest.mark.parametrize("streaming", [False, True])
def test_answers_to_a_connection_just_cut_off_go_nowhere(streaming: bool) -> None:
    async def test() -> None:
        async with site() as made:
            peer = await Peer.connect(made.port)
            peer.get("/")
            exchange = await made.exchange(0)
            [connection] = made.connections
            connection.abort()
            connection.data_received(b"nonsense\r\n\r\n")
            if streaming:
                exchange.start_stream()
                exchange.write(b"one")
                exchange.finish(b"two")
            else:
                exchange.respond(200, b"one")
            assert await peer.ended()

    run(test())


def test_a_peer_that_has_caught_up_is_not_cut_off_while_there_is_no_news() -> None:
    async def test() -> None:
        async with site(limits=replace(QUICK, stalled_seconds=0.1)) as made:
            peer = await Peer.connect(made.port, buffer=1 << 12)
            peer.get("/")
            exchange = await made.exchange(0)
            written = await fill(exchange)
            received = 0
            while received < written:
                received += len(await peer.reader.read(1 << 16))
            await eventually(lambda: exchange.writable)
            await asyncio.sleep(0.5)
            assert exchange.open
            exchange.finish(b"end")
            assert (await peer.reader.read(1 << 16)).endswith(b"end\r\n0\r\n\r\n")
            peer.close()

    run(test())


# ---- closing


@pytest.mark.parametrize("streaming", [False, True])
def test_a_connection_asked_to_close_finishes_its_answer_first(streaming: bool) -> None:
    async def test() -> None:
        async with site() as made:
            idle, busy = await Peer.connect(made.port), await Peer.connect(made.port)
            busy.get("/")
            exchange = await made.exchange(0)
            if streaming:
                exchange.start_stream()
                exchange.write(b"one")
            await eventually(lambda: len(made.connections) == 2)
            for connection in tuple(made.connections):
                connection.close_when_idle()
            assert await idle.reader.read() == b""
            exchange.finish(b"two") if streaming else exchange.respond(200, b"onetwo")
            answer = await busy.answer()
            assert answer.body == b"onetwo"
            assert streaming or answer.headers["connection"] == "close"
            assert await busy.ended()

    run(test())
