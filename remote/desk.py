"""What a controller works with: the run, its settings, its folder, the provider, and the time."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from remote import money
from remote.clock import SYSTEM_CLOCK, Clock
from remote.errors import RemoteError
from remote.journal import Entry, Journal
from remote.labels import PREFIX
from remote.providers.base import Box, Provider
from remote.settings import OWN_STAGES, ROOT, Settings, of_json

CHECKOUT = "llm-ladder/checkout"  # on the box, in its home folder
RESULTS = f"{CHECKOUT}/results/v1"


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run on the controller's side, for the user's eyes only.

    It holds the settings, the ssh key and the pinned host keys of the run and, in a folder a box, logs and
    what came of results. How far a log was followed is the size of its copy here.
    """

    path: Path

    @classmethod
    def of(cls, state: Path, run: str) -> RunFolder:
        return cls(state / "runs" / run)

    @property
    def settings(self) -> Path:
        return self.path / "settings.json"

    @property
    def known_hosts(self) -> Path:
        return self.path / "known_hosts"

    def log(self, box: str, job: str) -> Path:
        return self._of_box(box) / f"{job}.log"

    def arrived(self, box: str) -> Path:
        """What came of results/v1 of the box."""
        return self._of_box(box) / "results"

    def pushed(self, box: str) -> Path:
        """Exists when the source is on the box."""
        return self._of_box(box) / "pushed"

    def make(self) -> None:
        for folder in (self.path.parent.parent, self.path.parent, self.path):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def keep_settings(self, settings: Settings) -> None:
        """Raises RemoteError when the run was begun with other settings."""
        self.make()
        if self.settings.exists():
            if self.kept_settings() != settings:
                raise RemoteError(f"run {self.path.name} was begun with other settings, see {self.settings}")
            return
        write_private(self.settings, settings.model_dump_json(indent=1).encode())

    def kept_settings(self) -> Settings:
        try:
            return of_json(self.settings.read_text(encoding="utf-8"), self.settings)
        except OSError as error:
            runs = sorted(file.parent.name for file in self.path.parent.glob("*/settings.json"))
            there = f"there are: {', '.join(runs)}" if runs else "nor any other yet"
            raise RemoteError(f"there is no run {self.path.name}, {there} ({error})") from error

    def key(self) -> Path:
        """The private ssh key of the run, made at the first call."""
        self.make()
        key = self.path / "id_ed25519"
        if not key.with_suffix(".pub").exists():
            key.unlink(missing_ok=True)
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(key)]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        return key

    def _of_box(self, box: str) -> Path:
        folder = self.path / "boxes" / box.replace("/", "_")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder


class Ended(RemoteError):
    """The user ended the controller."""


class Stop:
    """Ends controllers in other threads: a sleep of each raises Ended, once, so that they can clean up."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def clock(self) -> Clock:
        """A clock for one controller."""
        told = False

        def sleep(seconds: float) -> None:
            nonlocal told
            if told:
                time.sleep(seconds)
            elif self.event.wait(seconds):
                told = True
                raise Ended("the user ended it")

        return Clock(SYSTEM_CLOCK.now, SYSTEM_CLOCK.monotonic, sleep)


@dataclass(frozen=True)
class Desk:
    """`checkout`: what is pushed; `results`: where complete runs come to lie; `say` gets lines for the user.

    `poll_s`: pause between two looks at a job; `sync_s`: between two copies of results; `look_s`: between two
    questions to the provider whether the box still is there; `patience_s`: without contact to the box.
    """

    run: str
    settings: Settings
    provider: Provider
    journal: Journal
    results: Path
    say: Callable[[str], None] = print
    clock: Clock = SYSTEM_CLOCK
    checkout: Path = ROOT
    prefix: str = PREFIX
    poll_s: float = 2.0
    sync_s: float = 60.0
    look_s: float = 60.0
    patience_s: float = 900.0
    folder: RunFolder = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", RunFolder.of(self.journal.folder, self.run))

    def entries(self) -> list[Entry]:
        """The journal's lines of this run."""
        return [entry for entry in self.journal.read()[0] if entry.run == self.run]

    def spent(self) -> float:
        """Dollars of all boxes of the run so far."""
        return money.price_so_far(money.rents_of(self.entries()), self.clock.now())

    def key(self) -> Path:
        return self.settings.key.expanduser() if self.settings.key else self.folder.key()

    def stage_command(self, stage: str, box: Box) -> str:
        """What the box runs. Its results are named after run and stage, their rows after the machine."""
        words = ["bash", "remote/run_stage.sh", stage, *self.settings.flags]
        if name := self.run_of(stage):
            machine = "".join(sign if sign.isalnum() else "-" for sign in box.machine_id)
            words += ["--run", name, "--box", f"{box.provider}-{machine}"]
        return f"cd {CHECKOUT} && exec {shlex.join(words)}"

    def run_of(self, stage: str) -> str:
        """Name of the results of a stage; empty for one that names its runs itself, or has none."""
        return "" if stage in OWN_STAGES else f"{self.run}-{stage}"


def job_of(stage: str, command: str) -> str:
    """Name of a job: another command is another job."""
    return f"{stage}-{hashlib.sha256(command.encode()).hexdigest()[:8]}"


def write_private(path: Path, content: bytes) -> None:
    """A file of mode 0600 that appears whole. Raises RemoteError, as for a full disk."""
    new = path.with_name(f"{path.name}.new")
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)
        new.replace(path)
    except OSError as error:
        raise RemoteError(f"{path} cannot be written: {error}") from error
