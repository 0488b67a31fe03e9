"""The server: routes, and the life cycle from listening to the last answer.

    await serve(client, tokenizer, ServerSettings("smollm2-135m", port=8000))

Life cycle: listening -> draining -> cancelling -> closed. The first SIGTERM or SIGINT stops accepting and
lets running requests finish for up to `drain_seconds` (0: cancels them at once); the second cancels them at
once. A cancelled request ends with an error of its own. `serve` returns when all connections have closed.
"""

import asyncio
import errno
import hmac
import json
import logging
import resource
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import unquote

from prometheus_client import CONTENT_TYPE_LATEST
from tokenizers import Tokenizer

from engine.config import ConfigError
from engine.serving.http.chat import chat
from engine.serving.http.chat_template import ChatTemplate
from engine.serving.http.completions import complete
from engine.serving.http.engine_client import Client
from engine.serving.http.errors import INTERNAL, ApiError, shown
from engine.serving.http.frames import error_event
from engine.serving.http.intake import Intake
from engine.serving.http.metrics import Metrics
from engine.serving.http.protocol import Connection, Exchange, Limits, Refusal

VERSION = "0.1.0"
BACKLOG = 4096
MAX_PORT = 65_535
CANCEL_SECONDS = 5.0
"""How long cancelled requests may take to end before their connections are cut."""
log = logging.getLogger("engine.http")

Handler = Callable[[Exchange], Awaitable[None]]


@dataclass(frozen=True)
class ServerSettings:
    """model_name: what clients call the model; port 0 takes a free one; without a chat template there is no
    chat; with an api_key everything but /health asks for it; max_queue: sequences that may wait for the
    engine."""

    model_name: str
    host: str = "127.0.0.1"
    port: int = 8000
    chat_template: ChatTemplate | None = None
    api_key: str | None = None
    max_queue: int = 2048
    drain_seconds: float = 30.0
    limits: Limits = field(default_factory=Limits)


def bind(settings: ServerSettings) -> socket.socket:
    """A bound socket that does not listen yet: a port in use and other settings that cannot be met are known
    before a model is loaded. ConfigError if so."""
    if settings.max_queue < 1:
        raise ConfigError(f"max_queue is {settings.max_queue}; at least 1 is needed")
    key = settings.api_key
    if key is not None and not (key and key == key.strip() and key.isascii() and key.isprintable()):
        raise ConfigError("the API key is empty or cannot stand in a header: printable ASCII is needed")
    if not 0 <= settings.port <= MAX_PORT:
        raise ConfigError(f"port is {settings.port}; the limits are 0 (any free one) and {MAX_PORT}")
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM
        )[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise _cannot_listen(settings, error) from error
    return listener


def _cannot_listen(settings: ServerSettings, error: OSError) -> ConfigError:
    reason = "the port is in use" if error.errno == errno.EADDRINUSE else error.strerror
    return ConfigError(f"cannot listen on {settings.host}:{settings.port}: {reason}")


async def serve(
    client: Client,
    tokenizer: Tokenizer,
    settings: ServerSettings,
    listener: socket.socket | None = None,
    on_listening: Callable[[str, int], None] | None = None,
) -> None:
    """Serve until a signal ends it. listener: from `bind`; on_listening is told the address once it answers.

    Raises ConfigError for an address that cannot be had or a tokenizer that is not supported.
    """
    server = Server(client, tokenizer, settings)
    stop, cancel = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (cancel if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    host, port = await server.listen(listener or bind(settings))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        if on_listening is not None:
            on_listening(host, port)
        await stop.wait()
        await server.shut_down(settings.drain_seconds, cancel)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


class Server:
    """Routes exchanges to their handlers and owns every connection."""

    def __init__(self, client: Client, tokenizer: Tokenizer, settings: ServerSettings) -> None:
        self._client = client
        self._settings = settings
        self._metrics = Metrics(client)
        self._intake = Intake(client, tokenizer, settings.model_name, settings.max_queue, self._metrics)
        self._connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = int(time.time())
        self._stopping = False
        self._routes: dict[str, dict[str, Handler]] = {
            "/v1/completions": {"POST": partial(complete, self._intake)},
            "/v1/chat/completions": {"POST": partial(chat, self._intake, settings.chat_template)},
            "/v1/models": {"GET": self._models},
            "/health": {"GET": self._health},
            "/version": {"GET": self._version},
            "/metrics": {"GET": self._show_metrics},
            "/reset_prefix_cache": {"POST": self._reset_prefix_cache},
        }

    async def listen(self, listener: socket.socket) -> tuple[str, int]:
        """Accept connections on a bound socket; returns its address."""
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        make = partial(Connection, self._handle, self._refuse, self._settings.limits, self._connections)
        try:
            listener.listen(BACKLOG)
        except OSError as error:
            raise _cannot_listen(self._settings, error) from error
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(make, sock=listener, backlog=BACKLOG)
        return listener.getsockname()[:2]

    async def shut_down(self, drain_seconds: float, cancel: asyncio.Event) -> None:
        """Stop accepting, let answers finish until the time is over or `cancel` is set, then cancel what
        still runs."""
        self._stopping = True
        self._server.close()
        for connection in tuple(self._connections):
            connection.close_when_idle()
        await self._wait_closed(drain_seconds, cancel)
        for task in tuple(self._tasks):
            task.cancel()
        for reply in tuple(self._intake.shared.under_way):
            reply.cancel()
        await self._wait_closed(CANCEL_SECONDS, asyncio.Event())
        for connection in tuple(self._connections):
            connection.abort()
        self._intake.close()

    async def _wait_closed(self, seconds: float, interrupt: asyncio.Event) -> None:
        deadline = time.monotonic() + seconds
        while self._connections and time.monotonic() < deadline and not interrupt.is_set():
            await asyncio.sleep(0.02)

    # ---- every exchange

    def _handle(self, exchange: Exchange) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, exchange: Exchange) -> None:
        try:
            await self._handler(exchange)(exchange)
        except ApiError as error:
            _answer_error(exchange, error)
        except asyncio.CancelledError:
            _answer_error(exchange, ApiError(503, "the server is shutting down"))
        except Exception:
            log.exception("%s %s failed", exchange.request.method, exchange.request.target)
            _answer_error(exchange, INTERNAL)

    def _handler(self, exchange: Exchange) -> Handler:
        path = unquote(exchange.request.target.partition("?")[0])
        if path != "/health":
            self._check_key(exchange.request.headers.get("authorization", ""))
        methods = self._routes.get(path)
        if methods is None and path.startswith("/v1/models/"):
            methods = {"GET": partial(self._model, path.removeprefix("/v1/models/"))}
        if methods is None:
            raise ApiError(404, f"there is nothing at {shown(path)}; known: {', '.join(self._routes)}")
        method = exchange.request.method
        handler = methods.get("GET" if method == "HEAD" else method)
        if handler is None:
            allowed = ", ".join([*methods, *(["HEAD"] if "GET" in methods else [])])
            raise ApiError(
                405, f"{method} is not possible at {path}: {allowed} is", headers=(("allow", allowed),)
            )
        return handler

    def _check_key(self, authorization: str) -> None:
        if self._settings.api_key is None:
            return
        scheme, _, key = authorization.partition(" ")
        known = hmac.compare_digest(key.strip().encode(), self._settings.api_key.encode())
        if scheme.lower() != "bearer" or not known:
            raise ApiError(
                401,
                "this server needs its API key: Authorization: Bearer KEY",
                code="invalid_api_key",
                headers=(("www-authenticate", "Bearer"),),
            )

    def _refuse(self, exchange: Exchange, refusal: Refusal) -> None:
        _answer_error(exchange, ApiError(refusal.status, refusal.message))

    # ---- small endpoints

    async def _health(self, exchange: Exchange) -> None:
        state = "stopping" if self._stopping else self._client.state
        if state == "ready":
            _answer_json(exchange, 200, {"status": "ok"})
        else:
            _answer_json(exchange, 503, {"status": state, "error": self._client.error})

    async def _version(self, exchange: Exchange) -> None:
        _answer_json(exchange, 200, {"version": VERSION})

    async def _show_metrics(self, exchange: Exchange) -> None:
        exchange.respond(200, self._metrics.render(), CONTENT_TYPE_LATEST)

    async def _reset_prefix_cache(self, exchange: Exchange) -> None:
        """Requests that come after the answer reuse nothing from before; running ones go on."""
        if self._client.state != "ready":
            raise ApiError(503, self._client.error or f"the engine is {self._client.state}")
        self._client.reset_prefix_cache()
        _answer_json(exchange, 200, {"reset": True})

    async def _models(self, exchange: Exchange) -> None:
        _answer_json(exchange, 200, {"object": "list", "data": [self._card()]})

    async def _model(self, name: str, exchange: Exchange) -> None:
        self._intake.check_model(name)
        _answer_json(exchange, 200, self._card())

    def _card(self) -> dict[str, object]:
        return {
            "id": self._settings.model_name,
            "object": "model",
            "created": self._started,
            "owned_by": "llm-ladder",
            "max_model_len": self._client.info.max_model_len,
        }


def _answer_json(exchange: Exchange, status: int, content: dict[str, object]) -> None:
    exchange.respond(status, json.dumps(content).encode())


def _answer_error(exchange: Exchange, error: ApiError) -> None:
    if exchange.streaming:
        exchange.finish(error_event(error.body()))
    else:
        exchange.respond(error.status, error.body(), headers=error.headers)
