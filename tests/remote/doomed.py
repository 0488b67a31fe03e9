"""A controller, or a reaper, that is killed at a step: `python -m tests.remote.doomed WHAT STEP URL STATE`.

A step is `before` or `after` a call of the provider or a line of the journal, or `torn`: in mid-line.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remote.clock import Clock
from remote.journal import Entry, Journal
from remote.money import Caps
from remote.providers.base import Wanted
from remote.providers.rest import Api, Key
from remote.providers.vast import Vast
from remote.reap import reap
from remote.rent import Order, give_back, keep, rent

RUN = "doomed"
WANTED = Wanted(gpu="RTX 4090", num_gpus=1, gpu_ram_gb=24, disk_gb=73, max_dollars_per_hour=1.0)
ORDER = Order(RUN, "vendor/image:1", 73, "ssh-ed25519 AAAA", "true", Caps(hours=3, dollars=5))


class HastyClock:
    """Real time, in which sleeping is nearly free."""

    ahead = 0.0

    def now(self) -> float:
        return time.time() + self.ahead

    def sleep(self, seconds: float) -> None:
        self.ahead += seconds
        time.sleep(0.001)

    @property
    def clock(self) -> Clock:
        return Clock(now=self.now, monotonic=self.now, sleep=self.sleep)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class Watched:
    """An object whose calls are steps."""

    inner: Any
    fatal: str

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.inner, name)
        return self._watch(name, value) if callable(value) else value

    def _watch(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*given: Any, **more: Any) -> Any:
            if self.fatal == f"before {name}":
                die()
            result = call(*given, **more)
            if self.fatal == f"after {name}":
                die()
            return result

        return step


@dataclass(frozen=True)
class WatchedJournal(Journal):
    fatal: str

    def write(self, entry: Entry) -> None:
        if self.fatal == f"before line {entry.step}":
            die()
        if self.fatal == f"torn line {entry.step}":
            os.pwrite = lambda file, line, at: (_write(file, line[: len(line) // 2], at), die())[0]
        super().write(entry)
        if self.fatal == f"after line {entry.step}":
            die()


_write = os.pwrite


def main(what: str, step: str, url: str, state: str) -> None:
    clock = HastyClock().clock
    journal = WatchedJournal(Path(state), step)
    vast = Watched(Vast(Api(url, Key(os.environ["VAST_API_KEY"]), clock, timeout_s=10.0)), step)
    if what == "reap":
        reap(vast, journal, clock=clock)
        return
    with journal.hold(RUN):
        box = rent(vast, WANTED, ORDER, journal, say=lambda line: None, clock=clock)
        if what == "keep":
            keep(box, journal, clock)
            return
        if step == "at work":
            die()
        give_back(vast, box, journal, clock)


if __name__ == "__main__":
    main(*sys.argv[1:])
