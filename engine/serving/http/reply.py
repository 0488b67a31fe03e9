"""From the engine's updates to a streamed or a plain answer, and from a vanished peer to a cancelled request.

A `Reply` holds the choices of one HTTP request, each of which is one request of the engine. What the engine
sends is written at once, one write per engine step; while the peer is behind it is gathered instead and
goes out as one event per choice when the peer has caught up, so that memory is bounded by the text of
`max_tokens` tokens.
"""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from engine.serving.http.choice import Choice
from engine.serving.http.engine_client import Client, Update
from engine.serving.http.errors import INTERNAL, ApiError
from engine.serving.http.frames import Frames, Usage, error_event
from engine.serving.http.metrics import Metrics
from engine.serving.http.protocol import Exchange

log = logging.getLogger("engine.http")


@dataclass(frozen=True)
class Shared:
    """What all replies of a server have in common. under_way: those that have not ended."""

    client: Client
    metrics: Metrics
    under_way: "set[Reply]" = field(default_factory=set)


class Reply(ABC):
    """The answer to one request, from submission to its end."""

    def __init__(
        self, shared: Shared, exchange: Exchange, frames: Frames, choices: list[Choice], priority: int,
        cache_salt: str,
    ) -> None:  # fmt: skip
        self._shared = shared
        self._client = shared.client
        self._priority = priority
        self._cache_salt = cache_salt
        self._unfinished = len(choices)
        self._ended = False
        self.exchange = exchange
        self.frames = frames
        self.choices = choices
        self.usage = Usage(prompt=sum(len(choice.prompt_ids) for choice in choices if choice.repeat == 0))

    def start(self) -> None:
        self._shared.under_way.add(self)
        self.exchange.on_disconnect = self._abandon
        for choice in self.choices:
            choice.submitted_at = time.monotonic()
            choice.request_id = self._client.submit(
                choice.prompt_ids,
                choice.params,
                partial(self._update, choice),
                self._priority,
                self._cache_salt,
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
        self._shared.under_way.discard(self)

    def guarded(self, work: Callable[[], None]) -> None:
        """Do something that the event loop or the engine's news asks for: a fault ends this request alone."""
        try:
            work()
        except Exception:
            log.exception("a request failed")
            self._give_up("error")
            if self.exchange.streaming:
                self.exchange.finish(error_event(INTERNAL.body()))
            else:
                self.exchange.respond(INTERNAL.status, INTERNAL.body())

    def _update(self, choice: Choice, update: Update) -> None:
        self.guarded(partial(self._take, choice, update))

    def _take(self, choice: Choice, update: Update) -> None:
        if self._ended or choice.finish is not None:
            return  # the engine's last word on a request that was cancelled from here
        if update.finish in ("cancelled", "refused", "error"):
            self._give_up(update.finish)
            self.fail(self._reason(update))
            return
        if choice.first_at is None and update.token_ids:
            choice.first_at, choice.first_tokens = time.monotonic(), len(update.token_ids)
        self.usage.completion -= choice.tokens
        choice.add(update.token_ids, update.finish, update.logprobs, update.prompt_logprobs)
        self.usage.completion += choice.tokens
        if choice.repeat == 0:
            self.usage.cached += update.cached_tokens - choice.cached_tokens
        choice.cached_tokens = update.cached_tokens
        if choice.finish is not None:
            self._unfinished -= 1
            self._shared.metrics.ended(choice, choice.finish)
            if update.finish is None:
                self._client.cancel(choice.request_id)
        if choice.news:
            self.show(choice)

    def _reason(self, update: Update) -> ApiError:
        if update.finish == "cancelled":
            return ApiError(503, "the server is shutting down; the request was cancelled")
        if update.finish == "refused":
            return ApiError(400, update.error)
        return ApiError(500 if self._client.state == "ready" else 503, update.error or "the engine failed")

    def _abandon(self) -> None:
        self._give_up("cancelled")

    def _give_up(self, finish: str) -> None:
        self.end()
        for choice in self.choices:
            if choice.finish is None:
                self._shared.metrics.ended(choice, finish)
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
        self.guarded(self._write)

    def _write(self) -> None:
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
