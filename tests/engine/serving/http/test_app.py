"""Routes, and the life of the server: listening, draining, cancelling, closed; SIGTERM once and twice."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator

import pytest

from engine.config import ConfigError
from engine.serving.http.app import VERSION, ServerSettings, bind, serve
from tests.engine.serving.http.fake_engine import (
    CONTEXT,
    MODEL,
    TOKENIZER,
    FakeEngine,
    Peer,
    ask,
    fetch,
    ids,
    run,
    serving,
)


def test_small_endpoints() -> None:
    async def test() -> None:
        async with serving(FakeEngine()) as (_, port):
            assert (await fetch(port, "/health")).json == {"status": "ok"}
            assert (await fetch(port, "/version")).json == {"version": VERSION}
            models = (await fetch(port, "/v1/models")).json
            [card] = models["data"]
            assert (models["object"], card["id"], card["max_model_len"]) == ("list", MODEL, CONTEXT)
            assert (await fetch(port, f"/v1/models/{MODEL}?x=y")).json == card
            missing = await fetch(port, "/v1/models/other")
            assert (missing.status, missing.error["code"]) == (404, "model_not_found")
            head = await fetch(port, "/health", "HEAD")
            assert (head.status, head.body) == (200, b"")

    run(test())


def test_health_tells_of_a_failed_engine() -> None:
    async def test() -> None:
        engine = FakeEngine()
        async with serving(engine) as (_, port):
            engine.fail("the engine process ended unexpectedly")
            answer = await fetch(port, "/health")
            assert answer.status == 503
            assert answer.json == {"status": "failed", "error": "the engine process ended unexpectedly"}

    run(test())


def test_unknown_paths_and_methods() -> None:
    async def test() -> None:
        async with serving(FakeEngine()) as (_, port):
            missing = await fetch(port, "/v1/embeddings")
            assert missing.status == 404
            assert "/v1/embeddings" in missing.error["message"]
            for path, method, allowed in (
                ("/v1/completions", "GET", "POST"),
                ("/health", "DELETE", "GET, HEAD"),
            ):
                wrong = await fetch(port, path, method)
                assert (wrong.status, wrong.headers["allow"]) == (405, allowed)
                assert method in wrong.error["message"]

    run(test())


def test_refusals_of_the_connection_have_the_shape_of_the_api() -> None:
    async def test() -> None:
        async with serving(FakeEngine()) as (_, port):
            peer = await Peer.connect(port)
            peer.send(b"nonsense\r\n\r\n")
            answer = await peer.answer()
            assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")

    run(test())


def test_an_unexpected_fault_is_a_500_and_the_server_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def broken(prompt: list[int], *_: object) -> int:
        raise RuntimeError("secret")

    async def test() -> None:
        engine = FakeEngine()
        engine.submit = broken  # type: ignore[method-assign]
        async with serving(engine) as (_, port):
            answer = await ask(port, {"prompt": "a"})
            assert (answer.status, answer.error["type"]) == (500, "server_error")
            assert "secret" not in answer.error["message"]
            assert (await fetch(port, "/health")).status == 200

    run(test())
    assert "secret" in caplog.text


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("stream", [False, True])
def test_a_fault_within_an_answer_ends_that_one_alone(
    stream: bool, n: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        engine = FakeEngine()
        async with serving(engine) as (server, port):
            peer, other = await Peer.connect(port), await Peer.connect(port)
            peer.post({"prompt": "a", "logprobs": 0, "stream": stream, "n": n})
            await engine.until(lambda: len(engine.running) == n)
            other.post({"prompt": "b"})
            await engine.until(lambda: len(engine.running) == n + 1)
            engine.emit(0, ids("x"))
            if stream:
                await peer.reader.readuntil(b"}\n\n")
            engine.emit(0, [1 << 40], "length")  # an id that no tokenizer can look up
            await asyncio.sleep(0.01)
            if n == 2:
                engine.emit(1, ids("z"), "length")
            if stream:
                rest = await peer.reader.readuntil(b"0\r\n\r\n")
                assert rest.count(b"data: ") == 1 and b"internal error" in rest
            else:
                answer = await peer.answer()
                assert (answer.status, answer.error["type"]) == (500, "server_error")
            engine.emit(n, ids("y"), "length")
            assert (await other.answer()).json["choices"][0]["text"] == "y"
            assert not server._intake.shared.under_way
            peer.close()
            other.close()

    run(test())
    assert "OverflowError" in caplog.text


@contextlib.asynccontextmanager
async def under_signals(
    engine: FakeEngine, drain_seconds: float
) -> AsyncIterator[tuple[int, asyncio.Task[None]]]:
    """`serve` as the command line runs it; yields the port and its task."""
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    settings = ServerSettings(MODEL, port=0, drain_seconds=drain_seconds)
    task = asyncio.create_task(
        serve(engine, TOKENIZER, settings, on_listening=lambda _, port: listening.set_result(port))
    )
    yield await listening, task
    assert task.done()


def test_the_first_signal_drains() -> None:
    async def test() -> None:
        engine = FakeEngine()
        async with under_signals(engine, drain_seconds=60) as (port, task):
            stream, plain, idle = [await Peer.connect(port) for _ in range(3)]
            stream.post({"prompt": "a", "stream": True})
            await engine.until(lambda: len(engine.running) == 1)
            plain.post({"prompt": "b"})
            await engine.until(lambda: len(engine.running) == 2)
            engine.emit(0, ids("x"))
            await stream.reader.readuntil(b"}\n\n")
            os.kill(os.getpid(), signal.SIGTERM)
            assert await idle.ended()
            with pytest.raises(ConnectionError):
                await Peer.connect(port)
            assert not engine.cancelled
            engine.emit(0, ids("y"), "stop")
            engine.emit(1, ids("z"), "stop")
            assert (await plain.answer()).status == 200
            assert b"[DONE]" in await stream.reader.readuntil(b"[DONE]\n\n")
            await task

    run(test())


@pytest.mark.parametrize("impatient", ["second signal", "drain limit", "no drain"])
def test_what_runs_too_long_is_cancelled_with_an_error_of_its_own(impatient: str) -> None:
    async def test() -> None:
        engine = FakeEngine()
        drain_seconds = {"second signal": 3600.0, "drain limit": 0.05, "no drain": 0.0}[impatient]
        async with under_signals(engine, drain_seconds) as (port, task):
            stream, plain = [await Peer.connect(port) for _ in range(2)]
            stream.post({"prompt": "a", "stream": True})
            await engine.until(lambda: len(engine.running) == 1)
            plain.post({"prompt": "b"})
            await engine.until(lambda: len(engine.running) == 2)
            engine.emit(0, ids("x"))
            await stream.reader.readuntil(b"}\n\n")
            os.kill(os.getpid(), signal.SIGINT)
            if impatient == "second signal":
                await asyncio.sleep(0.05)
                assert not engine.cancelled
                os.kill(os.getpid(), signal.SIGTERM)
            answer = await plain.answer()
            assert (answer.status, answer.error["type"]) == (503, "server_error")
            rest = await stream.reader.read()
            assert rest.count(b"data: ") == 1
            assert b'"error"' in rest
            assert b"[DONE]" not in rest
            assert rest.endswith(b"0\r\n\r\n")
            await task
            assert sorted(engine.cancelled) == [0, 1]

    run(test())


def test_addresses_that_cannot_be_had_are_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}: the port is in use"):
            bind(ServerSettings(MODEL, port=port))
    with pytest.raises(ConfigError, match=r"no\.such\.host\.invalid:8000"):
        bind(ServerSettings(MODEL, host="no.such.host.invalid"))
    with pytest.raises(ConfigError, match="70000"):
        bind(ServerSettings(MODEL, port=70_000))


def test_two_servers_that_start_at_once_do_not_share_a_port() -> None:
    async def test() -> None:
        first = bind(ServerSettings(MODEL, port=0))
        settings = ServerSettings(MODEL, port=first.getsockname()[1])
        second = bind(settings)
        first.listen()
        with first, pytest.raises(ConfigError, match=str(settings.port)):
            await serve(FakeEngine(), TOKENIZER, settings, second)

    run(test())
