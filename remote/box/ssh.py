"""Short commands and files over ssh. Every call ends within its time; after a drop the next one reconnects.

Fabric makes the connections; commands go over their channels. Fabric's own `run` costs the square of the
output, waits up to an hour for a peer that is gone, and gives text where bytes are needed.
"""

from __future__ import annotations

import logging
import shlex
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from fabric import Config, Connection
from paramiko import (
    AuthenticationException,
    BadHostKeyException,
    Channel,
    RejectPolicy,
    SSHException,
    Transport,
)

from remote.box import rsync
from remote.box.errors import HostKeyMismatch, KeyRefused, Lost, TimedOut
from remote.box.host_keys import check_pinned, host_name
from remote.clock import SYSTEM_CLOCK, Clock
from remote.errors import RemoteError

if TYPE_CHECKING:
    from remote.providers.base import Address

CONNECT_S = 20.0
MAX_OUTPUT = 16 * 2**20  # of a short command; longer output belongs into the log of a job
WAIT_BETWEEN_S = 3.0

# What goes wrong is raised from here; without a handler paramiko prints tracebacks of it as well.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


@dataclass(frozen=True)
class Result:
    """`out` and `err`: what the command wrote; bytes that are not UTF-8 became U+FFFD."""

    status: int
    out: str
    err: str


@dataclass
class Ssh:
    """A box at an address. `known_hosts` holds the only host keys accepted, `key` a private key, mode 0600.

    Not for several threads at once: give each its own.
    """

    address: Address
    user: str
    key: Path
    known_hosts: Path
    connect_s: float = CONNECT_S
    _connection: Connection | None = field(default=None, init=False, repr=False)

    def run(self, command: str, timeout_s: float = 60.0, stdin: bytes = b"") -> Result:
        """Runs a short command in the home folder of the box.

        A status other than 0 is a result. Raises Lost when no status came (connection lost, or the command
        killed by a signal: that cannot be told apart), TimedOut, KeyRefused, HostKeyMismatch, and RemoteError
        for more than MAX_OUTPUT bytes.
        """
        status, out, err = self._execute(command, timeout_s, stdin)
        return Result(status, out.decode(errors="replace"), err.decode(errors="replace"))

    def read(self, command: str, timeout_s: float = 60.0, stdin: bytes = b"") -> bytes:
        """Like run, but gives the output as bytes, and a status other than 0 is a RemoteError."""
        status, out, err = self._execute(command, timeout_s, stdin)
        if status != 0:
            said = err.decode(errors="replace").strip()[-500:]
            raise RemoteError(f"{_short(command)} on {self}: status {status}: {said}")
        return out

    def write(self, remote: str, data: bytes, timeout_s: float = 60.0) -> None:
        """Writes a file, mode 0600, that appears under its name only when it is whole."""
        path = shlex.quote(remote)
        folder = shlex.quote(str(PurePosixPath(remote).parent))
        script = f"umask 077; mkdir -p {folder} && cat >{path}.new && mv {path}.new {path}"
        self.read(script, timeout_s, data)

    def push(self, folder: Path, remote: str, exclude: tuple[str, ...] = rsync.KEPT_ON_BOX) -> None:
        """Makes the remote folder equal to the local one; see rsync.push."""
        rsync.push(self, folder, remote, exclude)

    def fetch(self, remote: str, local: Path, exclude: tuple[str, ...] = ()) -> None:
        """Copies what is in the remote folder into the local one and deletes nothing; see rsync.fetch."""
        rsync.fetch(self, remote, local, exclude)

    def alive(self, timeout_s: float = 10.0) -> bool:
        """The heartbeat: whether the box answers a command in time."""
        try:
            return self.run("true", timeout_s).status == 0
        except Lost:
            return False

    def wait_until_open(self, patience_s: float, clock: Clock = SYSTEM_CLOCK) -> None:
        """Returns at the first answer. A box that has just started refuses connections, then the key.

        Raises the last Lost or KeyRefused after `patience_s`, and HostKeyMismatch at once.
        """
        give_up = clock.monotonic() + patience_s
        while True:
            try:
                self.read("true", self.connect_s)
                return
            except (Lost, KeyRefused) as error:
                if clock.monotonic() >= give_up:
                    raise type(error)(f"{error} (for {patience_s:.0f} s)") from error
            clock.sleep(WAIT_BETWEEN_S)

    def command_line(self) -> list[str]:
        """An ssh command with the same key and pins, without the host: for rsync, and for people."""
        options = {
            "BatchMode": "yes",
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": f'"{self.known_hosts.absolute()}"',
            "GlobalKnownHostsFile": "/dev/null",
            "UpdateHostKeys": "no",
            "IdentitiesOnly": "yes",
            "ConnectTimeout": f"{self.connect_s:.0f}",
            "ServerAliveInterval": "15",
            "ServerAliveCountMax": "4",
        }
        flags = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
        key = str(self.key.absolute())
        return ["ssh", "-F", "/dev/null", "-p", str(self.address.port), "-l", self.user, "-i", key, *flags]

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def check_files(self) -> None:
        """Raises RemoteError for a key that others may read, HostKeyMismatch when no host key is pinned."""
        if not self.key.exists():
            raise RemoteError(f"there is no private key {self.key}")
        mode = self.key.stat().st_mode & 0o777
        if mode & 0o077:
            raise RemoteError(f"private key {self.key} has mode {mode:04o}, the limit is 0600")
        check_pinned(self.known_hosts, self.address)

    def __str__(self) -> str:
        return f"{self.user}@{host_name(self.address)}"

    def _execute(self, command: str, timeout_s: float, stdin: bytes) -> tuple[int, bytes, bytes]:
        transport = self._transport()
        expired = threading.Event()

        # paramiko waits without limit in several places; all of them end when the transport is closed.
        def expire() -> None:
            expired.set()
            transport.close()

        watch = threading.Timer(timeout_s, expire)
        watch.daemon = True
        watch.start()
        try:
            status, out, err = _converse(transport, command, timeout_s, stdin)
            problem = "connection lost, or killed by a signal"
        except (SSHException, OSError, EOFError) as error:
            status, out, err = -1, b"", b""
            problem = str(error) or type(error).__name__
        finally:
            watch.cancel()
        if status == -1:
            self.close()
            if expired.is_set():
                raise TimedOut(f"{_short(command)} on {self}: no end within {timeout_s:g} s")
            raise Lost(f"{_short(command)} on {self}: no exit status: {problem}")
        return status, out, err

    def _transport(self) -> Transport:
        if self._connection is not None and self._connection.is_connected:
            return self._connection.transport
        self.close()
        self.check_files()
        connection = self._new_connection()
        try:
            connection.open()
        except BadHostKeyException as error:
            raise HostKeyMismatch(f"{self} shows another host key than the pinned one: {error}") from error
        except AuthenticationException as error:
            if "timeout" in str(error).lower() or "EOF" in str(error):
                raise Lost(f"{self}: {error}") from error
            raise KeyRefused(f"{self} refuses the key {self.key}: {error}") from error
        except (SSHException, OSError, EOFError) as error:
            raise Lost(f"{self} cannot be reached: {str(error) or type(error).__name__}") from error
        self._connection = connection
        return connection.transport

    def _new_connection(self) -> Connection:
        limits = dict.fromkeys(("banner_timeout", "auth_timeout", "channel_timeout"), self.connect_s)
        connection = Connection(
            self.address.host,
            user=self.user,
            port=self.address.port,
            config=Config(overrides={"load_ssh_configs": False}),
            connect_timeout=self.connect_s,
            connect_kwargs={
                "key_filename": str(self.key),
                "look_for_keys": False,
                "allow_agent": False,
                **limits,
            },
        )
        connection.client.load_host_keys(str(self.known_hosts))
        connection.client.set_missing_host_key_policy(RejectPolicy())
        return connection


def _converse(transport: Transport, command: str, timeout_s: float, stdin: bytes) -> tuple[int, bytes, bytes]:
    # Later than the watch, which then says what happened.
    channel = transport.open_session(timeout=timeout_s + 1)
    try:
        channel.exec_command(command)
        if stdin:
            channel.sendall(stdin)
        channel.shutdown_write()
        with ThreadPoolExecutor(1) as other:
            err = other.submit(_drain, channel, channel.recv_stderr)
            out = _drain(channel, channel.recv)
            return channel.recv_exit_status(), out, err.result()
    finally:
        channel.close()


def _drain(channel: Channel, receive: Callable[[int], bytes]) -> bytes:
    parts, size = [], 0
    while part := receive(2**16):
        parts.append(part)
        size += len(part)
        if size > MAX_OUTPUT:
            channel.close()
            raise RemoteError(f"more than {MAX_OUTPUT} bytes of output: run it as a job and follow its log")
    return b"".join(parts)


def _short(command: str) -> str:
    line = " ".join(command.split())
    return repr(line if len(line) <= 80 else f"{line[:77]}...")
