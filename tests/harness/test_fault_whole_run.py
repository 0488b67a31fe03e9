"""Whole runs against servers that note all they are asked, and of which some do not work; see
test_public_faults.py."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from harness.store import Run, load_run
from harness.verify import verify
from tests.harness.client.answer import completion, framed, usage
from tests.harness.test_run import in_process, stage_file

WARMUP = 9
WARMUP_SLOTS = 3


@dataclass
class Asked:
    """A completion request: its body, and when it came and just before it was answered (time.monotonic)."""

    body: dict[str, Any]
    start: float
    end: float = float("inf")


class NotingServer(ThreadingHTTPServer):
    """Answers completions as `manner` says, one of the handler's methods."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, manner: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.manner = manner
        self.asked: list[Asked] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: NotingServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._send(200, "application/json", json.dumps({"data": [{"id": "m"}]}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked = Asked(body, time.monotonic())
        self.server.asked.append(self.asked)
        getattr(self, self.server.manner)(body["max_tokens"])

    def good(self, tokens: int) -> None:
        time.sleep(0.01)
        events = [completion("x", n, "length" if n == tokens else None) for n in range(1, tokens + 1)]
        self._stream(*events, {"choices": [], "usage": usage(tokens)})

    def without_tokens(self, tokens: int) -> None:
        time.sleep(0.01)
        self._stream(completion("", 0, "stop"), {"choices": [], "usage": usage(0)})

    def full(self, tokens: int) -> None:
        self._answer(503, "application/json", b'{"error": {"message": "full"}}')

    def silent(self, tokens: int) -> None:
        self.close_connection = True
        self.connection.recv(1)  # until the client has had enough

    def _stream(self, *events: dict[str, Any]) -> None:
        self._answer(200, "text/event-stream", b"".join(map(framed, events)) + b"data: [DONE]\n\n")

    def _answer(self, status: int, kind: str, content: bytes) -> None:
        self.asked.end = time.monotonic()
        self._send(status, kind, content)

    def _send(self, status: int, kind: str, content: bytes) -> None:
        head = f"HTTP/1.1 {status} x\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n\r\n"
        self.wfile.write(head.encode() + content)


@contextmanager
def noting(manner: str) -> Iterator[NotingServer]:
    with NotingServer(manner) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


def run(place: Path, server: NotingServer, timeout_s: float = 60) -> tuple[int, Run]:
    """Exit code and stored run of two short cells, after a warm-up of more streams than the cells have."""
    stage = stage_file(place, server.manner, window_s=0.6)
    text = stage.read_text()
    for old, new in (
        ("requests = 4, concurrency = 2", f"requests = {WARMUP}, concurrency = {WARMUP_SLOTS}"),
        ("client_workers = 1", f"client_workers = 1\nrequest_timeout_s = {timeout_s}"),
        ("ceiling = { concurrency = 8, seconds = 0.3 }\n", ""),
    ):
        assert old in text
        text = text.replace(old, new)
    stage.write_text(text)
    name = server.manner.replace("_", "-")
    code = in_process(
        place, "run", stage, "--device", "cpu", "--run", name, "--system", server.url, "--model", "m"
    )
    found = load_run(place / "results" / name)
    assert verify(found.path) == []
    return code, found


@pytest.fixture(scope="module")
def works(place: Path) -> tuple[list[Asked], int, Run]:
    """What a server was asked that does all it should, in order, and what came of it."""
    with noting("good") as server:
        code, found = run(place, server)
    return sorted(server.asked, key=lambda asked: asked.start), code, found


def test_what_a_server_is_asked_in_a_run(works: tuple[list[Asked], int, Run]) -> None:
    asked, code, found = works
    assert code == 0
    assert len(asked) == WARMUP + len(found.requests)  # each once, none in a trial before
    for each in asked:
        assert (each.body["temperature"], each.body["ignore_eos"], each.body["stream"]) == (0.0, True, True)
    assert len({each.body["prompt"] for each in asked}) == len(asked)
    lengths = sorted(each.body["max_tokens"] for each in asked[WARMUP:])
    assert lengths == sorted(found.requests["requested_tokens"]) == sorted(found.requests["output_tokens"])


def test_warm_up_keeps_to_its_slots_and_is_over_before_the_first_cell(
    works: tuple[list[Asked], int, Run],
) -> None:
    asked, _, _ = works
    warmup, cells = asked[:WARMUP], asked[WARMUP:]
    assert all(" of warmup-r0-" in each.body["prompt"] for each in warmup)
    assert not any("warmup" in each.body["prompt"] for each in cells)
    assert max(each.end for each in warmup) < min(each.start for each in cells)
    for each in warmup:
        assert sum(other.start <= each.start < other.end for other in warmup) <= WARMUP_SLOTS


@pytest.mark.parametrize(
    ("manner", "reason", "status", "timeout_s"),
    [
        ("without_tokens", "token_mismatch", "mismatch", 60),
        ("full", "failed_requests", "http_error", 60),
        ("silent", "failed_requests", "timeout", 0.3),
    ],
)
def test_a_server_that_does_not_work_is_never_a_result(
    manner: str, reason: str, status: str, timeout_s: float, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever it answers, and when it answers nothing: the run ends, is stored, and says how many failed."""
    with noting(manner) as server:
        code, found = run(place, server, timeout_s)
    printed = capsys.readouterr().out
    assert code == 1
    assert found.serving["verdict"].tolist() == ["INVALID", "INVALID"]
    assert set(found.requests["status"]) == {status}
    assert found.serving["output_tokens"].tolist() == [0, 0]
    for row in found.serving.itertuples():
        assert row.played == row.played_failed > 0
        assert f"{reason}: {row.played} of {row.played}" in row.reasons
        assert f"{reason}: {row.played} of {row.played}" in printed
        assert row.requests == 0 or row.ttft_ms_p50 == float("inf")
    assert len(server.asked) == WARMUP + len(found.requests)  # one attempt each
