"""What the adversary does with HTTP and the connection."""

from __future__ import annotations

import contextlib
import time

from tests.harness.client.answer import Answer, completion, framed, usage
from tests.harness.client.behaviours import BEHAVIOURS, NOTHING, TRUTH, Truth, behaviour, serve

__all__ = ["BEHAVIOURS", "TRUTH"]  # those of both modules


@behaviour(Truth("stream_error", "malformed HTTP", tokens=1, chunks=(1,), text="a"))
def malformed_http(answer: Answer) -> None:
    answer.head()
    answer.text("a", 1)
    answer.raw(b"zzz\r\nno chunk\r\n")


@behaviour(Truth(more={"http_status": 200}))
def interim_answers(answer: Answer) -> None:
    """They are no answer yet (RFC 9110, 15.2)."""
    answer.raw(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
    answer.head()
    answer.four()
    answer.end()


@behaviour(Truth("stream_error", "malformed HTTP", **NOTHING))
def no_http_at_all(answer: Answer) -> None:
    answer.raw(b"220 mail.example ESMTP\r\n")


@behaviour(Truth("http_error", "queue is full", **NOTHING, more={"http_status": 503}))
def unavailable(answer: Answer) -> None:
    body = b'{"error": {"message": "queue is full"}}'
    answer.head("503 Service Unavailable", "application/json", f"Content-Length: {len(body)}", chunked=False)
    answer.raw(body)


@behaviour(Truth("http_error", "HTTP 429", **NOTHING, more={"http_status": 429}))
def too_many_requests(answer: Answer) -> None:
    """Retry-After is an offer: a retry would hide the refusal."""
    answer.head("429 Too Many Requests", "text/plain", "Retry-After: 0", "Content-Length: 0", chunked=False)


@behaviour(Truth("http_error", "HTTP 101", **NOTHING, more={"http_status": 101}))
def switching_protocols(answer: Answer) -> None:
    answer.raw(
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\x81\x00"
    )
    wait_for_close(answer)


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


def in_one_body(answer: Answer, declared_over: int, sent: slice) -> None:
    """A good answer whose declared length is off, or not all of which is sent."""
    events = [completion(letter, n, "length" if n == 4 else None) for n, letter in enumerate("abcd", start=1)]
    body = b"".join(map(framed, events)) + framed({"choices": [], "usage": usage(4)}) + b"data: [DONE]\n\n"
    length = f"Content-Length: {len(body) + declared_over}"
    answer.head("200 OK", "text/event-stream", length, chunked=False)
    answer.raw(body[sent])


@behaviour(Truth("truncated", "without [DONE]"))
def content_length_too_short(answer: Answer) -> None:
    """What lies beyond it is no part of the answer, and the connection is of no more use."""
    in_one_body(answer, -len(b"data: [DONE]\n\n"), slice(None))
    wait_for_close(answer)


@behaviour(Truth("truncated", "without [DONE]"))
def content_length_never_reached(answer: Answer) -> None:
    in_one_body(answer, 0, slice(-len(b"data: [DONE]\n\n")))
    answer.close()


@behaviour(Truth())
def content_length_too_long(answer: Answer) -> None:
    """[DONE] came before the connection broke."""
    in_one_body(answer, 100, slice(None))
    time.sleep(0.05)
    answer.close()


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


def wait_for_close(answer: Answer) -> None:
    answer.keep_open = False
    with contextlib.suppress(ConnectionResetError):
        answer.connection.recv(1)


# How these end depends on the client's time limits and on other requests: they have tests of their own.


@serve
def stall(answer: Answer) -> None:
    answer.head()
    answer.text("a", 1)
    wait_for_close(answer)


@serve
def stall_before_the_answer(answer: Answer) -> None:
    wait_for_close(answer)


@serve
def stall_after_done(answer: Answer) -> None:
    answer.head()
    answer.four()
    answer.event({"choices": [], "usage": usage(4)})
    answer.chunk(b"data: [DONE]\n\n")
    wait_for_close(answer)


@serve
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
