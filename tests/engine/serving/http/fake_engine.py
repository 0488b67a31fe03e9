"""Doubles for the tests of the HTTP server: an engine without a model, a tokenizer of bytes, and a raw HTTP
peer."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import uvloop
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from engine.serving.http.app import Server, ServerSettings, bind
from engine.serving.http.chat_template import ChatTemplate
from engine.serving.request import SamplingParams, TokenLogprobs

MODEL = "tiny"
CONTEXT = 128


def byte_tokenizer(begin: bool = False) -> Tokenizer:
    """One id for each byte (in the order of their stand-ins), then <|end|>; begin: each text starts with
    <|begin|>."""
    vocab = {name: id for id, name in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True), AddedToken("<|begin|>", special=True)])
    if begin:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|begin|> $A", special_tokens=[("<|begin|>", 257)]
        )
    return tokenizer


TOKENIZER = byte_tokenizer()
END = TOKENIZER.token_to_id("<|end|>")
VOCABULARY = 300  # padding rows beyond the tokenizer's 258 ids


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def logprobs_of(token_ids: list[int], count: int = 3) -> tuple[TokenLogprobs, ...]:
    """What the double says of ids: each has -id / 8; the best are those below it, with -1 / 8, -9 / 8 …"""
    best = tuple(-1 / 8 - i for i in range(count))
    tops = [tuple((id - 1 - i) % VOCABULARY for i in range(count)) for id in token_ids]
    return tuple(TokenLogprobs(-id / 8, top, best) for id, top in zip(token_ids, tops, strict=True))


@dataclass(slots=True)
class Update:
    token_ids: list[int]
    finish: str | None = None
    error: str | None = None
    cached_tokens: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass
class Submitted:
    prompt_ids: list[int]
    params: SamplingParams
    on_update: Callable[[Update], None]
    priority: int = 0
    cache_salt: str = ""
    started: bool = False


@dataclass
class FakeEngine:
    """Keeps the contract of EngineClient. With `answer` each request plays its ids, one per turn of the
    event loop, until max_tokens or END; without, the test says what happens by `emit`."""

    answer: Callable[[list[int]], list[int]] | None = None
    state: str = "ready"
    error: str | None = None
    info: Any = field(default_factory=lambda: SimpleNamespace(max_model_len=CONTEXT, vocab_size=VOCABULARY))
    submitted: dict[int, Submitted] = field(default_factory=dict)
    stats: dict[str, int] = field(default_factory=dict)
    resets: int = 0
    cancelled: list[int] = field(default_factory=list)
    running: dict[int, Submitted] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def submit(
        self,
        prompt_ids: list[int],
        params: SamplingParams,
        on_update: Callable[[Update], None],
        priority: int = 0,
        cache_salt: str = "",
    ) -> int:
        id = len(self.submitted)
        self.submitted[id] = self.running[id] = Submitted(prompt_ids, params, on_update, priority, cache_salt)
        self.news.set()
        loop = asyncio.get_running_loop()
        if self.state != "ready":
            loop.call_soon(self.emit, id, [], "error", self.error)
        elif self.answer is not None:
            loop.call_soon(self._play, id, self.answer(prompt_ids)[: params.max_tokens])
        return id

    @property
    def in_flight(self) -> int:
        return len(self.running)

    def reset_prefix_cache(self) -> None:
        self.resets += 1

    def cancel(self, request_id: int) -> None:
        if request_id in self.running:
            self.cancelled.append(request_id)
            self.news.set()
            asyncio.get_running_loop().call_soon(self.emit, request_id, [], "cancelled")

    def emit(
        self,
        id: int,
        token_ids: list[int],
        finish: str | None = None,
        error: str | None = None,
        cached: int = 0,
    ) -> None:
        request = self.running.pop(id, None) if finish else self.running.get(id)
        if request is None:
            return
        update = Update(token_ids, finish, error, cached)
        if request.params.logprobs is not None:
            # More than was asked for, as when another request of the step asks for more.
            update.logprobs = logprobs_of(token_ids, request.params.logprobs + 1)
        if request.params.prompt_logprobs is not None and not request.started:
            # A prompt's come in pieces, the last one with the first token.
            known = logprobs_of(request.prompt_ids[1:], request.params.prompt_logprobs)
            request.on_update(Update([], prompt_logprobs=known[:-1]))
            update.prompt_logprobs = known[-1:]
        request.started = True
        request.on_update(update)

    def fail(self, reason: str) -> None:
        self.state, self.error = "failed", reason
        for id in list(self.running):
            self.emit(id, [], "error", reason)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for the server to have submitted or cancelled something."""
        while not condition():
            self.news.clear()
            await self.news.wait()

    def _play(self, id: int, rest: list[int]) -> None:
        if id not in self.running:
            return
        finish = "stop" if rest[0] == END else "length" if len(rest) == 1 else None
        self.emit(id, rest[:1], finish)
        if finish is None:
            asyncio.get_running_loop().call_soon(self._play, id, rest[1:])


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        return self.json["error"]

    @property
    def events(self) -> list[Any]:
        """The data of each event: parsed JSON, or "[DONE]"."""
        parts = self.body.decode().split("\n\n")
        assert parts.pop() == "", "the stream ends within an event"
        assert all(part.startswith("data: ") for part in parts)
        data = [part.removeprefix("data: ") for part in parts]
        return [text if text == "[DONE]" else json.loads(text) for text in data]


class Peer:
    """A client that sends exactly the bytes it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int, buffer: int = 1 << 20) -> "Peer":
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=buffer))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def get(self, path: str, method: str = "GET", headers: str = "") -> None:
        """headers: further lines, each with its line end."""
        self.send(f"{method} {path} HTTP/1.1\r\nhost: test\r\n{headers}\r\n".encode())

    def post(self, content: object, path: str = "/v1/completions") -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send(
            b"POST %b HTTP/1.1\r\nhost: test\r\ncontent-length: %d\r\n\r\n%b"
            % (path.encode(), len(body), body)
        )

    async def answer(self, method: str = "GET") -> Answer:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status_line, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        if method == "HEAD" or status_line.split()[1] == "100":
            body = b""
        elif headers.get("transfer-encoding") == "chunked":
            body = b"".join([chunk async for chunk in self.chunks()])
        elif "content-length" in headers:
            body = await self.reader.readexactly(int(headers["content-length"]))
        else:
            body = await self.reader.read()
        return Answer(int(status_line.split()[1]), headers, body)

    async def chunks(self) -> AsyncIterator[bytes]:
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            yield await self.reader.readexactly(size)
            assert await self.reader.readexactly(2) == b"\r\n"
        assert await self.reader.readexactly(2) == b"\r\n"

    async def ended(self) -> bool:
        """Wait until the server has closed the connection."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(1 << 16):
                pass
        return True

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        self.writer.transport.abort()


@contextlib.asynccontextmanager
async def serving(
    engine: FakeEngine,
    tokenizer: Tokenizer = TOKENIZER,
    chat_template: ChatTemplate | None = None,
    **changes: Any,
) -> AsyncIterator[tuple[Server, int]]:
    """A server on a free port; yields it and the port."""
    settings = ServerSettings(MODEL, port=0, chat_template=chat_template, **changes)
    server = Server(engine, tokenizer, settings)
    _, port = await server.listen(bind(settings))
    try:
        yield server, port
    finally:
        cancel = asyncio.Event()
        cancel.set()
        await server.shut_down(0, cancel)


async def ask(port: int, content: object, path: str = "/v1/completions") -> Answer:
    """One POST on a connection of its own."""
    peer = await Peer.connect(port)
    peer.post(content, path)
    answer = await peer.answer()
    peer.close()
    return answer


async def fetch(port: int, path: str, method: str = "GET", headers: str = "") -> Answer:
    peer = await Peer.connect(port)
    peer.get(path, method, headers)
    answer = await peer.answer(method)
    peer.close()
    return answer


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run a test on the event loop the server is made for; one that hangs fails."""
    uvloop.run(asyncio.wait_for(test, 60))
