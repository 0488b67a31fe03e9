"""A job of the box from its start to its exit status: log, results and price come home while it runs."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from remote import fetch, money
from remote.box import job
from remote.box.errors import HostKeyMismatch, KeyRefused
from remote.desk import Desk
from remote.errors import RemoteError
from remote.labels import parse_label
from remote.link import Link
from remote.printable import printable

WAY_HOME_S = 300.0  # before the deadline, for the last copy of results
STARTS = 3  # of one job, when its box was started again in the middle
MOST_LOG_BYTES = 2**30  # of one job: a log without an end must not fill the disk here
SHOWN_BYTES = 65536  # of what came at one look; all of it stands in the file


class CapReached(RemoteError):
    """A limit of hours or dollars ends the run."""


def run_job(desk: Desk, link: Link, name: str, command: str) -> int:
    """Starts the job, or takes up one that is there, and returns its exit status.

    A job that was lost, as when its box was started again, is started anew: stages go on where they were.
    Raises CapReached, BoxLost, Lost, HostKeyMismatch, and RemoteError for one that is lost STARTS times.
    """
    link.steadily(lambda: job.start(link.ssh, name, command))
    for left in reversed(range(STARTS)):
        follow(desk, link, name)
        now = link.steadily(lambda: _status(link, name))
        if now.rc is not None:
            return now.rc
        if left:
            desk.say(f"{name} was lost, as when a box starts again: starting it once more")
            link.steadily(lambda: job.start(link.ssh, name, command, again=True))
    raise RemoteError(f"{name} was lost {STARTS} times on box {link.box.id}")


def follow(desk: Desk, link: Link, name: str) -> None:
    """Appends the log of the job to its file here, and shows it, until the job has ended or is lost."""
    log = Log(desk.folder.log(link.box.id, name), desk)
    watch = Watch(desk, link, name)
    clock = desk.clock
    try:
        while True:
            chunks = job.follow(
                link.ssh, name, log.size, desk.poll_s, desk.patience_s, clock, between=watch.between
            )
            try:
                for chunk in chunks:
                    log.add(chunk)
                return
            except HostKeyMismatch:
                if not link.pin_anew():
                    raise
            except KeyRefused:
                link.steadily(lambda: link.ssh.read("true"))
    finally:
        log.end()


@dataclass
class Log:
    """The copy of a job's log; its size is how far the log was followed."""

    path: Path
    desk: Desk
    _rest: bytes = field(default=b"", init=False)

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def add(self, chunk: bytes) -> None:
        """Raises RemoteError when the disk is full, or the log longer than MOST_LOG_BYTES."""
        if self.size + len(chunk) > MOST_LOG_BYTES:
            raise RemoteError(f"{self.path.name} is longer than the limit of {MOST_LOG_BYTES} bytes")
        try:
            with os.fdopen(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
                file.write(chunk)
        except OSError as error:
            raise RemoteError(f"{self.path} cannot be written: {error}") from error
        if len(chunk) > SHOWN_BYTES:
            self.desk.say(f"… {len(chunk) - SHOWN_BYTES} bytes are not shown, see {self.path}")
        *lines, self._rest = (self._rest + chunk)[-SHOWN_BYTES:].replace(b"\r", b"\n").split(b"\n")
        self._show(lines)

    def end(self) -> None:
        self._show([self._rest])
        self._rest = b""

    def last_lines(self, count: int = 5) -> str:
        with self.path.open("rb") as file:
            file.seek(max(0, self.size - 4096))
            return " | ".join(map(_plain, [line for line in file.read().split(b"\n") if line][-count:]))

    def _show(self, lines: list[bytes]) -> None:
        for line in lines:
            if text := _plain(line):
                self.desk.say(f"  {text}")


@dataclass
class Watch:
    """What is done between two looks at a job: caps, a copy of the results, a question to the provider."""

    desk: Desk
    link: Link
    name: str

    def __post_init__(self) -> None:
        self._begun = self._synced = self._looked = self.desk.clock.monotonic()

    def between(self) -> None:
        """Raises CapReached and BoxLost."""
        check_caps(self.desk, self.link)
        now = self.desk.clock.monotonic()
        if now - self._looked >= self.desk.look_s:
            self._looked = now
            self.link.look()
        if now - self._synced >= self.desk.sync_s:
            self._sync()
            self._synced = self.desk.clock.monotonic()
            self.desk.say(f"{self.name}: {(self._synced - self._begun) / 60:.0f} min{_price(self.desk)}")

    def _sync(self) -> None:
        try:
            fetch.sync(self.desk, self.link)
        except HostKeyMismatch:
            raise
        except (RemoteError, OSError) as error:
            self.desk.say(f"results could not be copied now: {error}")


def check_caps(desk: Desk, link: Link) -> None:
    """Raises CapReached when the run must end, while there is time to copy its results."""
    now = desk.clock.now()
    label = parse_label(link.box.label)
    if label is not None and now >= label.deadline - WAY_HOME_S:
        raise CapReached(
            f"box {link.box.id} must be gone in {max(0.0, label.deadline - now) / 60:.0f} min by the caps of "
            f"{desk.settings.caps.hours:g} h and ${desk.settings.caps.dollars:.2f}"
        )
    if why := money.exceeded(desk.settings.caps, money.rents_of(desk.entries()), now):
        raise CapReached(why)


def _status(link: Link, name: str) -> job.JobStatus:
    """Like job.status, but without contact it raises Lost."""
    link.ssh.read("true")
    return job.status(link.ssh, name)


def _price(desk: Desk) -> str:
    return f", ${desk.spent():.2f} of ${desk.settings.dollars:.2f}" if desk.settings.rented else ""


def _plain(line: bytes) -> str:
    """Text without what could steer a terminal."""
    return printable(line.decode(errors="replace"))
