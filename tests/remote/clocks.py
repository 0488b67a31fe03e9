"""A clock that only sleeping moves."""

from __future__ import annotations

from remote.clock import Clock

START = 1_800_000_000.0


class StillClock:
    """`slept`: every pause that was asked for, in seconds."""

    def __init__(self, start: float = START) -> None:
        self.time = start
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds

    @property
    def clock(self) -> Clock:
        return Clock(now=lambda: self.time, monotonic=lambda: self.time, sleep=self.sleep)
