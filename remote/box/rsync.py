"""Folders to and from a box with rsync, over ssh with the key and the pinned host keys of the run."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from remote.box.errors import DiskFull, HostKeyMismatch, KeyRefused, Lost, TimedOut
from remote.errors import RemoteError

if TYPE_CHECKING:
    from remote.box.ssh import Ssh

LIMIT_S = 3600.0
SILENCE_S = 120  # rsync gives up when nothing comes for so long
MOST_FILE_BYTES = 2 * 2**30  # of a result: a file without an end must not fill the disk here
NEVER_SENT = (".git/", ".env", ".ssh/")  # .git/config and these may hold keys
KEPT_ON_BOX = ("/results/",)

FILE_ERROR = 11
VANISHED = 24
NO_CONTACT = (10, 12, 20, 30, 35, 255)  # socket, protocol stream, killed, two timeouts, ssh itself
FULL = ("No space left on device", "Disk quota exceeded", "File too large")


def push(
    ssh: Ssh, folder: Path, remote: str, exclude: Sequence[str] = KEPT_ON_BOX, limit_s: float = LIMIT_S
) -> None:
    """Makes the remote folder equal to the local one, what is not local is deleted there.

    Neither sent nor deleted: what matches `exclude` (rsync's patterns), NEVER_SENT, and the .gitignore in the
    folder. There are no includes, so that none can come before an exclude. Files take their places together,
    at the end: a push that is cut off leaves the box as it was.
    """
    ignored = folder / ".gitignore"
    rules = [f"--exclude={rule}" for rule in (*NEVER_SENT, *exclude)]
    rules += [f"--exclude-from={ignored}"] if ignored.exists() else []
    flags = ["--links", "--perms", "--delete-delay", "--delay-updates", *rules]
    flags.append(f"--rsync-path=mkdir -p {shlex.quote(remote)} && rsync")  # --mkpath is not known everywhere
    _transfer(ssh, flags, f"{folder}/", f"{_host(ssh)}:{remote}/", limit_s)


def fetch(ssh: Ssh, remote: str, local: Path, exclude: Sequence[str] = (), limit_s: float = LIMIT_S) -> None:
    """Copies what is in the remote folder into the local one and deletes nothing.

    A file gets its name only when it is whole; what came of one that was cut off is used by the next fetch.
    Links and devices of the box are left out, and files of more than MOST_FILE_BYTES. Files that vanish
    meanwhile are looked for again, twice.
    """
    try:
        local.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RemoteError(f"{local} cannot be made: {error}") from error
    flags = ["--no-links", f"--max-size={MOST_FILE_BYTES}", "--partial-dir=.rsync-partial"]
    flags += [f"--exclude={rule}" for rule in exclude]
    source = f"{_host(ssh)}:{remote}/"
    for _ in range(2):
        try:
            return _transfer(ssh, flags, source, f"{local}/", limit_s)
        except _Vanished:
            pass
    _transfer(ssh, flags, source, f"{local}/", limit_s)


def _host(ssh: Ssh) -> str:
    """An IPv6 address needs brackets, or its colons would begin the path."""
    return f"[{ssh.address.host}]" if ":" in ssh.address.host else ssh.address.host


class _Vanished(RemoteError):
    """Files that were listed were gone when their turn came."""


def _transfer(ssh: Ssh, flags: Sequence[str], source: str, target: str, limit_s: float) -> None:
    ssh.check_files()
    # By checksum: equal size and time do not make stale code new.
    common = [
        "--recursive",
        "--times",
        "--checksum",
        "--compress",
        "--protect-args",
        f"--timeout={SILENCE_S}",
    ]
    command = ["rsync", *common, "-e", shlex.join(ssh.command_line()), *flags, "--", source, target]
    what = f"rsync {source} {target}"
    # A session of its own: rsync's ssh must end with it.
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "LC_ALL": "C"},
        start_new_session=True,
    ) as running:
        try:
            _, said = running.communicate(timeout=limit_s)
        except BaseException as error:
            os.killpg(running.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise TimedOut(f"{what}: no end within {limit_s:g} s") from error
            raise
    if running.returncode != 0:
        raise _error(running.returncode, said.decode(errors="replace"), what)


def _error(status: int, said: str, what: str) -> RemoteError:
    message = f"{what}: status {status}: {said.strip()[-500:]}"
    if any(words in said for words in FULL):
        return DiskFull(message)
    # The last words of the side that could not write do not always come through.
    if status == FILE_ERROR and not said.strip():
        return DiskFull(f"{message} an error of file I/O, most likely a full disk")
    if "Host key verification failed" in said:
        return HostKeyMismatch(message)
    if "Permission denied (" in said:
        return KeyRefused(message)
    if "rsync: command not found" in said:
        return RemoteError(f"no rsync on the box (apt-get install rsync): {message}")
    if status == VANISHED:
        return _Vanished(message)
    return Lost(message) if status in NO_CONTACT else RemoteError(message)
