"""A server as a process: started under a watchdog, awaited by its health, always stopped."""

from __future__ import annotations

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

from harness.systems import freeze, watchdog
from harness.systems.base import Configuration, ServerError, System, Target
from harness.systems.environment import Interpreter
from harness.systems.fetch import UNREACHABLE, fetch

POLL_INTERVAL_S = 0.1
HEALTH_TIMEOUT_S = 5.0
LOG_LINES_SHOWN = 15
TELLING_PREFIXES = (
    "VLLM_", "SGLANG_", "SGL_", "CUDA_", "NCCL_", "TORCH", "PYTORCH_", "TRITON_", "OMP_", "MKL_", "HF_",
    "FLASHINFER_",
)  # fmt: skip


@dataclass(frozen=True)
class Launch:
    """How one server is started. `additions` is what its environment has beyond the harness's own, and what
    it inherits of variables that change how such servers run."""

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
        changed = {
            name: value
            for name, value in self.environment.items()
            if os.environ.get(name) != value or name.startswith(TELLING_PREFIXES)
        }
        if "PATH" in changed:
            changed["PATH"] = changed["PATH"].removesuffix(os.environ.get("PATH", os.defpath)) + "$PATH"
        return changed


@dataclass(frozen=True)
class RunningServer:
    """A server that answers. `watchdog` is the parent of its processes, None for one that is not ours;
    `model` is what requests call its model."""

    url: str
    startup_s: float
    watchdog: subprocess.Popen[bytes] | None = None
    log: Path | None = None
    model: str = ""

    def freeze(self) -> None:
        """Nothing of it runs until `thaw`, its memory stays; see freeze.freeze. No effect on one that has
        ended or is not ours.
        """
        if self._is_ours_and_up():
            freeze.freeze(self.watchdog.pid)

    def thaw(self) -> None:
        """It runs again. No effect on one that runs, has ended or is not ours."""
        if self._is_ours_and_up():
            freeze.thaw(self.watchdog.pid)

    def check(self) -> None:
        """Raises ServerError when it has ended; the message ends with its last log lines."""
        if self.watchdog is not None and self.watchdog.poll() is not None:
            raise ServerError(
                f"server ended with status {self.watchdog.returncode} while it was used\n{tail(self.log)}"
            )

    def _is_ours_and_up(self) -> bool:
        """Else the process id may be somebody else's by now."""
        return self.watchdog is not None and self.watchdog.poll() is None


def already_running(url: str, model: str) -> RunningServer:
    """A server that somebody else started. Raises ServerError when nothing answers there."""
    try:
        fetch(url, "/v1/models", HEALTH_TIMEOUT_S)
    except UNREACHABLE as error:
        raise ServerError(f"{url} does not answer: {error}") from error
    return RunningServer(url, startup_s=0.0, model=model)


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def launch(
    system: System,
    config: Configuration,
    target: Target,
    interpreter: Interpreter,
    root: Path,
    memory: tuple[float, float] | None = None,
) -> Launch:
    """The launch of a system in one of its configurations.

    `memory`: its share of the GPU's memory and the share that is free now; None leaves it its own default.
    Raises ServerError when that is not to be had.
    """
    port = free_port()
    command = system.command(target, port)
    if config.entry is not None:
        command[:2] = config.entry
    if memory is not None:
        command += system.memory_flags(*memory)
    return Launch(
        argv=[str(interpreter.python), *command, *config.flags],
        environment=interpreter.process_environment() | dict(system.variables) | config.variables,
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
            while not _healthy(server.url):
                waited = time.monotonic() - started
                if process.poll() is not None:
                    raise ServerError(
                        f"server ended with status {process.returncode} before it was ready\n{tail(log)}"
                    )
                if waited > server.ready_limit_s:
                    raise ServerError(f"server not ready after {server.ready_limit_s:g} s\n{tail(log)}")
                on_wait(waited)
                time.sleep(POLL_INTERVAL_S)
            ready = RunningServer(server.url, time.monotonic() - started, process, log)
            yield ready
            ready.check()
        finally:
            process.terminate()
            process.wait()


def _healthy(url: str) -> bool:
    try:
        return fetch(url, "/health", HEALTH_TIMEOUT_S)[0] == 200
    except UNREACHABLE:
        return False


def tail(log: Path) -> str:
    """Name and last lines of a log, for error messages."""
    lines = log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
    return "\n".join([f"last lines of {log}:", *lines])
