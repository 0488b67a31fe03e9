"""Which HTTP stack? Events per second at many streams, and what slow and hostile clients do to each.

    python -m harness.micro.http_stack [--stacks ...] [--repetitions 6] [--out results/micro/http_stack]

Server and client are pinned to one core each; the stacks take turns A B C C B A. The client opens all
streams, lets them ramp for RAMP_S, then counts `data:` in what its sockets deliver during `--seconds`. CPU
time is user + system of the whole server process tree over the same window. The stack `engine`, the server
built on the winner, takes part in the throughput only.
"""

import argparse
import contextlib
import csv
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import psutil

from harness.micro.stamp import machine

STACKS = ("protocol", "uvicorn", "granian", "engine")
COMPLETION = (
    b'{"prompt":[0],"max_tokens":1000000000,"stream":true,'
    b'"stream_options":{"include_usage":true,"continuous_usage_stats":true}}'
)
STREAM_REQUESTS = dict.fromkeys(STACKS, b"GET /stream HTTP/1.1\r\nhost: x\r\n\r\n") | {
    "engine": b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b"
    % (len(COMPLETION), COMPLETION)
}
SERVER_CORE, CLIENT_CORE = 0, 1
RAMP_S = 1.0
PATIENCE_S = 40.0
MIB = 1 << 20


class Server:
    """A null server in its own process group, pinned to SERVER_CORE; it answers when the constructor
    returns."""

    def __init__(self, stack: str) -> None:
        self.stream_request = STREAM_REQUESTS[stack]
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.argv = [sys.executable, "-m", "harness.micro.http_stack_apps", stack, str(self.port)]
        self.process = subprocess.Popen(
            self.argv, start_new_session=True, preexec_fn=lambda: os.sched_setaffinity(0, {SERVER_CORE})
        )
        while True:
            with contextlib.suppress(OSError):
                self.ask("/hello")
                return
            time.sleep(0.05)

    def tree(self) -> list[psutil.Process]:
        parent = psutil.Process(self.process.pid)
        return [parent, *parent.children(recursive=True)]

    def cpu_s(self) -> float:
        return sum(sum(process.cpu_times()[:2]) for process in self.tree())

    def rss_mib(self) -> float:
        return sum(process.memory_info().rss for process in self.tree()) / MIB

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)

    def ask(self, path: str) -> bytes:
        with self.connect() as connection:
            connection.sendall(b"GET %s HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n" % path.encode())
            _head, _, body = connection.recv(1 << 16).partition(b"\r\n\r\n")
            return body or connection.recv(1 << 16)

    def stats(self) -> dict:
        return json.loads(self.ask("/stats"))

    def stop(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def running(stack: str) -> Iterator[Server]:
    server = Server(stack)
    try:
        yield server
    finally:
        server.stop()


class Reader:
    """Counts events and tokens on all its streams; a sweep costs far less than a wake-up for each segment.

    The two differ only where a server merges the tokens of a stream whose reader is behind.
    """

    SWEEP_S = 0.02

    def __init__(self, server: Server, streams: int) -> None:
        self.events = self.tokens = 0
        self.tails = {server.connect(): b"" for _ in range(streams)}
        for connection in self.tails:
            connection.setblocking(False)
            connection.sendall(server.stream_request)

    def read_until(self, end: float) -> None:
        while time.monotonic() < end:
            for connection, tail in self.tails.items():
                with contextlib.suppress(BlockingIOError):
                    data = tail + connection.recv(MIB)
                    self.events += data.count(b"data:")
                    self.tokens += data.count(b" toke")
                    self.tails[connection] = data[-4:]
            time.sleep(self.SWEEP_S)


def throughput(server: Server, streams: int, seconds: float) -> dict:
    reader = Reader(server, streams)
    reader.read_until(time.monotonic() + RAMP_S)
    events, tokens = reader.events, reader.tokens
    cpu, client_cpu, start = server.cpu_s(), time.process_time(), time.monotonic()
    reader.read_until(start + seconds)
    events, tokens = reader.events - events, reader.tokens - tokens
    cpu, client_cpu, window = server.cpu_s() - cpu, time.process_time() - client_cpu, time.monotonic() - start
    for connection in reader.tails:
        connection.close()
    return {
        "streams": streams,
        "window_s": round(window, 3),
        "events": events,
        "tokens": tokens,
        "events_per_s": round(events / window),
        "tokens_per_s": round(tokens / window),
        "server_cpu_us_per_event": round(cpu / events * 1e6, 2),
        "server_cpu_share": round(cpu / window, 3),
        "client_cpu_share": round(client_cpu / window, 3),
    }


# ---- slow and hostile clients: each returns (what it measured, unit, value) rows


def never_reads(server: Server) -> Iterator[tuple[str, str, float]]:
    before = server.rss_mib()
    with server.connect() as connection:
        connection.sendall(server.stream_request)
        time.sleep(4)
        after_4s = server.stats()["events"]
        time.sleep(4)
        yield "events the application handed over by second 4", "events", after_4s
        yield (
            "further events by second 8 (0: back pressure reaches the application)",
            "events",
            (server.stats()["events"] - after_4s),
        )
        yield "growth of server memory", "MiB", round(server.rss_mib() - before, 1)


def byte_a_second_head(server: Server) -> Iterator[tuple[str, str, float]]:
    start = time.monotonic()
    with server.connect() as connection, contextlib.suppress(ConnectionError):
        connection.settimeout(1)
        connection.sendall(b"GET /hello HTTP/1.1\r\nx-slow: ")
        while time.monotonic() - start < PATIENCE_S:
            connection.sendall(b"a")
            with contextlib.suppress(TimeoutError):
                connection.recv(4096)
                break
    yield (
        f"time until the server ended it ({PATIENCE_S:.0f}: never seen)",
        "s",
        round(time.monotonic() - start, 1),
    )


def endless_head(server: Server) -> Iterator[tuple[str, str, float]]:
    before = server.rss_mib()
    sent, answer = flood(server, b"GET /hello HTTP/1.1\r\n", b"x-filler: " + b"a" * 8000 + b"\r\n", 256 * MIB)
    yield "header bytes taken before it was refused (256: not refused)", "MiB", round(sent / MIB, 2)
    yield "growth of server memory", "MiB", round(server.rss_mib() - before, 1)
    yield "answer (0: none)", "HTTP status", answer


def huge_body(server: Server) -> Iterator[tuple[str, str, float]]:
    before = server.rss_mib()
    head = b"POST /body HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (256 * MIB)
    sent, answer = flood(server, head, b"a" * MIB, 256 * MIB)
    yield "body bytes taken of 256 MiB at an application limit of 2 MiB", "MiB", round(sent / MIB, 2)
    yield "growth of server memory", "MiB", round(server.rss_mib() - before, 1)
    yield "answer (0: none)", "HTTP status", answer


def flood(server: Server, head: bytes, piece: bytes, limit: int) -> tuple[int, int]:
    """Sends head, then pieces until the limit, an answer or an end; returns (bytes sent, status or 0)."""
    sent = 0
    with server.connect() as connection:
        connection.sendall(head)
        with contextlib.suppress(ConnectionError):
            while sent < limit:
                connection.sendall(piece)
                sent += len(piece)
        connection.settimeout(2)
        with contextlib.suppress(OSError):
            return sent, int(connection.recv(4096)[9:12] or 0)
    return sent, 0


def disconnects(server: Server) -> Iterator[tuple[str, str, float]]:
    for path in ("/stream", "/wait"):
        noticed = []
        for _ in range(5):
            with server.connect() as connection:
                connection.sendall(b"GET %s HTTP/1.1\r\nhost: x\r\n\r\n" % path.encode())
                time.sleep(0.5)
            closed = time.monotonic()
            time.sleep(2)
            if (at := server.stats()["disconnects"].get(path, 0)) >= closed:
                noticed.append(at - closed)
        yield (
            f"{path}: disconnects of 5 that the application was told of within 2 s",
            "disconnects",
            len(noticed),
        )
        if noticed:
            yield f"{path}: longest time until then", "ms", round(max(noticed) * 1e3, 1)


def pipelined(server: Server) -> Iterator[tuple[str, str, float]]:
    with server.connect() as connection:
        connection.sendall(b"GET /hello HTTP/1.1\r\nhost: x\r\n\r\n" * 3)
        time.sleep(0.5)
        yield (
            "answers to three requests sent in one write",
            "answers",
            connection.recv(1 << 16).count(b" 200 "),
        )


HOSTILE = (never_reads, byte_a_second_head, endless_head, huge_body, disconnects, pipelined)


def write_csv(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--stacks", nargs="+", choices=STACKS, default=STACKS)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--repetitions", type=int, default=6)
    parser.add_argument("--out", type=Path, default=Path("results/micro/http_stack"))
    options = parser.parse_args()
    os.sched_setaffinity(0, {CLIENT_CORE})

    versions = {name: version(name) for name in ("uvicorn", "granian", "uvloop", "httptools")}
    stamp = {
        "machine": machine(),
        "versions": " ".join(f"{name}=={value}" for name, value in versions.items()),
        "command": "python -m harness.micro.http_stack " + " ".join(sys.argv[1:]),
    }

    rows = []
    for repetition in range(options.repetitions):
        for stack in options.stacks if repetition % 2 == 0 else options.stacks[::-1]:
            with running(stack) as server:
                measured = throughput(server, options.streams, options.seconds)
            rows.append({"stack": stack, "repetition": repetition, "position": len(rows)} | measured | stamp)
            print(stack, repetition, measured, flush=True)
    write_csv(options.out / "throughput.csv", rows)

    rows = []
    for stack in (stack for stack in options.stacks if stack != "engine"):
        for client in HOSTILE:
            with running(stack) as server:
                for what, unit, value in client(server):
                    rows.append(
                        {
                            "stack": stack,
                            "client": client.__name__,
                            "measured": what,
                            "unit": unit,
                            "value": value,
                        }
                    )
                    print(stack, client.__name__, what, value, unit, flush=True)
    if rows:
        write_csv(options.out / "hostile.csv", [row | stamp for row in rows])


if __name__ == "__main__":
    main()
