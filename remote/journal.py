"""What was asked of providers, in a file that survives whatever ends the controller.

A line is on the disk before each request that can cost money. So for every box of this machine there is a
line that names its label, whatever happened to the answer.

A controller holds the lock of its run for as long as it works. The kernel drops the lock with the process:
who finds it free knows that no controller is at work.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from remote.errors import RemoteError
from remote.labels import NAME, NAME_RULE

Step = Literal[
    "intent", "refused", "unclear", "cleared", "created", "running", "kept", "destroying", "destroyed"
]
LOCK_WAIT_S = 2.0


class Entry(BaseModel):
    """A line of the journal.

    `at`: seconds since the epoch. `step`: what comes next or has just happened:

    - intent: a box is about to be rented; then one of
      refused (nothing was rented), unclear (a box may exist), created
    - cleared: after unclear; what there was is destroyed, or nothing appeared in time
    - running: the box can be used
    - kept: the box was handed to the user, and stays when the controller ends
    - destroying, destroyed: before the first request, and after the box was seen to be gone

    `deadline`: seconds since the epoch; `box`: empty while the id is not known.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    at: float
    run: str
    step: str
    provider: str
    label: str
    deadline: int
    offer: str = ""
    machine: str = ""
    box: str = ""
    dollars_per_hour: float = 0.0
    note: str = ""


class RunHeld(RemoteError):
    """Another process works on the run."""


def state_folder() -> Path:
    """$LLM_LADDER_STATE, else ~/.local/state/llm-ladder."""
    given = os.environ.get("LLM_LADDER_STATE")
    return Path(given) if given else Path.home() / ".local" / "state" / "llm-ladder"


@dataclass(frozen=True)
class Journal:
    """journal.jsonl and the locks of runs in `folder`, for the user's eyes only."""

    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / "journal.jsonl"

    def write(self, entry: Entry) -> None:
        """Returns when the line is on the disk; otherwise raises RemoteError and leaves no part of a line."""
        line = entry.model_dump_json(exclude_defaults=True).encode() + b"\n"
        try:
            self._make_folder()
            new = not self.path.exists()
            with _opened(self.path) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                _append(file, line)
            if new:
                _sync_folder(self.folder)
                _sync_folder(self.folder.parent)
        except OSError as error:
            raise RemoteError(f"the journal {self.path} cannot be written: {error}") from error

    def read(self) -> tuple[list[Entry], int]:
        """All lines, the oldest first, and how many are unreadable.

        A line that was cut when its writer died is unreadable and without meaning: its request was not sent.
        """
        try:
            if not self.path.exists():
                return [], 0
            with _opened(self.path) as file:
                fcntl.flock(file, fcntl.LOCK_SH)
                content = _content(file)
        except OSError as error:
            raise RemoteError(f"the journal {self.path} cannot be read: {error}") from error
        entries: list[Entry] = []
        damaged = 0
        for line in content.split(b"\n"):
            if not line.strip():
                continue
            try:
                entries.append(Entry.model_validate_json(line))
            except ValidationError:
                damaged += 1
        return entries, damaged

    @contextmanager
    def hold(self, run: str, shared: bool = False) -> Iterator[None]:
        """The lock of a run. Raises RunHeld when another process (or another part of this one) has it.

        Controllers hold it alone, and wait LOCK_WAIT_S for reapers to have their look. Reapers share it: they
        do no harm to one another, and none may take another for a controller that works.
        """
        if not re.fullmatch(NAME, run):
            raise RemoteError(f"run id {run!r}: {NAME_RULE}")
        path = self.folder / "runs" / f"{run}.lock"
        try:
            self._make_folder()
            path.parent.mkdir(mode=0o700, exist_ok=True)
            file = _open(path)
        except OSError as error:
            raise RemoteError(f"the lock {path} cannot be used: {error}") from error
        try:
            if not _lock(file, shared):
                raise RunHeld(f"run {run} is in the hands of another process (lock {path})")
            yield
        finally:
            os.close(file)

    def _make_folder(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _open(path: Path) -> int:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    os.fchmod(file, 0o600)
    return file


def _lock(file: int, shared: bool) -> bool:
    give_up = time.monotonic() + (0 if shared else LOCK_WAIT_S)
    while True:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= give_up:
                return False
        time.sleep(0.05)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    file = _open(path)
    try:
        yield file
    finally:
        os.close(file)


def _append(file: int, line: bytes) -> None:
    size = os.fstat(file).st_size
    if size and os.pread(file, 1, size - 1) != b"\n":
        line = b"\n" + line
    try:
        written = 0
        while written < len(line):
            written += os.pwrite(file, line[written:], size + written)
        os.fsync(file)
    except OSError:
        os.ftruncate(file, size)
        raise


def _content(file: int) -> bytes:
    parts, size = [], 0
    while part := os.pread(file, 2**20, size):
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _sync_folder(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
