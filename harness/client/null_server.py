"""A server without a model: what the client measures against it is the client itself.

Answers POST /v1/completions (streamed; a prompt is text, of as many tokens as words, or token ids) as an
OpenAI-compatible server does, GET /health and GET /v1/models. Every answer has exactly max_tokens tokens and
a running usage, where asked for.

Flat out it sends one token an event to all open streams in turn, as fast as they take them: some 200,000
events a second from each of its `--processes`. They share one port (SO_REUSEPORT; the kernel spreads
connections by hash).

Paced, token i of an answer is sent at t + ttft + i * tpot, t being the receipt of the whole request. These
are absolute times of that stream, never early, so what a client must measure is known. How late they were is
known, too: GET /pacing gives tokens, and the median, 99th percentile and maximum of their lateness in us, of
the process that answers. On an idle core the median is some 50 us; tokens of many streams that are due at
once follow one another at 5 to 10 us each. Servers of known difference, as for an A/A comparison or one that
must be told apart, differ in --ttft-ms and --tpot-ms.

    python -m harness.client.null_server --port 8000 --processes 2 --ttft-ms 50 --tpot-ms 10
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from harness.client.null_process import MODEL, READY_LINE, Pace

CHECKOUT = Path(__file__).resolve().parents[2]


class NullServer:
    """The server in processes of its own, as a context manager; `url` is its base URL.

    `pace` None: flat out. `port` 0: a free one, known inside the block. Raises ValueError for less than one
    process or a port out of range, OSError when the port is taken, RuntimeError when a process does not come
    up. Its processes end with the block, or with the process that started them.
    """

    def __init__(
        self, *, processes: int = 1, pace: Pace | None = None, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        if processes < 1:
            raise ValueError(f"processes {processes} must be at least 1")
        if not 0 <= port <= 65_535:
            raise ValueError(f"port {port} must be from 0 to 65535")
        self._processes = processes
        self._pace = pace
        self._host = host
        self.port = port
        self._stack = contextlib.ExitStack()

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self.port}"

    def __enter__(self) -> NullServer:
        with contextlib.ExitStack() as stack:
            # Held until the processes listen, so that no one else gets the port; it takes no connections
            # itself.
            holder = stack.enter_context(_hold_port(self._host, self.port))
            self.port = holder.getsockname()[1]
            started = [stack.enter_context(self._process()) for _ in range(self._processes)]
            for process in started:
                if process.stdout.readline().decode().strip() != READY_LINE:
                    raise RuntimeError(f"a null server process did not come up (exit code {process.wait()})")
            holder.close()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    @contextlib.contextmanager
    def _process(self) -> Iterator[subprocess.Popen[bytes]]:
        times = [] if self._pace is None else [str(self._pace.ttft_ns), str(self._pace.tpot_ns)]
        process = subprocess.Popen(
            [sys.executable, "-m", "harness.client.null_process", self._host, str(self.port), *times],
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(CHECKOUT), *filter(None, sys.path)])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


def _hold_port(host: str, port: int) -> socket.socket:
    """A bound socket that shares its port. Raises OSError when the port is taken."""
    if port:
        socket.create_server((host, port)).close()  # sharing would hide that someone else shares it, too
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holder.bind((host, port))
    return holder


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m harness.client.null_server", description="A server without a model."
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=0, help="port; 0 takes a free one (%(default)s)")
    parser.add_argument(
        "--processes", type=int, default=1, help="processes that share the port (%(default)s)"
    )
    parser.add_argument(
        "--ttft-ms", type=float, help="time to first token; needs --tpot-ms (default: flat out)"
    )
    parser.add_argument("--tpot-ms", type=float, help="time per output token after the first")
    options = parser.parse_args()
    if (options.ttft_ms is None) != (options.tpot_ms is None):
        parser.error("--ttft-ms and --tpot-ms belong together")
    try:
        pace = None if options.ttft_ms is None else Pace.from_ms(options.ttft_ms, options.tpot_ms)
        server = NullServer(processes=options.processes, pace=pace, host=options.host, port=options.port)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with server, contextlib.suppress(KeyboardInterrupt):
            print(f"{server.url} model {MODEL}", flush=True)
            signal.pause()
    except (OSError, ValueError) as error:
        print(f"null_server: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
