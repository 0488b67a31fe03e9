"""The adversary's side of an exchange: what it can write, and the parts of a good answer."""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.harness.client.adversary import Adversary

ASKED = 4
"""max_tokens of the requests that name a behaviour."""


class Answer:
    """The server's side of one exchange. `writes_ns` are the times just before each of its writes."""

    def __init__(self, connection: socket.socket, server: Adversary) -> None:
        self.connection = connection
        self.server = server
        self.keep_open = True
        self.writes_ns: list[int] = []

    def raw(self, data: bytes) -> None:
        self.writes_ns.append(time.monotonic_ns())
        self.connection.sendall(data)

    def head(
        self, status: str = "200 OK", kind: str = "text/event-stream", *more: str, chunked: bool = True
    ) -> None:
        lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", *more]
        if chunked:
            lines.append("Transfer-Encoding: chunked")
        self.raw("\r\n".join([*lines, "", ""]).encode())

    def chunk(self, data: bytes) -> None:
        self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    def event(self, content: dict[str, Any] | bytes) -> None:
        self.chunk(framed(content))

    def text(self, text: str, total: int | None, finish: str | None = None, **more: Any) -> None:
        self.event(completion(text, total, finish, **more))

    def four(self) -> None:
        """The four tokens of a good answer."""
        for number, letter in enumerate("abcd", start=1):
            self.text(letter, number, "length" if number == 4 else None)

    def end(self, total: int | None = ASKED, done: bytes = b"data: [DONE]\n\n") -> None:
        if total is not None:
            self.event({"choices": [], "usage": usage(total)})
        if done:
            self.chunk(done)
        self.raw(b"0\r\n\r\n")

    def reset(self) -> None:
        """Close with a RST."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        self.keep_open = False
        self.connection.close()


def usage(total: int) -> dict[str, int]:
    return {"prompt_tokens": 3, "total_tokens": 3 + total, "completion_tokens": total}


def completion(text: str | None, total: int | None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    content: dict[str, Any] = {
        "id": "x",
        "choices": [{"index": 0, "text": text, "finish_reason": finish, **more}],
    }
    if total is not None:
        content["usage"] = usage(total)
    return content


def framed(content: dict[str, Any] | bytes) -> bytes:
    data = content if isinstance(content, bytes) else json.dumps(content, ensure_ascii=False).encode()
    return b"data: " + data + b"\n\n"
