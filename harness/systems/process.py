"""A server as a process: started under a watchdog, awaited by its health, always stopped."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.systems import watchdog
from harness.systems.base import Configuration, System, Target
from harness.systems.environment import Interpreter

POLL_INTERVAL_S = 0.1
HEALTH_TIMEOUT_S = 5.0
LOG_LINES_SHOWN = 15


class ServerError(Exception):
    """A server did not come up or went away; the message ends with its last log lines."""


@dataclass(frozen=True)
class Launch:
    """How one server is started. `additions` is what its environment has beyond the harness's own."""

    argv: list[str]
    environment: dict[str, str]
    cwd: Path | None
    ready_limit_s: float
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def additions(self) -> dict[str, str]:
        changed = {name: value for name, value in self.environment.items() if os.environ.get(name) != value}
        if "PATH" in changed:
            changed["PATH"] = changed["PATH"].removesuffix(os.environ.get("PATH", os.defpath)) + "$PATH"
        return changed


@dataclass(frozen=True)
class RunningServer:
    url: str
    startup_s: float
    pid: int


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def launch(
    system: System, config: Configuration, target: Target, interpreter: Interpreter, root: Path
) -> Launch:
    """The launch of a system in one of its configurations."""
    port = free_port()
    return Launch(
        argv=[str(interpreter.python), *system.command(target, port), *config.flags],
        environment=interpreter.process_environment() | dict(system.variables),
        cwd=root if system.runs_in_checkout else None,
        ready_limit_s=system.ready_limit_s,
        port=port,
    )


@contextmanager
def running(server: Launch, log: Path, on_wait: Callable[[float], None]) -> Iterator[RunningServer]:
    """The server, healthy, for the length of a `with` block; afterwards nothing of it is left.

    Its output goes to `log`. `on_wait` gets the seconds waited so far at each look at its health.
    Raises ServerError when it ends or is not healthy in time.
    """
    with tempfile.TemporaryDirectory() as empty, log.open("wb") as output:
        started = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", watchdog.__file__, str(os.getpid()), *server.argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=server.environment,
            cwd=server.cwd or empty,
            start_new_session=True,
        )
        try:
            while not _healthy(server.port):
                waited = time.monotonic() - started
                if process.poll() is not None:
                    raise ServerError(
                        f"server ended with status {process.returncode} before it was ready\n{tail(log)}"
                    )
                if waited > server.ready_limit_s:
                    raise ServerError(f"server not ready after {server.ready_limit_s:g} s\n{tail(log)}")
                on_wait(waited)
                time.sleep(POLL_INTERVAL_S)
            yield RunningServer(server.url, time.monotonic() - started, process.pid)
            if process.poll() is not None:
                raise ServerError(
                    f"server ended with status {process.returncode} while it was used\n{tail(log)}"
                )
        finally:
            process.terminate()
            process.wait()


def _healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HEALTH_TIMEOUT_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def tail(log: Path) -> str:
    """Name and last lines of a log, for error messages."""
    lines = log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
    return "\n".join([f"last lines of {log}:", *lines])
