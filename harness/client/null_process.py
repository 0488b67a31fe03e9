"""One process of the null server: an OpenAI-compatible server without a model, see null_server.py.

`python -m harness.client.null_process HOST PORT [TTFT_NS TPOT_NS]` shares its port with others of its kind,
prints "ready" when it listens, and ends when its standard input closes.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import functools
import gc
import itertools
import json
import math
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

import httptools
import uvloop

from harness.client.pacer import Pacer

BACKLOG = 4096
MAX_TOKENS = 1_000_000
WORDS = (
    " the",
    " quick",
    " brown",
    " fox",
    " jumps",
    " over",
    " a",
    " lazy",
    " dog",
    " and",
    " runs",
    " home",
)
MODEL = "null"
READY_LINE = "ready"


@dataclass(frozen=True)
class Pace:
    """Times of the tokens of an answer, in ns."""

    ttft_ns: int
    tpot_ns: int

    @staticmethod
    def from_ms(ttft_ms: float, tpot_ms: float) -> Pace:
        """Raises ValueError for times that are negative or not finite."""
        for name, value in (("ttft_ms", ttft_ms), ("tpot_ms", tpot_ms)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} {value} must be a time of at least 0")
        return Pace(round(ttft_ms * 1e6), round(tpot_ms * 1e6))


def _chunk(payload: bytes) -> bytes:
    """One chunk of HTTP's chunked coding."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


@dataclass(frozen=True)
class Shape:
    """What the events of an answer look like: answers of one shape share their bytes."""

    model: str
    prompt_tokens: int
    final_usage: bool
    continuous_usage: bool

    def usage(self, tokens: int) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + tokens,
            "completion_tokens": tokens,
        }

    def event(self, choices: list[dict[str, Any]], usage: dict[str, int] | None) -> bytes:
        body = {
            "id": "cmpl-00000000000000000000000000000000",
            "object": "text_completion",
            "created": 1_700_000_000,
            "model": self.model,
            "choices": choices,
        }
        if usage is not None:
            body["usage"] = usage
        return _chunk(b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n")

    def token(self, number: int, finish_reason: str | None = None) -> bytes:
        """The event of the token `number`, counted from 1."""
        choice = {
            "index": 0,
            "text": WORDS[number % len(WORDS)],
            "logprobs": None,
            "finish_reason": finish_reason,
            "stop_reason": None,
        }
        return self.event([choice], self.usage(number) if self.continuous_usage else None)

    def last(self, max_tokens: int) -> bytes:
        """The last token with all that follows it."""
        usage = self.event([], self.usage(max_tokens)) if self.final_usage else b""
        return self.token(max_tokens, "length") + usage + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


@functools.lru_cache(maxsize=512)
def _tokens_of(shape: Shape) -> list[bytes]:
    """Events of tokens 1, 2, … of a shape as far as they were needed yet: the server spends no time on
    JSON."""
    return []


class Stream:
    """An answer being sent: `send_token` writes the next event, `is_over` tells that none is left."""

    __slots__ = ("_events", "_last", "_max_tokens", "_transport", "is_over", "sent")

    def __init__(self, transport: asyncio.Transport, shape: Shape, max_tokens: int) -> None:
        self._transport = transport
        self._max_tokens = max_tokens
        self._events = _tokens_of(shape)
        while len(self._events) < max_tokens - 1:
            self._events.append(shape.token(len(self._events) + 1))
        self._last = shape.last(max_tokens)
        self.sent = 0
        self.is_over = False

    def send_token(self) -> None:
        if self.sent == self._max_tokens - 1:
            self.is_over = True
            self._transport.write(self._last)
        else:
            self._transport.write(self._events[self.sent])
        self.sent += 1

    def abandon(self) -> None:
        """Its reader has gone."""
        self.is_over = True


class Lateness:
    """How long after their times tokens were written, counted in steps of 10 us up to a limit of 100 ms."""

    STEP_NS = 10_000
    STEPS = 10_000

    def __init__(self) -> None:
        self._counts = [0] * self.STEPS

    def add(self, late_ns: int) -> None:
        self._counts[min(late_ns // self.STEP_NS, self.STEPS - 1)] += 1

    def summary(self) -> dict[str, float]:
        """Nearest-rank percentiles, each the upper end of its step."""
        ends = list(itertools.accumulate(self._counts))
        found: dict[str, float] = {"tokens": ends[-1]}
        if ends[-1]:
            for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
                step = bisect.bisect_left(ends, math.ceil(share * ends[-1]))
                found[f"late_us_{name}"] = (step + 1) * self.STEP_NS / 1e3
        return found


class FlatOut:
    """Gives each open stream a token a turn of the event loop, as a batching engine gives one a step."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.lateness = Lateness()  # nothing has a time here: it stays empty
        self._loop = loop
        self._streams: list[Stream] = []

    def start(self, stream: Stream, received_ns: int) -> None:
        self.resume(stream)

    def resume(self, stream: Stream) -> None:
        if not self._streams:
            self._loop.call_soon(self._step)
        self._streams.append(stream)

    def pause(self, stream: Stream) -> None:
        """The reader of a stream does not keep up: leave it out until `resume`."""
        with contextlib.suppress(ValueError):
            self._streams.remove(stream)

    def _step(self) -> None:
        for stream in list(self._streams):
            stream.send_token()
        self._streams = [stream for stream in self._streams if not stream.is_over]
        if self._streams:
            self._loop.call_soon(self._step)


class Paced:
    """Gives each stream its tokens at their times, whether or not its reader keeps up.

    Every time is absolute: the receipt of the request plus ttft and a multiple of tpot, so that a late token
    moves no other.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, pace: Pace) -> None:
        self._pacer = Pacer(loop, spin_ns=0)
        self._pace = pace
        self.lateness = Lateness()

    def start(self, stream: Stream, received_ns: int) -> None:
        self._send_at(stream, received_ns + self._pace.ttft_ns)

    def resume(self, stream: Stream) -> None:
        pass

    def pause(self, stream: Stream) -> None:
        pass

    def _send_at(self, stream: Stream, due_ns: int) -> None:
        def send() -> None:
            if stream.is_over:
                return  # its reader has gone
            self.lateness.add(time.monotonic_ns() - due_ns)
            stream.send_token()
            if not stream.is_over:
                self._send_at(stream, due_ns + self._pace.tpot_ns)

        self._pacer.call_at(due_ns, send)


class BadRequest(ValueError):
    """What the client asked cannot be answered; becomes HTTP 400."""


class NullConnection(asyncio.Protocol):
    """One HTTP/1.1 connection to a client, kept alive, a request at a time."""

    def __init__(self, sender: FlatOut | Paced, model: str) -> None:
        self._sender = sender
        self._model = model
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body = b""
        self._stamp_ns = 0
        self._stream: Stream | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._stamp_ns = time.monotonic_ns()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._answer(400, _error(f"malformed HTTP: {error}"))
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if self._stream is not None:
            self._stream.abandon()

    def pause_writing(self) -> None:
        self._sender.pause(self._stream)

    def resume_writing(self) -> None:
        if not self._stream.is_over:
            self._sender.resume(self._stream)

    # httptools.HttpRequestParser

    def on_message_begin(self) -> None:
        self._url = self._body = b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        method, path = self._parser.get_method(), self._url.partition(b"?")[0]
        if (method, path) == (b"POST", b"/v1/completions"):
            try:
                self._complete(json.loads(self._body))
            except ValueError as error:
                self._answer(400, _error(str(error)))
        elif (method, path) == (b"GET", b"/health"):
            self._answer(200, {})
        elif (method, path) == (b"GET", b"/pacing"):
            self._answer(200, self._sender.lateness.summary())
        elif (method, path) == (b"GET", b"/v1/models"):
            self._answer(
                200, {"object": "list", "data": [{"id": self._model, "object": "model", "owned_by": "null"}]}
            )
        else:
            self._answer(404, _error(f"there is no {method.decode()} {path.decode('latin-1')}"))

    def _complete(self, body: Any) -> None:
        shape, max_tokens = _asked(body, self._model)
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        self._transport.write(head)
        self._stream = Stream(self._transport, shape, max_tokens)
        self._sender.start(self._stream, self._stamp_ns)

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        phrase = {200: "OK", 400: "Bad Request", 404: "Not Found"}[status]
        head = (
            f"HTTP/1.1 {status} {phrase}\r\n"
            "Content-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        self._transport.write(head.encode() + content)


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}


def _asked(body: Any, model: str) -> tuple[Shape, int]:
    """Shape and length of the answer to a request's body. Raises BadRequest."""
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    prompt, max_tokens = body.get("prompt"), body.get("max_tokens", 16)
    if not isinstance(prompt, str | list) or not prompt:
        raise BadRequest("prompt must be a text or a list of token ids, and not empty")
    if not isinstance(max_tokens, int) or isinstance(max_tokens, bool) or not 1 <= max_tokens <= MAX_TOKENS:
        raise BadRequest(f"max_tokens {max_tokens!r} must be an integer from 1 to {MAX_TOKENS}")
    if body.get("stream") is not True:
        raise BadRequest("stream must be true: this server has streamed answers only")
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise BadRequest("stream_options must be an object")
    final_usage = bool(options.get("include_usage"))
    prompt_tokens = len(prompt.split()) if isinstance(prompt, str) else len(prompt)
    continuous_usage = final_usage and bool(options.get("continuous_usage_stats"))
    return Shape(model, prompt_tokens, final_usage, continuous_usage), max_tokens


async def _serve(host: str, port: int, pace: Pace | None) -> None:
    loop = asyncio.get_running_loop()
    sender = Paced(loop, pace) if pace else FlatOut(loop)
    server = await loop.create_server(
        lambda: NullConnection(sender, MODEL), host, port, backlog=BACKLOG, reuse_port=True
    )
    gc.freeze()
    print(READY_LINE, flush=True)
    starter_gone = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), starter_gone.set)
    await starter_gone.wait()
    server.close()


def main(arguments: list[str]) -> None:
    host, port, *times = arguments
    uvloop.run(_serve(host, int(port), Pace(*map(int, times)) if times else None))


if __name__ == "__main__":
    main(sys.argv[1:])
