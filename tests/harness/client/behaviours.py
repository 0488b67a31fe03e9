"""What the adversary says in its events, and TRUTH: what a client must find of each behaviour that ends by
itself. http_behaviours.py has what it does with HTTP and the connection."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.harness.client.answer import ASKED, Answer, completion, framed, usage


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


BEHAVIOURS: dict[str, Callable[[Answer], None]] = {}
TRUTH: dict[str, Truth] = {}
NOTHING: dict[str, Any] = {"tokens": None, "chunks": (), "method": None, "text": ""}


def serve(behave: Callable[[Answer], None]) -> Callable[[Answer], None]:
    """Make a function the behaviour of its name."""
    BEHAVIOURS[behave.__name__] = behave
    return behave


def behaviour(truth: Truth) -> Callable[[Callable[[Answer], None]], Callable[[Answer], None]]:
    def register(behave: Callable[[Answer], None]) -> Callable[[Answer], None]:
        TRUTH[behave.__name__] = truth
        return serve(behave)

    return register


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


@behaviour(Truth("stream_error", "no slot", **NOTHING))
def error_object_alone(answer: Answer) -> None:
    answer.head()
    answer.event({"error": {"message": "no slot"}})
    answer.end(None)


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


@behaviour(Truth("stream_error", "not JSON", tokens=1, chunks=(1,), text="a"))
def json_without_an_end_to_its_depth(answer: Answer) -> None:
    answer.head()
    answer.text("a", 1)
    answer.event(b"[" * 200_000)
    answer.end(None)


@behaviour(Truth("stream_error", "not JSON", tokens=1, chunks=(1,), text="a"))
def event_in_utf16(answer: Answer) -> None:
    answer.head()
    answer.text("a", 1)
    answer.event(json.dumps(completion("b", 2)).encode("utf-16-le"))
    answer.end(None)


@behaviour(Truth("stream_error", "completion_tokens 1000000000000", tokens=1, chunks=(1,), text="a"))
def absurd_usage(answer: Answer) -> None:
    answer.head()
    answer.text("a", 1)
    answer.text("b", 10**12)
    answer.end(None)


@behaviour(Truth())
def byte_order_mark(answer: Answer) -> None:
    answer.head()
    answer.chunk(b"\xef\xbb\xbf")
    answer.four()
    answer.end()


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


@behaviour(Truth(more={"bytes_after_done": 10 + 6}))
def bytes_after_done(answer: Answer) -> None:
    answer.head()
    answer.four()
    answer.event({"choices": [], "usage": usage(4)})
    answer.chunk(b"data: [DONE]\n\ndata: 0123456789\n\n")
    answer.chunk(b"[more]")
    answer.raw(b"0\r\n\r\n")


@behaviour(Truth("truncated", "without [DONE]", tokens=3, chunks=(1, 1, 1), text="abc"))
def truncated_within_an_event(answer: Answer) -> None:
    answer.head()
    for number, letter in enumerate("abc", start=1):
        answer.text(letter, number)
    answer.chunk(framed(completion("d", 4, "length"))[:-20])
    answer.raw(b"0\r\n\r\n")


LONG = "x" * 2_000_000


@behaviour(Truth(text=LONG + "bcd"))
def very_long_line(answer: Answer) -> None:
    answer.head()
    answer.text(LONG, 1)
    for number, letter in enumerate("bcd", start=2):
        answer.text(letter, number, "length" if number == 4 else None)
    answer.end()


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
