"""The front end's side of the engine process: start it, give orders, hand out its news."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.config import ConfigError
from engine.serving import link
from engine.serving.news import News
from engine.serving.request import Finish, SamplingParams, TokenLogprobs
from engine.serving.startup import EngineOptions

STOP_SECONDS = 10
# By Finish.
_FINISH_NAMES = (None, "stop", "length", "cancelled", "error")


@dataclass(slots=True)
class Update:
    """News of one request. Exactly one update of each request, the last, has a `finish`:
    stop, length, cancelled, refused (it can never run, and why) or error (it failed, and why)."""

    token_ids: list[int]
    finish: str | None = None
    error: str | None = None
    cached_tokens: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True)
class EngineInfo:
    """What the engine process reports once it is ready."""

    max_model_len: int
    vocab_size: int
    num_blocks: int
    block_size: int
    device: str
    dtype: str


class EngineClient(asyncio.Protocol):
    """Owns one engine process. All methods belong to the event loop that started it.

    state is "ready" until the process fails ("failed", with the reason in `error`) or is stopped.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.state = "starting"
        self.error: str | None = None
        self.stats: dict[str, int] = {}
        self.info: EngineInfo
        self._process = process
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reader = link.FrameReader()
        self._listeners: dict[int, Callable[[Update], None]] = {}
        self._next_id = 0

    @classmethod
    async def start(cls, options: EngineOptions) -> "EngineClient":
        """Start the engine process and wait until it serves; ConfigError with its reason if it cannot."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "engine.serving.loop", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                # OpenMP threads that spin for each other starve the front end where cores are few.
                env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
            )
        _, client = await asyncio.get_running_loop().create_connection(lambda: cls(process), sock=ours)
        client._transport.write(link.pack(link.ADD, options))
        try:
            await client._ready
        except BaseException:
            process.kill()
            process.wait()
            raise
        return client

    def submit(
        self,
        prompt_ids: list[int],
        params: SamplingParams,
        on_update: Callable[[Update], None],
        priority: int = 0,
        cache_salt: str = "",
    ) -> int:
        """Queue a request; never blocks. One that can never run ends with finish "refused" and the reason."""
        request_id = self._next_id
        self._next_id += 1
        self._listeners[request_id] = on_update
        if self.state == "ready":
            add = link.Add(request_id, prompt_ids, params, priority, cache_salt)
            self._transport.write(link.pack(link.ADD, add))
        else:
            reason = self.error or f"the engine is {self.state}"
            asyncio.get_running_loop().call_soon(self._tell, request_id, Update([], "error", reason))
        return request_id

    def cancel(self, request_id: int) -> None:
        """End a request early; its last update says "cancelled" unless it had ended by itself."""
        if request_id in self._listeners and self.state == "ready":
            self._transport.write(link.pack(link.CANCEL, request_id))

    def reset_prefix_cache(self) -> None:
        """Let requests submitted from now on reuse nothing that was computed before."""
        if self.state == "ready":
            self._transport.write(link.pack(link.RESET_PREFIX_CACHE, None))

    @property
    def in_flight(self) -> int:
        """Requests submitted whose end has not come yet."""
        return len(self._listeners)

    async def stop(self) -> None:
        """Stop the engine process. Requests still running end with finish "error"."""
        if self.state == "ready":
            self.state = "stopped"
            self._transport.write(link.pack(link.STOP, None))
        self._end_all("the server is stopping")
        try:
            await asyncio.to_thread(self._process.wait, STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._transport.close()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for kind, body in link.joined(self._reader.feed(data)):
            if kind in (link.STEP, link.STEP_WITH_LOGPROBS):
                news, self.stats = body
                self._tell_step(news)
            elif kind == link.REFUSED:
                self._tell(body[0], Update([], "refused", body[1]))
            elif kind == link.READY:
                self.info = EngineInfo(**body)
                self.state = "ready"
                self._ready.set_result(None)
            else:
                self._fail(body)

    def connection_lost(self, _: Exception | None) -> None:
        if self.state in ("starting", "ready"):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
            self._fail(f"the engine process ended unexpectedly (exit status {self._process.poll()})")

    def _fail(self, reason: str) -> None:
        was, self.state, self.error = self.state, "failed", reason
        if was == "starting" and not self._ready.done():
            self._ready.set_exception(ConfigError(reason))
        self._end_all(reason)

    def _end_all(self, reason: str) -> None:
        for request_id in list(self._listeners):
            self._tell(request_id, Update([], "error", reason))

    def _tell_step(self, news: News) -> None:
        for request_id, token_ids, finish, cached in news.rows():
            update = Update(token_ids, _FINISH_NAMES[finish], None, cached)
            if finish == Finish.BROKEN:
                update.error = "the model's logits were not finite"
            if news.logprobs or news.prompt_logprobs:
                update.logprobs = news.logprobs.get(request_id, ())
                update.prompt_logprobs = news.prompt_logprobs.get(request_id, ())
            self._tell(request_id, update)

    def _tell(self, request_id: int, update: Update) -> None:
        listener = self._listeners.get(request_id)
        if listener is None:
            return
        if update.finish is not None:
            del self._listeners[request_id]
        listener(update)
