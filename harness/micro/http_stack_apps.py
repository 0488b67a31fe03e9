"""The null server of the HTTP stack experiment, once for each stack, around one engine without a model.

Paths: `/stream` sends an event for each token without end; `/wait` is a plain request whose answer never
comes; `/body` reads a request body up to BODY_LIMIT and answers with its length or 413; `/hello` answers at
once; `/stats` tells what the application has seen (events handed to the stack, body bytes read, and when a
disconnect was noticed, in CLOCK_MONOTONIC seconds). The stack `engine` is the server that was built on the
winner, as it is, with `/v1/completions` in place of these.
"""

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import httptools
import uvloop

BODY_LIMIT = 2 << 20
EVENT = (
    b'data: {"id":"cmpl-0123456789abcdef","object":"text_completion","created":1764489600,'
    b'"model":"smollm2-135m","choices":[{"index":0,"text":" token","logprobs":null,"finish_reason":null}],'
    b'"usage":{"prompt_tokens":128,"completion_tokens":64,"total_tokens":192}}\n\n'
)
EVENT_CHUNK = b"%x\r\n%s\r\n" % (len(EVENT), EVENT)

stats: dict = {"events": 0, "body_bytes": 0, "disconnects": {}}


class NullEngine:
    """Offers a token to every stream once per turn of the event loop; one that is behind lets it pass."""

    def __init__(self) -> None:
        self.streams: set[Callable[[], None]] = set()
        self.task: asyncio.Task | None = None

    def add(self, stream: Callable[[], None]) -> None:
        self.streams.add(stream)
        if self.task is None:
            self.task = asyncio.get_running_loop().create_task(self.run())

    async def run(self) -> None:
        while True:
            for stream in tuple(self.streams):
                stream()
            await asyncio.sleep(0 if self.streams else 0.001)


engine = NullEngine()


def note_disconnect(path: str) -> None:
    stats["disconnects"][path] = time.monotonic()


# ---- uvicorn: raw ASGI


async def asgi_app(scope: dict, receive: Callable, send: Callable) -> None:
    path = scope["path"]

    async def answer(status: int, body: bytes) -> None:
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    if path == "/hello":
        await answer(200, b"hello")
    elif path == "/stats":
        await answer(200, json.dumps(stats).encode())
    elif path == "/body":
        size, more = 0, True
        while more and size <= BODY_LIMIT:
            message = await receive()
            size += len(message.get("body", b""))
            stats["body_bytes"] = size
            more = message.get("more_body", False)
        await answer(413 if size > BODY_LIMIT else 200, b"%d" % size)
    else:
        body = asyncio.create_task(asgi_disconnect(receive, path))
        if path == "/stream":
            await send(
                {
                    "type": "http.response.start",
                    "status": 200,
                    "headers": [(b"content-type", b"text/event-stream")],
                }
            )
            offer = asyncio.Event()
            engine.add(offer.set)
            while not body.done():
                await offer.wait()
                offer.clear()
                await send({"type": "http.response.body", "body": EVENT, "more_body": True})
                stats["events"] += 1
            engine.streams.discard(offer.set)
        else:
            await body


async def asgi_disconnect(receive: Callable, path: str) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    note_disconnect(path)


# ---- Granian: RSGI


async def rsgi_app(scope, protocol) -> None:
    path = scope.path
    if path == "/hello":
        protocol.response_bytes(200, [], b"hello")
    elif path == "/stats":
        protocol.response_bytes(200, [], json.dumps(stats).encode())
    elif path == "/body":
        size = 0
        async for piece in protocol:
            size += len(piece)
            stats["body_bytes"] = size
            if size > BODY_LIMIT:
                break
        protocol.response_bytes(413 if size > BODY_LIMIT else 200, [], b"%d" % size)
    else:
        gone = asyncio.ensure_future(protocol.client_disconnect())
        gone.add_done_callback(lambda _: note_disconnect(path))
        if path == "/stream":
            transport = protocol.response_stream(200, [("content-type", "text/event-stream")])
            offer = asyncio.Event()
            engine.add(offer.set)
            while not gone.done():
                await offer.wait()
                offer.clear()
                try:
                    await transport.send_bytes(EVENT)
                except Exception:  # the stack's own error for a closed peer; `gone` has the time of the news
                    break
                stats["events"] += 1
            engine.streams.discard(offer.set)
        await gone


# ---- ours: an asyncio.Protocol


class NullProtocol(asyncio.Protocol):
    """Only what the experiment asks: the server in engine/serving/http has the whole of it."""

    HEAD_LIMIT, HEAD_SECONDS = 32 << 10, 10

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport, self.paused, self.path, self.size, self.head_bytes = transport, False, "", 0, 0
        self.parser = httptools.HttpRequestParser(self)
        self.head_timer = asyncio.get_running_loop().call_later(self.HEAD_SECONDS, transport.close)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self.parser.feed_data(data)
        self.head_bytes += len(data)
        if not self.path and self.head_bytes > self.HEAD_LIMIT:
            self.refuse(431)

    def on_url(self, url: bytes) -> None:
        self.url = url.decode()

    def on_headers_complete(self) -> None:
        self.path, self.size = self.url, 0
        self.head_timer.cancel()

    def on_body(self, body: bytes) -> None:
        self.size += len(body)
        stats["body_bytes"] = self.size
        if self.size > BODY_LIMIT and not self.transport.is_closing():
            self.refuse(413)

    def on_message_complete(self) -> None:
        if self.path == "/stream":
            self.transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            engine.add(self.offer)
        elif self.path != "/wait":
            self.answer(200, json.dumps(stats).encode() if self.path == "/stats" else b"hello")

    def answer(self, status: int, body: bytes) -> None:
        self.transport.write(b"HTTP/1.1 %d -\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body))

    def refuse(self, status: int) -> None:
        self.answer(status, b"")
        self.transport.close()

    def offer(self) -> None:
        if not self.paused:
            self.transport.write(EVENT_CHUNK)
            stats["events"] += 1

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False

    def connection_lost(self, exc: Exception | None) -> None:
        engine.streams.discard(self.offer)
        self.head_timer.cancel()
        note_disconnect(self.path)


async def serve_protocol(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(NullProtocol, "127.0.0.1", port)
    await server.serve_forever()


# ---- what was built on it: engine/serving/http


@dataclass(slots=True)
class Update:
    token_ids: list[int]
    finish: str | None = None
    error: str | None = None
    cached_tokens: int = 0
    logprobs: tuple[()] = ()
    prompt_logprobs: tuple[()] = ()


class NullClient:
    """An EngineClient that gives every request a token per turn of the event loop, to its end."""

    state, error = "ready", None
    in_flight, stats = 0, {}
    info = SimpleNamespace(max_model_len=1 << 30, vocab_size=257)

    def __init__(self) -> None:
        self.ids = itertools.count()
        self.running: dict[int, Callable[[], None]] = {}

    def submit(
        self, prompt_ids: list[int], params: object, on_update: Callable[[Update], None], *_order: object
    ) -> int:
        request_id = next(self.ids)
        self.running[request_id] = partial(on_update, Update([256]))
        engine.add(self.running[request_id])
        return request_id

    def cancel(self, request_id: int) -> None:
        engine.streams.discard(self.running.pop(request_id))


async def serve_engine(port: int) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    from engine.serving.http.app import ServerSettings
    from engine.serving.http.app import serve as serve_http

    vocabulary = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "Ġtoken"]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(vocabulary)}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    await serve_http(NullClient(), tokenizer, ServerSettings("smollm2-135m", port=port))


def serve(stack: str, port: int) -> None:
    if stack == "protocol":
        uvloop.run(serve_protocol(port))
    elif stack == "engine":
        uvloop.run(serve_engine(port))
    elif stack == "uvicorn":
        import uvicorn

        uvicorn.run(asgi_app, port=port, loop="uvloop", http="httptools", access_log=False, log_level="error")
    elif stack == "granian":
        from granian import Granian

        target = f"{__spec__.name}:rsgi_app"
        Granian(
            target, port=port, interface="rsgi", loop="uvloop", websockets=False, log_enabled=False
        ).serve()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
