"""A server that misbehaves on purpose, on real sockets; what a client must find of it is known.

A request's prompt names the behaviour; each good answer has ASKED tokens. TRUTH says what its record holds.
"""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, BinaryIO

ASKED = 4
"""max_tokens of the requests that name a behaviour."""


@dataclass(frozen=True)
class Truth:
    """What the record of a behaviour must hold; None where it says nothing of it."""

    status: str = "ok"
    error: str = ""
    tokens: int | None = ASKED
    chunks: tuple[int, ...] = (1, 1, 1, 1)
    method: str | None = "continuous_usage"
    text: str = "abcd"
    more: dict[str, Any] = field(default_factory=dict)


TRUTH: dict[str, Truth] = {}
BEHAVIOURS: dict[str, Callable[[Answer], None]] = {}


def behaviour(truth: Truth) -> Callable[[Callable[[Answer], None]], Callable[[Answer], None]]:
    def register(behave: Callable[[Answer], None]) -> Callable[[Answer], None]:
        name = behave.__name__
        TRUTH[name] = truth
        BEHAVIOURS[name] = behave
        return behave

    return register


class Answer:
    """The server's side of one exchange."""

    def __init__(self, connection: socket.socket, server: Adversary) -> None:
        self.connection = connection
        self.server = server
        self.keep_open = True

    def raw(self, data: bytes) -> None:
        self.connection.sendall(data)

    def head(
        self, status: str = "200 OK", kind: str = "text/event-stream", *more: str, chunked: bool = True
    ) -> None:
        lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", *more]
        if chunked:
            lines.append("Transfer-Encoding: chunked")
        self.raw("\r\n".join([*lines, "", ""]).encode())

    def chunk(self, data: bytes) -> None:
        self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    def event(self, content: dict[str, Any] | bytes) -> None:
        self.chunk(framed(content))

    def text(self, text: str, total: int | None, finish: str | None = None, **more: Any) -> None:
        self.event(completion(text, total, finish, **more))

    def four(self) -> None:
        """The four tokens of a good answer."""
        for number, letter in enumerate("abcd", start=1):
            self.text(letter, number, "length" if number == 4 else None)

    def end(self, total: int | None = ASKED, done: bytes = b"data: [DONE]\n\n") -> None:
        if total is not None:
            self.event({"choices": [], "usage": usage(total)})
        if done:
            self.chunk(done)
        self.raw(b"0\r\n\r\n")

    def reset(self) -> None:
        """Close with a RST."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        self.keep_open = False
        self.connection.close()


def usage(total: int) -> dict[str, int]:
    return {"prompt_tokens": 3, "total_tokens": 3 + total, "completion_tokens": total}


def completion(text: str | None, total: int | None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    content: dict[str, Any] = {
        "id": "x",
        "choices": [{"index": 0, "text": text, "finish_reason": finish, **more}],
    }
    if total is not None:
        content["usage"] = usage(total)
    return content


def framed(content: dict[str, Any] | bytes) -> bytes:
    data = content if isinstance(content, bytes) else json.dumps(content, ensure_ascii=False).encode()
    return b"data: " + data + b"\n\n"


@behaviour(Truth(more={"prompt_tokens": 3, "finish_reason": "length", "empty_events": 1, "http_status": 200}))
def good(answer: Answer) -> None:
    answer.head()
    answer.four()
    answer.end()


@behaviour(Truth(more={"empty_events": 2}))
def empty_first_chunk(answer: Answer) -> None:
    answer.head()
    answer.text("", 0)
    answer.four()
    answer.end()


@behaviour(Truth(method="assumed", more={"empty_events": 2}))
def empty_first_chunk_without_running_usage(answer: Answer) -> None:
    answer.head()
    answer.text("", None)
    for letter in "abcd":
        answer.text(letter, None, "length" if letter == "d" else None)
    answer.end()


@behaviour(Truth(more={"empty_events": 2}))
def role_chunk(answer: Answer) -> None:
    answer.head()
    answer.event({"choices": [{"index": 0, "delta": {"role": "assistant"}}]})
    answer.four()
    answer.end()


@behaviour(Truth(chunks=(3, 1), text="abcd", more={"first_event_tokens": 3}))
def many_tokens_in_first_chunk(answer: Answer) -> None:
    answer.head()
    answer.text("abc", 3)
    answer.text("d", 4, "length")
    answer.end()


@behaviour(Truth(chunks=(4,), more={"first_event_tokens": 4}))
def all_tokens_in_one_chunk(answer: Answer) -> None:
    answer.head()
    answer.text("abcd", 4, "length")
    answer.end()


@behaviour(Truth(text="aéx€"))
def utf8_split_over_reads(answer: Answer) -> None:
    answer.head()
    answer.text("a", 1)
    for text, total in (("é", 2), ("x", 3), ("€", 4)):
        data = framed(completion(text, total, "length" if total == 4 else None))
        cut = data.find(text.encode()) + 1
        answer.chunk(data[:cut])
        time.sleep(0.01)
        answer.chunk(data[cut:])
    answer.end()


@behaviour(Truth())
def joined_events(answer: Answer) -> None:
    answer.head()
    events = [completion(letter, n, "length" if n == 4 else None) for n, letter in enumerate("abcd", start=1)]
    answer.chunk(
        b"".join(map(framed, events)) + framed({"choices": [], "usage": usage(4)}) + b"data: [DONE]\n\n"
    )
    answer.raw(b"0\r\n\r\n")


@behaviour(Truth())
def crlf_and_comments(answer: Answer) -> None:
    answer.head()
    answer.chunk(b": ping\r\n\r\n")
    for number, letter in enumerate("abcd", start=1):
        event = completion(letter, number, "length" if number == 4 else None)
        answer.chunk(b": note\r\nid: 1\r\n" + framed(event).replace(b"\n", b"\r\n"))
    answer.end(done=b"data: [DONE]\r\n\r\n")


@behaviour(Truth())
def data_over_several_lines(answer: Answer) -> None:
    answer.head()
    for number, letter in enumerate("abcd", start=1):
        lines = json.dumps(
            completion(letter, number, "length" if number == 4 else None), indent=1
        ).splitlines()
        answer.chunk("".join(f"data: {line}\n" for line in lines).encode() + b"\n")
    answer.end()


@behaviour(Truth(method="assumed"))
def usage_only_in_the_last_chunk(answer: Answer) -> None:
    answer.head()
    for letter in "abcd":
        answer.event(completion(letter, None, "length" if letter == "d" else None) | {"usage": None})
    answer.end()


@behaviour(Truth(method="assumed", chunks=(1, 3), text="abcd"))
def assumed_with_more_tokens_than_chunks(answer: Answer) -> None:
    answer.head()
    answer.text("a", None)
    answer.text("bcd", None, "length")
    answer.end()


@behaviour(Truth(method="returned_ids", chunks=(2, 2), more={"output_ids": [5, 6, 7, 8]}))
def token_ids_without_usage(answer: Answer) -> None:
    answer.head()
    answer.text("ab", None, token_ids=[5, 6])
    answer.text("cd", None, "length", token_ids=[7, 8])
    answer.end(total=None)


@behaviour(Truth("stream_error", "ids were returned", method="returned_ids", chunks=(2, 1)))
def token_ids_against_usage(answer: Answer) -> None:
    answer.head()
    answer.text("ab", None, token_ids=[5, 6])
    answer.text("cd", None, "length", token_ids=[7])
    answer.end()


@behaviour(Truth("stream_error", "without usage", tokens=None, chunks=(), method=None))
def usage_missing(answer: Answer) -> None:
    answer.head()
    for letter in "abcd":
        answer.text(letter, None, "length" if letter == "d" else None)
    answer.end(total=None)


@behaviour(Truth("stream_error", "out of memory", tokens=2, chunks=(1, 1), text="ab"))
def error_object_in_the_stream(answer: Answer) -> None:
    answer.head()
    answer.text("a", 1)
    answer.text("b", 2)
    answer.event({"error": {"message": "out of memory", "type": "server_error"}})
    answer.raw(b"0\r\n\r\n")


@behaviour(Truth("stream_error", "boom"))
def error_object_before_done(answer: Answer) -> None:
    answer.head()
    answer.four()
    answer.event({"error": {"message": "boom"}})
    answer.end()


@behaviour(Truth("stream_error", "error event", tokens=1, chunks=(1,), text="a"))
def error_event_by_name(answer: Answer) -> None:
    answer.head()
    answer.text("a", 1)
    answer.chunk(b'event: error\ndata: {"message": "overloaded"}\n\n')
    answer.raw(b"0\r\n\r\n")


@behaviour(Truth("stream_error", "not JSON", tokens=2, chunks=(1, 1), text="ab"))
def malformed_json(answer: Answer) -> None:
    answer.head()
    answer.text("a", 1)
    answer.text("b", 2)
    answer.event(b'{"choices": [{"text": "c"')
    answer.chunk(b"data: [DONE]\n\n")
    answer.raw(b"0\r\n\r\n")


@behaviour(Truth("stream_error", "malformed HTTP", tokens=1, chunks=(1,), text="a"))
def malformed_http(answer: Answer) -> None:
    answer.head()
    answer.text("a", 1)
    answer.raw(b"zzz\r\nno chunk\r\n")


NOTHING = {"tokens": None, "chunks": (), "method": None, "text": ""}


@behaviour(Truth("stream_error", "malformed HTTP", **NOTHING))
def no_http_at_all(answer: Answer) -> None:
    answer.raw(b"220 mail.example ESMTP\r\n")


@behaviour(Truth("http_error", "queue is full", **NOTHING, more={"http_status": 503}))
def unavailable(answer: Answer) -> None:
    body = b'{"error": {"message": "queue is full"}}'
    answer.head("503 Service Unavailable", "application/json", f"Content-Length: {len(body)}", chunked=False)
    answer.raw(body)


@behaviour(Truth("http_error", "HTTP 500", **NOTHING, more={"http_status": 500}))
def server_error_as_a_stream(answer: Answer) -> None:
    answer.head("500 Internal Server Error")
    answer.four()
    answer.end()


@behaviour(Truth("http_error", "HTTP 307", **NOTHING, more={"http_status": 307}))
def redirect(answer: Answer) -> None:
    answer.head(
        "307 Temporary Redirect", "text/plain", "Location: /elsewhere", "Content-Length: 0", chunked=False
    )


@behaviour(Truth("reset", "connection", tokens=2, chunks=(1, 1), text="ab"))
def reset_in_the_stream(answer: Answer) -> None:
    answer.head()
    answer.text("a", 1)
    answer.text("b", 2)
    time.sleep(0.1)  # a reset throws away what was not read yet
    answer.reset()


@behaviour(Truth("reset", "connection", **NOTHING, more={"http_status": None}))
def reset_before_the_answer(answer: Answer) -> None:
    answer.reset()


@behaviour(Truth("reset", "closed before an answer", **NOTHING))
def close_before_the_answer(answer: Answer) -> None:
    answer.close()


@behaviour(Truth("truncated", "without [DONE]"))
def no_done(answer: Answer) -> None:
    answer.head()
    answer.four()
    answer.end(done=b"")


@behaviour(Truth("truncated", "without [DONE]"))
def done_without_its_empty_line(answer: Answer) -> None:
    answer.head()
    answer.four()
    answer.end(done=b"data: [DONE]\n")


@behaviour(Truth("truncated", "without [DONE]", tokens=2, chunks=(1, 1), text="ab"))
def early_close(answer: Answer) -> None:
    answer.head()
    answer.text("a", 1)
    answer.text("b", 2)
    answer.close()


@behaviour(Truth())
def reset_after_done(answer: Answer) -> None:
    """All was received: what the connection does later is no fault of the answer."""
    answer.head()
    answer.four()
    answer.event({"choices": [], "usage": usage(4)})
    answer.chunk(b"data: [DONE]\n\n")
    time.sleep(0.1)
    answer.reset()


@behaviour(Truth(more={"bytes_after_done": 10 + 6}))
def bytes_after_done(answer: Answer) -> None:
    answer.head()
    answer.four()
    answer.event({"choices": [], "usage": usage(4)})
    answer.chunk(b"data: [DONE]\n\ndata: 0123456789\n\n")
    answer.chunk(b"[more]")
    answer.raw(b"0\r\n\r\n")


@behaviour(Truth())
def second_answer_unasked(answer: Answer) -> None:
    answer.head()
    answer.four()
    answer.event({"choices": [], "usage": usage(4)})
    answer.raw(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")


@behaviour(Truth())
def trickle(answer: Answer) -> None:
    """Byte by byte."""
    events = [completion(letter, n, "length" if n == 4 else None) for n, letter in enumerate("abcd", start=1)]
    body = b"".join(map(framed, events)) + framed({"choices": [], "usage": usage(4)}) + b"data: [DONE]\n\n"
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(body)
    for byte in head + body:
        answer.raw(bytes([byte]))


@behaviour(Truth())
def body_until_close(answer: Answer) -> None:
    answer.head("200 OK", "text/event-stream; charset=utf-8", "Connection: close", chunked=False)
    for number, letter in enumerate("abcd", start=1):
        answer.raw(framed(completion(letter, number, "length" if number == 4 else None)))
    answer.raw(b"data: [DONE]\n\n")
    answer.close()


@behaviour(Truth())
def close_announced(answer: Answer) -> None:
    """A request sent on this connection afterwards would be lost."""
    answer.head("200 OK", "text/event-stream", "Connection: close")
    answer.four()
    answer.end()
    time.sleep(0.1)
    answer.close()


LONG = "x" * 2_000_000


@behaviour(Truth(text=LONG + "bcd"))
def very_long_line(answer: Answer) -> None:
    answer.head()
    answer.text(LONG, 1)
    for number, letter in enumerate("bcd", start=2):
        answer.text(letter, number, "length" if number == 4 else None)
    answer.end()


@behaviour(Truth("stream_error", "text/html", **NOTHING))
def wrong_content_type(answer: Answer) -> None:
    answer.head(kind="text/html")
    answer.four()
    answer.end()


@behaviour(Truth("stream_error", "gzip", **NOTHING))
def compressed(answer: Answer) -> None:
    answer.head("200 OK", "text/event-stream", "Content-Encoding: gzip")
    answer.chunk(b"\x1f\x8b\x08\x00")
    answer.raw(b"0\r\n\r\n")


@behaviour(Truth("mismatch", "2 tokens and finish_reason 'length'", tokens=2, chunks=(1, 1), text="ab"))
def too_few_tokens(answer: Answer) -> None:
    answer.head()
    answer.text("a", 1)
    answer.text("b", 2, "length")
    answer.end(2)


@behaviour(Truth("mismatch", "5 tokens", tokens=5, chunks=(1, 1, 1, 2), text="abcd"))
def too_many_tokens(answer: Answer) -> None:
    answer.head()
    for letter, total in zip("abcd", (1, 2, 3, 5), strict=True):
        answer.text(letter, total, "length" if total == 5 else None)
    answer.end(5)


@behaviour(Truth("mismatch", "finish_reason 'stop'", tokens=2, chunks=(1, 1), text="ab"))
def stopped_early(answer: Answer) -> None:
    answer.head()
    answer.text("a", 1)
    answer.text("b", 2, "stop")
    answer.end(2)


@behaviour(Truth("mismatch", "finish_reason None"))
def no_finish_reason(answer: Answer) -> None:
    answer.head()
    for number, letter in enumerate("abcd", start=1):
        answer.text(letter, number)
    answer.end()


@behaviour(Truth("stream_error", "went back from 3 to 2", tokens=4, chunks=(1, 2, 2), text="abcd"))
def usage_going_back(answer: Answer) -> None:
    answer.head()
    for letter, total in zip("abcd", (1, 3, 2, 4), strict=True):
        answer.text(letter, total, "length" if letter == "d" else None)
    answer.end()


def stall(answer: Answer) -> None:
    answer.head()
    answer.text("a", 1)
    wait_for_close(answer)


def stall_before_the_answer(answer: Answer) -> None:
    wait_for_close(answer)


def stall_after_done(answer: Answer) -> None:
    answer.head()
    answer.four()
    answer.event({"choices": [], "usage": usage(4)})
    answer.chunk(b"data: [DONE]\n\n")
    wait_for_close(answer)


def wait_for_close(answer: Answer) -> None:
    answer.keep_open = False
    with contextlib.suppress(ConnectionResetError):
        answer.connection.recv(1)


def counted(answer: Answer) -> None:
    """A good answer that counts itself, up to just before the write that ends it. The first ones wait until
    `expected` of them are under way at once."""
    server = answer.server
    with server.lock:
        server.in_flight += 1
        server.most_in_flight = max(server.most_in_flight, server.in_flight)
        if server.in_flight == server.expected:
            server.reached.set()
    server.reached.wait(timeout=60)
    answer.head()
    answer.four()
    with server.lock:
        server.in_flight -= 1
    answer.end()


OTHERS = {behave.__name__: behave for behave in (stall, stall_before_the_answer, stall_after_done, counted)}
"""Behaviours for tests of their own: how these end depends on the client's time limits."""


class Adversary(socketserver.ThreadingTCPServer):
    """Serves BEHAVIOURS and OTHERS inside its block, each connection in a thread."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(self, expected: int = 1) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.expected = expected
        self.reached = threading.Event()
        self.lock = threading.Lock()
        self.connections = 0
        self.in_flight = 0
        self.most_in_flight = 0
        self.bodies: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Adversary:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(socketserver.BaseRequestHandler):
    server: Adversary

    def handle(self) -> None:
        with self.server.lock:
            self.server.connections += 1
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError), self.request.makefile("rb") as reader:
            while (body := _read_request(reader)) is not None:
                with self.server.lock:
                    self.server.bodies.append(body)
                answer = Answer(self.request, self.server)
                (BEHAVIOURS | OTHERS)[body["prompt"].split()[0]](answer)
                if not answer.keep_open:
                    return


def _read_request(reader: BinaryIO) -> dict[str, Any] | None:
    """The JSON body of the next request; None at the end of the connection."""
    head = []
    while (line := reader.readline()) not in (b"\r\n", b""):
        head.append(line.decode())
    if not head:
        return None
    assert head[0] == "POST /v1/completions HTTP/1.1\r\n", head
    length = next(int(line.split(":")[1]) for line in head if line.lower().startswith("content-length"))
    return json.loads(reader.read(length))
