"""Hostile and heavy load over real sockets, against the real server process with a tiny random model.

Memory is that of both processes, front end and engine, over what they had when idle.
"""

import asyncio
import contextlib
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop

from engine.serving.http.protocol import Limits
from tests.engine.oracle import oracle_greedy, random_tensors, tiny_config, write_folder
from tests.engine.serving.http.fake_engine import (
    END,
    TOKENIZER,
    Answer,
    FakeEngine,
    Peer,
    ask,
    fetch,
    ids,
    serving,
)

CONFIG = tiny_config(vocab_size=258, max_position_embeddings=4096, eos_token_ids=(END,))
NAME = "m" * 12000
"""Stands in every event: 12 kB a token soon fill the buffers between the server and a peer that does not
read."""
STREAM_TOKENS = 100
PROMPTS = ("one", "two", "three", "four")
PROBE_TOKENS = 12
MIB = 1 << 20
BODY_BYTES = 100_000_000
MAX_QUEUE = 2048


# ---- the server process


@dataclass(frozen=True)
class Running:
    process: subprocess.Popen[str]
    port: int
    errors: Path
    """Its stderr."""

    @property
    def engine(self) -> psutil.Process:
        (child,) = psutil.Process(self.process.pid).children(recursive=True)
        return child

    def memory(self) -> int:
        front = psutil.Process(self.process.pid)
        return sum(each.memory_info().rss for each in (front, *front.children(recursive=True)))


@contextlib.contextmanager
def server_process(model: Path, folder: Path) -> Iterator[Running]:
    errors = folder / "stderr"
    command = [
        sys.executable, "-m", "engine", "serve", "--model", str(model), "--served-model-name", NAME,
        "--device", "cpu", "--kv-cache-bytes", str(32 * MIB), "--port", "0", "--max-queue", str(MAX_QUEUE),
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with errors.open("w") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment)
    try:
        announced = re.search(r"http://127\.0\.0\.1:(\d+) ", process.stdout.readline())
        assert announced, errors.read_text()
        yield Running(process, int(announced[1]), errors)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_folder(CONFIG, tmp_path_factory.mktemp("model"))
    TOKENIZER.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def living_server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Running]]:
    """One server for all tests, so that each finds what the others have left behind; replaced when a test
    has ended it."""
    servers: list[Running] = []
    with contextlib.ExitStack() as stack:

        def get() -> Running:
            if not servers or servers[-1].process.poll() is not None:
                made = server_process(model, tmp_path_factory.mktemp("server"))
                servers.append(stack.enter_context(made))
            return servers[-1]

        yield get


@pytest.fixture
def server(living_server: Callable[[], Running]) -> Running:
    return living_server()


@pytest.fixture(autouse=True)
def many_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def run(test: Coroutine[Any, Any, None]) -> None:
    uvloop.run(asyncio.wait_for(test, 280))


# ---- what is asked, and what must come back


@cache
def expected(prompt: str, tokens: int) -> str:
    weights = random_tensors(CONFIG)
    return TOKENIZER.decode(oracle_greedy(CONFIG, weights, ids(prompt), tokens, ()))


def wish(prompt: str, tokens: int, stream: bool = True) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": stream}


def text_of(answer: Answer) -> str:
    assert answer.status == 200, answer.body
    *events, done = answer.events
    assert done == "[DONE]"
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    return "".join(event["choices"][0]["text"] for event in events)


async def probe(port: int) -> None:
    """Ordinary clients are served, with the right text."""
    for prompt in PROMPTS:
        streamed, plain = await asyncio.gather(
            ask(port, wish(prompt, PROBE_TOKENS)), ask(port, wish(prompt, PROBE_TOKENS, stream=False))
        )
        assert text_of(streamed) == plain.json["choices"][0]["text"] == expected(prompt, PROBE_TOKENS)


async def gauges(port: int) -> dict[str, float]:
    lines = (await fetch(port, "/metrics")).body.decode().splitlines()
    return {name: float(value) for name, value in (line.split(" ") for line in lines if line[0] != "#")}


async def everything_is_free(port: int) -> dict[str, float]:
    """Wait until nothing runs, waits or holds a block (a test that waits too long has failed)."""
    while True:
        values = await gauges(port)
        names = ("kv_blocks_used", "sequences_running", "sequences_waiting")
        if values["ladder_kv_blocks"] > 0 and not any(values[f"ladder_{name}"] for name in names):
            return values
        await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def memory_within(server: Running, limit_mib: float) -> AsyncIterator[None]:
    """Sample the server's memory; its peak may be at most limit_mib over the idle server's."""
    await probe(server.port)
    start = peak = server.memory()

    async def watch() -> None:
        nonlocal peak
        while True:
            peak = max(peak, server.memory())
            await asyncio.sleep(0.02)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
    grown = (max(peak, server.memory()) - start) / MIB
    print(f"memory: {start / MIB:.0f} MiB at the start, {grown:.1f} MiB more at the peak")
    assert grown <= limit_mib


# ---- the tests


SIP = 2048


async def slow_peer(port: int) -> Peer:
    """One whose own buffers are small, so that the server feels that it does not read."""
    sock = socket.socket()
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    return Peer(*await asyncio.open_connection(sock=sock, limit=SIP))


async def sip(peer: Peer, begun: asyncio.Event, hurry: asyncio.Event) -> Answer:
    """Read the answer a little at a time until told to hurry."""
    head = (await peer.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    raw = bytearray()
    while not raw.endswith(b"\r\n0\r\n\r\n"):
        piece = await peer.reader.read(SIP)
        assert piece, "the stream ends early"
        raw += piece
        begun.set()
        if not hurry.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(hurry.wait(), 0.5)
                sock = peer.writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MIB)
    body = bytearray()
    while raw:
        size, _, rest = raw.partition(b"\r\n")
        body += rest[: int(size, 16)]
        raw = rest[int(size, 16) + 2 :]
    return Answer(int(head.split()[1]), {}, bytes(body))


@pytest.mark.parametrize("clients", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_slow_readers_cost_bounded_memory_and_harm_nobody(server: Running, clients: int) -> None:
    """Every second client sips, every second one reads nothing at all. Unbounded, each stream would take
    1.2 MB of the server."""

    async def test() -> None:
        async with memory_within(server, 40 + clients * 0.15):
            peers = [await slow_peer(server.port) for _ in range(clients)]
            for i, peer in enumerate(peers):
                peer.post(wish(PROMPTS[i % 4], STREAM_TOKENS))
            hurry, begun = asyncio.Event(), [asyncio.Event() for _ in peers[::2]]
            sipping = [
                asyncio.create_task(sip(peer, event, hurry))
                for peer, event in zip(peers[::2], begun, strict=True)
            ]
            for event in begun:
                await event.wait()
            await probe(server.port)
            # The engine waits for nobody: all streams are computed while their readers are behind.
            await everything_is_free(server.port)
            assert not any(task.done() for task in sipping)
            await probe(server.port)
            hurry.set()
            for i, answer in enumerate(await asyncio.gather(*sipping)):
                assert text_of(answer) == expected(PROMPTS[2 * i % 4], STREAM_TOKENS)
                assert len(answer.events) < STREAM_TOKENS / 2, "the peer was never behind"
            for peer in peers:
                peer.close()
        await everything_is_free(server.port)
        await probe(server.port)

    run(test())


async def drop(port: int, way: int) -> None:
    """Connect, go so far, and leave."""
    peer = await Peer.connect(port)
    request = wish(PROMPTS[0], 1000)
    if way == 1:
        peer.send(b"POST /v1/completions HTTP/1.1\r\nhost: te")
    elif way == 2:
        peer.send(b"POST /v1/completions HTTP/1.1\r\ncontent-length: 1000\r\n\r\n{")
    elif way == 3:
        peer.post(request)
    elif way == 4:
        peer.post(request | {"stream": False})
    elif way in (5, 6):
        peer.post(request)
        assert (await peer.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        await peer.reader.read(100)
    elif way == 7:
        peer.post(request | {"n": 4})
        await peer.reader.readuntil(b"data: ")
    await asyncio.sleep(0)
    if way % 2:
        peer.reset()
    else:
        peer.close()


WAYS = 8


@pytest.mark.parametrize("clients", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_clients_that_drop_leave_nothing_behind(server: Running, clients: int) -> None:
    async def test() -> None:
        places = asyncio.Semaphore(500)

        async def dropping(number: int) -> None:
            async with places:
                await drop(server.port, number % WAYS)

        async with memory_within(server, 40):
            before = await gauges(server.port)
            wave = asyncio.gather(*(dropping(number) for number in range(clients)))
            await probe(server.port)
            await wave
            after = await everything_is_free(server.port)
            name = 'ladder_sequences_total{finish="cancelled"}'
            # Those dropped in mid-stream for certain: ways 5, 6 and the four choices of 7.
            assert after[name] - before[name] >= clients // WAYS * 6
        await probe(server.port)
        assert len(psutil.Process(server.process.pid).net_connections("tcp")) < 20

    run(test())


def test_a_byte_a_second_is_cut_while_others_are_served() -> None:
    limits = Limits(head_seconds=2.5, body_seconds=2.5, linger_seconds=0.1)
    body_to_come = b"POST /v1/completions HTTP/1.1\r\ncontent-length: 1000\r\n\r\n"

    async def drip(port: int, start: bytes) -> Answer:
        peer = await Peer.connect(port)
        peer.send(start)
        answer = asyncio.ensure_future(peer.answer())
        while not answer.done():
            peer.send(b"a")
            await asyncio.wait([answer], timeout=1)
        assert await peer.ended()
        peer.close()
        return await answer

    async def test() -> None:
        engine = FakeEngine(answer=lambda _: [*ids("Hello"), END])
        async with serving(engine, limits=limits) as (_, port):
            starts = [b"GET /health HTTP/1.1\r\nx: ", body_to_come] * 20
            drips = [asyncio.ensure_future(drip(port, start)) for start in starts]
            served = 0
            while not all(task.done() for task in drips):
                assert (await ask(port, {"prompt": "Hi"})).json["choices"][0]["text"] == "Hello"
                served += 1
                await asyncio.sleep(0.01)
            assert [(await task).status for task in drips] == [408] * len(drips)
            assert served > 0
            assert len(engine.submitted) == served

    run(test())


async def send_all(peer: Peer, piece: bytes, total: int, answer: "asyncio.Future[Answer]") -> int:
    """Send pieces until `total` bytes have gone or the server hangs up; how many had gone when the answer
    came."""
    sent, sent_before_answer = 0, None
    with contextlib.suppress(ConnectionError):
        while sent < total:
            peer.send(piece)
            sent += len(piece)
            await peer.writer.drain()
            await asyncio.sleep(0)
            if sent_before_answer is None and answer.done():
                sent_before_answer = sent
    await answer
    return sent if sent_before_answer is None else sent_before_answer


def test_bodies_of_100_mb_are_refused_early_and_not_kept(server: Running) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: test\r\n"
    piece = b"a" * (1 << 16)

    async def with_length(wait: bool) -> None:
        peer = await Peer.connect(server.port)
        peer.send(head + b"content-length: %d\r\n\r\n" % BODY_BYTES)
        answer = asyncio.ensure_future(peer.answer())
        if wait:
            await answer  # not a byte of the body is needed
        assert await send_all(peer, piece, BODY_BYTES, answer) < BODY_BYTES
        check(await answer)
        peer.close()

    async def chunked() -> None:
        peer = await Peer.connect(server.port)
        peer.send(head + b"transfer-encoding: chunked\r\n\r\n")
        answer = asyncio.ensure_future(peer.answer())
        chunk = b"%x\r\n%b\r\n" % (len(piece), piece)
        assert await send_all(peer, chunk, BODY_BYTES, answer) < BODY_BYTES
        check(await answer)
        peer.close()

    def check(answer: Answer) -> None:
        assert answer.status == 413
        assert str(Limits().body_bytes) in answer.error["message"]
        assert answer.headers["connection"] == "close"

    async def test() -> None:
        async with memory_within(server, 60):
            bodies = asyncio.gather(with_length(True), with_length(False), chunked(), chunked())
            await probe(server.port)
            await bodies
        await everything_is_free(server.port)
        await probe(server.port)

    run(test())


def test_a_full_queue_refuses_and_those_accepted_finish(server: Running) -> None:
    """While the engine process stands still exactly as many are accepted as may wait."""
    many, few, tokens = 1000, MAX_QUEUE - 2 * 1000, 8

    async def test() -> None:
        port, engine = server.port, server.engine
        await probe(port)
        refused_before = (await everything_is_free(port))["ladder_queue_refusals_total"]
        engine.suspend()
        try:
            large = [
                asyncio.create_task(
                    ask(port, wish(prompt, tokens, stream=False) | {"prompt": [prompt] * 20, "n": many // 20})
                )
                for prompt in PROMPTS[:2]
            ]
            while (await gauges(port))["ladder_sequences_waiting"] < 2 * many:
                assert not any(task.done() for task in large)
                await asyncio.sleep(0.01)
            asked = {
                asyncio.create_task(ask(port, wish(PROMPTS[i % 4], tokens))): PROMPTS[i % 4]
                for i in range(few + 50)
            }
            while sum(task.done() for task in asked) < 50:
                await asyncio.sleep(0.01)
            assert (await gauges(port))["ladder_sequences_waiting"] == MAX_QUEUE
            accepted = [task for task in asked if not task.done()]
            assert len(accepted) == few
        finally:
            engine.resume()
        for task in accepted:
            assert text_of(await task) == expected(asked.pop(task), tokens)
        for prompt, task in zip(PROMPTS, large, strict=False):
            texts = [choice["text"] for choice in (await task).json["choices"]]
            assert texts == [expected(prompt, tokens)] * many
        for task in asked:
            answer = await task
            assert (answer.status, answer.error["code"]) == (429, "queue_full")
            assert int(answer.headers["retry-after"]) >= 1
        values = await everything_is_free(port)
        assert values["ladder_queue_refusals_total"] - refused_before == 50
        await probe(port)

    run(test())


def test_a_killed_engine_ends_every_stream_once_and_the_server_says_so(server: Running) -> None:
    async def until_the_end(peer: Peer) -> list[Any]:
        data = b"".join([chunk async for chunk in peer.chunks()])
        peer.close()
        return Answer(200, {}, data).events

    async def test() -> None:
        port, engine = server.port, server.engine
        peers = [await Peer.connect(port) for _ in range(50)]
        for i, peer in enumerate(peers):
            peer.post(wish(PROMPTS[i % 4], 4000))
        for peer in peers:
            assert (await peer.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        engine.send_signal(signal.SIGKILL)
        for events in await asyncio.gather(*map(until_the_end, peers)):
            *tokens, end = events
            assert "engine process ended" in end["error"]["message"]
            assert tokens and all(event["choices"][0]["finish_reason"] is None for event in tokens)
        health = await fetch(port, "/health")
        assert (health.status, health.json["status"]) == (503, "failed")
        assert (await ask(port, wish("late", 5))).status == 503
        assert (await fetch(port, "/metrics")).status == 200
        server.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(server.process.wait, 60) == 1
        assert not engine.is_running()
        (line,) = server.errors.read_text().splitlines()
        assert line.startswith("error: the engine failed: ")

    run(test())
