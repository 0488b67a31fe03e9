"""Time as an argument, so that tests need not wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    """`now`: seconds since the epoch; `monotonic`: seconds that no change of the clock disturbs."""

    now: Callable[[], float]
    monotonic: Callable[[], float]
    sleep: Callable[[float], None]


SYSTEM_CLOCK = Clock(now=time.time, monotonic=time.monotonic, sleep=time.sleep)
