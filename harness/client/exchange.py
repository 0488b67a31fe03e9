"""From the bytes of one answer to its record: the judgement on a request, without sockets."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from harness.client.completion import DONE, Completion, PlainEventScanner, parse
from harness.client.record import RequestRecord, Status
from harness.client.sse import SseEvent, SseParser
from harness.client.tokens import TEXT, SeenEvent, TokenCount, count_tokens

SHOWN_BYTES = 500


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request must bring: exactly `max_tokens` tokens if `exact`, else as many or an earlier stop; and
    the server must have read `prompt_tokens`, which are known of prompts of token ids alone."""

    index: int
    max_tokens: int
    exact: bool
    prompt_tokens: int | None = None


@dataclass(slots=True)
class Observer:
    """What all exchanges of a worker share. `epoch_ns` is the start of play, known before the first of
    them."""

    worker: int
    keep_output: bool
    scanner: PlainEventScanner
    epoch_ns: int = 0


class Exchange:
    """One request under way: a connection reports what happens to it, and `record` judges at the end.

    All stamps that come in are CLOCK_MONOTONIC ns, those of the record count from the start of play.
    """

    __slots__ = (
        "_bytes_after_done",
        "_cached_tokens",
        "_done_ns",
        "_events",
        "_failure",
        "_finish_reason",
        "_http_status",
        "_ids",
        "_is_stream",
        "_observer",
        "_other_body",
        "_prompt_tokens",
        "_reused",
        "_scan",
        "_sent_ns",
        "_sse",
        "asked",
        "intended_ns",
    )

    def __init__(self, asked: Asked, intended_ns: int, observer: Observer):
        self.asked = asked
        self.intended_ns = intended_ns
        self._observer = observer
        self._sse = SseParser()
        self._scan = observer.scanner.scan
        self._sent_ns: int | None = None
        self._done_ns: int | None = None
        self._reused = False
        self._http_status: int | None = None
        self._is_stream = False
        self._other_body = b""  # the start of an answer that is no event stream
        self._failure: tuple[Status, str] | None = None
        self._events: list[SeenEvent] = []
        self._ids: list[int] | None = None
        self._finish_reason: str | None = None
        self._prompt_tokens: int | None = None
        self._cached_tokens: int | None = None
        self._bytes_after_done = 0

    @property
    def failed(self) -> bool:
        """It broke before [DONE]."""
        return self._failure is not None or self._done_ns is None

    def sent(self, stamp_ns: int, reused: bool) -> None:
        """Its bytes were handed to a connection, one that served before or a fresh one."""
        self._sent_ns = stamp_ns
        self._reused = reused

    def head(self, status: int, headers: dict[bytes, bytes]) -> None:
        """Status and headers (names in lower case) of the answer."""
        self._http_status = status
        encoding = headers.get(b"content-encoding", b"identity").decode("latin-1")
        content_type = headers.get(b"content-type", b"").decode("latin-1")
        if status != 200:
            self.fail("http_error", f"HTTP {status}")
        elif encoding.lower() != "identity":
            self.fail("stream_error", f"content-encoding {encoding!r} was not asked for")
        elif content_type.split(";")[0].strip().lower() != "text/event-stream":
            self.fail("stream_error", f"content-type {content_type!r} is no event stream")
        else:
            self._is_stream = True

    def fail(self, status: Status, error: str) -> None:
        """Something went wrong. The first failure counts, and none after [DONE]: the answer was whole by
        then."""
        if self._failure is None and self._done_ns is None:
            self._failure = (status, error)

    def body(self, data: bytes, stamp_ns: int) -> None:
        """Bytes of the answer's body, and the stamp of the read that brought them."""
        # The usual case first: one more piece of text. Only a stream is ever between events.
        if self._sse.between_events and (plain := self._scan(data)) is not None and self._done_ns is None:
            self._plain(plain, stamp_ns)
        elif self._done_ns is not None:
            self._bytes_after_done += len(data)
        elif self._is_stream:
            for event in self._sse.feed(data, stamp_ns):
                self._event(event)
        else:
            self._other_body = (self._other_body + data)[:SHOWN_BYTES]

    def _event(self, event: SseEvent) -> None:
        stamp_ns, data, name = event
        if self._done_ns is not None:
            self._bytes_after_done += len(data)
        elif data == DONE:
            self._done_ns = stamp_ns
        elif name == b"error":
            self.fail("stream_error", f"error event: {data[:SHOWN_BYTES].decode('utf-8', 'replace')}")
        elif (plain := self._scan(b"data: %b\n\n" % data)) is not None:
            self._plain(plain, stamp_ns)
        else:
            completion = parse(data)
            self._observer.scanner.learn(data, completion)
            self._completion(completion, stamp_ns)

    def _plain(self, plain: tuple[str, int], stamp_ns: int) -> None:
        text, total = plain
        self._events.append((stamp_ns, total, None, text, True))

    def _completion(self, completion: Completion, stamp_ns: int) -> None:
        if completion.error is not None:
            self.fail("stream_error", completion.error)
            return
        ids = completion.token_ids
        count = None if ids is None else len(ids)
        self._events.append(
            (stamp_ns, completion.completion_tokens, count, completion.text, completion.has_choice)
        )
        if ids:
            self._ids = [*(self._ids or ()), *ids]
        if completion.finish_reason is not None:
            self._finish_reason = completion.finish_reason
        if completion.prompt_tokens is not None:
            self._prompt_tokens = completion.prompt_tokens
        if completion.cached_tokens is not None:
            self._cached_tokens = completion.cached_tokens

    def record(self, end_ns: int) -> RequestRecord:
        """The record, once the answer or the attempt has ended (at `end_ns`)."""
        epoch_ns = self._observer.epoch_ns
        count = count_tokens(self._events, epoch_ns)
        status, error = self._judge(count)
        if self._other_body:
            error += f": {self._other_body.decode('utf-8', 'replace')}"
        text = "".join(event[TEXT] for event in self._events)
        return RequestRecord(
            index=self.asked.index,
            worker=self._observer.worker,
            max_tokens=self.asked.max_tokens,
            intended_ns=self.intended_ns - epoch_ns,
            sent_ns=None if self._sent_ns is None else self._sent_ns - epoch_ns,
            first_ns=count.chunk_ns[0] if count.chunk_ns else None,
            last_ns=count.chunk_ns[-1] if count.chunk_ns else None,
            done_ns=(end_ns if self._done_ns is None else self._done_ns) - epoch_ns,
            status=status,
            error=error,
            http_status=self._http_status,
            connection_reused=self._reused,
            prompt_tokens=self._prompt_tokens,
            output_tokens=count.total,
            cached_tokens=self._cached_tokens,
            first_event_tokens=count.chunk_tokens[0] if count.chunk_tokens else None,
            finish_reason=self._finish_reason,
            # A server may send half of a surrogate pair as \u escape: such text has no plain UTF-8.
            output_sha256=hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16],
            output_text=text if self._observer.keep_output else None,
            output_ids=self._ids if self._observer.keep_output else None,
            token_count_method=count.method,
            events=len(count.chunk_ns),
            empty_events=len(self._events) - len(count.chunk_ns),
            bytes_after_done=self._bytes_after_done,
            chunk_ns=count.chunk_ns,
            chunk_tokens=count.chunk_tokens,
        )

    def _judge(self, count: TokenCount) -> tuple[Status, str]:
        if self._failure is not None:
            return self._failure
        if self._done_ns is None:
            return "truncated", "the stream ended without [DONE]"
        if count.total is None:
            return "stream_error", "the stream ended without usage: its tokens cannot be counted"
        if count.error:
            return "stream_error", count.error
        return self._compare(count.total)

    def _compare(self, tokens: int) -> tuple[Status, str]:
        """A whole answer against what was asked: finish_reason "length" with exactly max_tokens tokens, or,
        where the end of sequence may come first, "stop" with at most that many. A server that cut the prompt
        did other work than was asked for."""
        asked, reason = self.asked, self._finish_reason
        if asked.prompt_tokens not in (None, self._prompt_tokens):
            return "mismatch", f"{self._prompt_tokens} prompt tokens where {asked.prompt_tokens} were sent"
        as_asked = (reason == "length" and tokens == asked.max_tokens) or (
            not asked.exact and reason == "stop" and tokens <= asked.max_tokens
        )
        if as_asked:
            return "ok", ""
        wanted = f"{'exactly' if asked.exact else 'at most'} {asked.max_tokens}"
        return "mismatch", f"{tokens} tokens and finish_reason {reason!r} where {wanted} were asked for"
