"""From the engine's updates to a streamed or a plain answer, and from a vanished peer to a cancelled request.

A `Reply` holds the choices of one HTTP request, each of which is one request of the engine. What the engine
sends is written at once, one write per engine step; while the peer is behind it is gathered instead and
goes out as one event per choice when the peer has caught up, so that memory is bounded by the text of
`max_tokens` tokens.
"""

import asyncio
from abc import ABC, abstractmethod
from functools import partial
from typing import Protocol

from engine.serving.http.choice import Choice
from engine.serving.http.errors import ApiError
from engine.serving.http.frames import Frames, Usage, error_event
from engine.serving.http.protocol import Exchange
from engine.serving.request import SamplingParams


class Update(Protocol):
    """News of one engine request; exactly one, the last, has a finish: stop, length, cancelled or error."""

    token_ids: list[int]
    finish: str | None
    error: str | None
    cached_tokens: int


class EngineInfo(Protocol):
    max_model_len: int
    vocab_size: int


class Client(Protocol):
    """The engine as the front end sees it (engine.serving.client.EngineClient)."""

    info: EngineInfo
    state: str
    error: str | None

    def submit(self, prompt_ids: list[int], params: SamplingParams, on_update: "OnUpdate") -> int: ...
    def cancel(self, request_id: int) -> None: ...


class OnUpdate(Protocol):
    def __call__(self, update: Update) -> None: ...


class Reply(ABC):
    """The answer to one request, from submission to its end. `replies` is the server's set of those under
    way."""

    def __init__(
        self, client: Client, exchange: Exchange, frames: Frames, choices: list[Choice], replies: "set[Reply]"
    ) -> None:
        self._client = client
        self._replies = replies
        self._unfinished = len(choices)
        self._ended = False
        self.exchange = exchange
        self.frames = frames
        self.choices = choices
        self.usage = Usage(prompt=sum(len(choice.prompt_ids) for choice in choices))

    def start(self) -> None:
        self._replies.add(self)
        self.exchange.on_disconnect = self._abandon
        for choice in self.choices:
            choice.request_id = self._client.submit(
                choice.prompt_ids, choice.params, partial(self._update, choice)
            )

    def cancel(self) -> None:
        """Have the engine end all choices; the peer is told when the engine has."""
        for choice in self.choices:
            if choice.finish is None:
                self._client.cancel(choice.request_id)

    @abstractmethod
    def show(self, choice: Choice) -> None:
        """Pass on what is new of one choice."""

    @abstractmethod
    def fail(self, error: ApiError) -> None:
        """Tell the peer that there will be no more."""

    def end(self) -> None:
        self._ended = True
        self._replies.discard(self)

    def _update(self, choice: Choice, update: Update) -> None:
        if self._ended or choice.finish is not None:
            return  # the engine's last word on a request that was cancelled from here
        if update.finish in ("cancelled", "error"):
            self.end()
            self.cancel()
            self.fail(self._reason(update))
            return
        self.usage.completion -= choice.tokens
        choice.add(update.token_ids, update.finish)
        self.usage.completion += choice.tokens
        self.usage.cached += update.cached_tokens - choice.cached_tokens
        choice.cached_tokens = update.cached_tokens
        if choice.finish is not None:
            self._unfinished -= 1
            if update.finish is None:
                self._client.cancel(choice.request_id)
        self.show(choice)

    def _reason(self, update: Update) -> ApiError:
        if update.finish == "cancelled":
            return ApiError(503, "the server is shutting down; the request was cancelled")
        # A working engine ends a request with an error only when it refuses it before the start.
        return ApiError(400 if self._client.state == "ready" else 503, update.error or "the engine failed")

    def _abandon(self) -> None:
        self.end()
        self.cancel()


class StreamReply(Reply):
    """An event per engine step and choice, then the usage where asked for, then [DONE].

    The head of the answer goes with the first event: until then an error still gets a status of its own. What
    one step has for several choices goes out in one write.
    """

    _write_due = False

    def start(self) -> None:
        self.exchange.on_writable = self._write_news
        super().start()

    def show(self, choice: Choice) -> None:
        if len(self.choices) == 1:
            self._write_news()
        elif not self._write_due:
            self._write_due = True
            asyncio.get_running_loop().call_soon(self._write_news)

    def fail(self, error: ApiError) -> None:
        if self.exchange.streaming:
            self.exchange.finish(self._news() + error_event(error.body()))
        else:
            self.exchange.respond(error.status, error.body(), headers=error.headers)

    def _write_news(self) -> None:
        self._write_due = False
        if not self.exchange.writable or not (news := self._news()):
            return
        if not self.exchange.streaming:
            self.exchange.start_stream()
        if self._unfinished == 0:
            self.end()
            self.exchange.finish(news + self.frames.end(self.usage))
        else:
            self.exchange.write(news)

    def _news(self) -> bytes:
        return b"".join([self.frames.event(choice, self.usage) for choice in self.choices if choice.news])


class PlainReply(Reply):
    """One JSON body when all choices have ended."""

    def show(self, choice: Choice) -> None:
        if self._unfinished == 0:
            self.end()
            self.exchange.respond(200, self.frames.whole(self.choices, self.usage))

    def fail(self, error: ApiError) -> None:
        self.exchange.respond(error.status, error.body(), headers=error.headers)
