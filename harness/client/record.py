"""What is kept of each request, and of the play as a whole."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Literal

Status = Literal["ok", "http_error", "stream_error", "timeout", "reset", "truncated", "mismatch"]
TokenCountMethod = Literal["continuous_usage", "returned_ids", "assumed"]


@dataclass(slots=True)
class RequestRecord:
    """One request as the client saw it. Times are ns from the start of play (CLOCK_MONOTONIC, one for all
    workers).

    Times:
      intended_ns  when it was due: by the schedule, in a closed loop when its slot became free, for a later
                   turn of a conversation when the turn before it ended, plus its delay
      sent_ns      when its bytes were handed to an open connection; None when there was no connection, or
                   the turn before it failed
      first_ns     receipt of the first event that carried a generated token; None without one
      last_ns      receipt of the last event that carried a generated token
      done_ns      receipt of [DONE]; without it, the end of the answer or of the attempt
    A receipt is stamped when the read returns, before anything is parsed.

    status:
      ok            the stream ended with [DONE] and holds exactly what was asked
      http_error    another status code than 200
      stream_error  an error object or something that is no completion stream in a 200 answer, no usage at
                    all, or HTTP that cannot be parsed
      timeout       no end within the time allowed
      reset         no connection, or it broke before the end; also a turn that was not sent because the one
                    before it failed ("predecessor failed")
      truncated     the answer ended without [DONE]
      mismatch      a whole stream with other token counts or another finish_reason than asked for
    The first failure decides; `error` says what happened ("" when ok), and what came before it is kept.

    Tokens: `prompt_tokens`, `output_tokens` and `cached_tokens` are the server's usage (None when it gave
    none). `chunk_ns[i]` and `chunk_tokens[i]` are receipt and number of generated tokens of each of the
    `events` events that carried any; both are empty where a long play keeps the events of some requests only
    (PlayInfo.events_stride). `token_count_method` says how the numbers are known (None when there are none):
      continuous_usage  differences of the running completion_tokens in the events
      returned_ids      number of token ids in the events
      assumed           one for each event with text, what is left of the usage total on the last one; the
                        last ones get none when there are fewer tokens than such events, and without any
                        text all are on the last event with a choice
    `empty_events` counts the events without a token (empty or role chunks, the usage chunk). `output_sha256`
    is the first 16 hex digits of the SHA-256 of the text in UTF-8.
    """

    index: int
    worker: int
    max_tokens: int
    intended_ns: int
    sent_ns: int | None
    first_ns: int | None
    last_ns: int | None
    done_ns: int
    status: Status
    error: str
    http_status: int | None
    connection_reused: bool
    prompt_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    first_event_tokens: int | None
    finish_reason: str | None
    output_sha256: str
    output_text: str | None
    output_ids: list[int] | None
    token_count_method: TokenCountMethod | None
    events: int
    empty_events: int
    bytes_after_done: int
    chunk_ns: array[int] = field(repr=False)
    chunk_tokens: array[int] = field(repr=False)

    @property
    def chunks(self) -> list[tuple[int, int]]:
        """(receipt in ns, tokens) of each kept event that carried a generated token."""
        return list(zip(self.chunk_ns, self.chunk_tokens, strict=True))

    def drop_events(self) -> None:
        """Keep what is known of the events as a whole, not each of them."""
        self.chunk_ns, self.chunk_tokens = _NO_STAMPS, _NO_TOKENS


_NO_STAMPS, _NO_TOKENS = array("q"), array("i")


@dataclass(frozen=True)
class PlayInfo:
    """How a schedule was played.

    `started_at` is the start of play (UTC, ISO 8601), `epoch_ns` the same on CLOCK_MONOTONIC. `cpus` are the
    cores the workers were pinned to, one each; empty when they were not. `played_s` runs from the start of
    play to the end of the last request. `exhausted`: a timed closed loop came to the end of its list, so that
    slots stood empty. `stalled_ms`: the longest time that a worker did not run when it was to. `busy`: the
    largest share of a core that one used, 1 at its end. `events_stride`: records of requests whose index is
    no multiple of it hold no events.
    """

    schedule_sha256: str
    started_at: str
    epoch_ns: int
    workers: int
    cpus: tuple[int, ...]
    played_s: float
    window_ns: tuple[int, int] | None
    exhausted: bool
    stalled_ms: float
    busy: float
    events_stride: int
