"""The engine process: orders in, steps, news out.

`python -m engine.serving.loop FD` is started by the front end with one end of a socket pair. It ends when
that socket closes, so that no engine outlives its front end.
"""

import ctypes
import gc
import signal
import socket
import sys
import traceback
from select import select

from engine.config import ConfigError
from engine.serving import link
from engine.serving.engine import Engine
from engine.serving.startup import EngineOptions, load_engine

_PR_SET_PDEATHSIG = 1
IDLE_SECONDS = 1.0
"""Without work for so long, the engine checks itself and collects garbage: it takes milliseconds, in which no
request may wait."""
_OBJECTS = 1_000_000
"""So many more objects than at the last collection start one in the middle of work. What a step makes goes
without one, so that hardly any step pays for it; after Python's 700 a step would pay again and again."""


def main(fd: int) -> int:
    """Serve one front end; the exit status is 0 after an orderly stop, 1 after a failure."""
    # The front end decides when to stop: a signal to the process group reaches it as well.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with socket.socket(fileno=fd) as sock:
        inbox = _Inbox(sock)
        try:
            options: EngineOptions = inbox.wait()[0][1]
            engine = load_engine(options)
            # What was loaded stays: a full collection that walked through it would stop a step for long.
            gc.collect()
            gc.freeze()
            gc.set_threshold(_OBJECTS)
            sock.sendall(link.pack(link.READY, _info(engine)))
            _serve(engine, sock, inbox)
        except (_FrontEndGone, BrokenPipeError, ConnectionResetError):
            return 0
        except Exception as error:
            message = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
            if not isinstance(error, ConfigError):
                traceback.print_exc()
            sock.sendall(link.pack(link.FAILED, message))
            return 1
    return 0


def _serve(engine: Engine, sock: socket.socket, inbox: "_Inbox") -> None:
    while True:
        if engine.has_work:
            orders = inbox.poll()
        elif not (orders := inbox.poll(IDLE_SECONDS)):
            engine.check()
            gc.collect()
            orders = inbox.wait()
        for kind, body in orders:
            if kind == link.STOP:
                return
            if kind == link.CANCEL:
                engine.cancel(body)
            elif kind == link.RESET_PREFIX_CACHE:
                engine.reset_prefix_cache()
            else:
                _add(engine, sock, body)
        if news := engine.step():
            sock.sendall(link.pack_step(news, engine.stats()))


def _add(engine: Engine, sock: socket.socket, order: link.Add) -> None:
    try:
        engine.add(order.request_id, order.prompt, order.params, order.priority, order.cache_salt)
    except ConfigError as error:
        sock.sendall(link.pack(link.REFUSED, (order.request_id, str(error))))


def _info(engine: Engine) -> dict[str, object]:
    return {
        "max_model_len": engine.config.max_model_len,
        "vocab_size": engine.vocab_size,
        "num_blocks": engine.config.num_blocks,
        "block_size": engine.config.block_size,
        "device": engine.config.device,
        "dtype": engine.config.dtype,
    }


class _FrontEndGone(Exception):
    pass


class _Inbox:
    """Orders from the front end, with or without waiting."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader = link.FrameReader()

    def poll(self, seconds: float = 0) -> list[tuple[int, object]]:
        return self._receive() if select([self._sock], [], [], seconds)[0] else []

    def wait(self) -> list[tuple[int, object]]:
        while not (orders := self._receive()):
            pass
        return orders

    def _receive(self) -> list[tuple[int, object]]:
        data = self._sock.recv(1 << 20)
        if not data:
            raise _FrontEndGone
        return self._reader.feed(data)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
