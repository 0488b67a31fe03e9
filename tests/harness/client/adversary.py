"""A server that misbehaves on purpose, on real sockets; what a client must find of it is known.

The first word of a request's prompt names the behaviour (behaviours.py, http_behaviours.py).
"""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import threading
from typing import Any, BinaryIO

from tests.harness.client.answer import Answer
from tests.harness.client.http_behaviours import BEHAVIOURS


class Adversary(socketserver.ThreadingTCPServer):
    """Serves BEHAVIOURS inside its block, each connection in a thread. `answers` holds the latest to each
    prompt."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(self, expected: int = 1) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.expected = expected
        self.reached = threading.Event()
        self.lock = threading.Lock()
        self.connections = 0
        self.in_flight = 0
        self.most_in_flight = 0
        self.bodies: list[dict[str, Any]] = []
        self.answers: dict[str, Answer] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Adversary:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(socketserver.BaseRequestHandler):
    server: Adversary

    def handle(self) -> None:
        with self.server.lock:
            self.server.connections += 1
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError), self.request.makefile("rb") as reader:
            while (body := _read_request(reader)) is not None:
                with self.server.lock:
                    self.server.bodies.append(body)
                answer = self.server.answers[body["prompt"]] = Answer(self.request, self.server)
                BEHAVIOURS[body["prompt"].split()[0]](answer)
                if not answer.keep_open:
                    return


def _read_request(reader: BinaryIO) -> dict[str, Any] | None:
    """The JSON body of the next request; None at the end of the connection."""
    head = []
    while (line := reader.readline()) not in (b"\r\n", b""):
        head.append(line.decode())
    if not head:
        return None
    assert head[0] == "POST /v1/completions HTTP/1.1\r\n", head
    length = next(int(line.split(":")[1]) for line in head if line.lower().startswith("content-length"))
    return json.loads(reader.read(length))
