"""Calls at absolute times of CLOCK_MONOTONIC, exact to microseconds on an idle core.

An event loop's own timers count in milliseconds (libuv) and wake late. A Linux timerfd wakes within about 0.1
ms; the last stretch may be spun. See timerfd_create(2).
"""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import itertools
import os
import time
from collections.abc import Callable

_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1
_NS_PER_S = 10**9


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


_libc = ctypes.CDLL(None, use_errno=True)


class Pacer:
    """Never calls early, calls late ones at once, and in order of time. One loop, no threads.

    `spin_ns` is how long before a deadline to wake and wait busily for it: 0 trades about 0.1 ms for no CPU
    time.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, spin_ns: int) -> None:
        self._loop = loop
        self._spin_ns = spin_ns
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._is_firing = False
        self._setting = _Itimerspec()
        self._timer = _checked(_libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))
        loop.add_reader(self._timer, self._fire)

    def call_at(self, deadline_ns: int, callback: Callable[[], None]) -> None:
        """Call when CLOCK_MONOTONIC (time.monotonic_ns) has reached `deadline_ns`."""
        heapq.heappush(self._queue, (deadline_ns, next(self._order), callback))
        if self._queue[0][0] == deadline_ns and not self._is_firing:
            self._arm()

    def close(self) -> None:
        """Drop what is still waiting."""
        self._loop.remove_reader(self._timer)
        os.close(self._timer)

    def _arm(self) -> None:
        wake_ns = max(self._queue[0][0] - self._spin_ns, 1)  # 0 would disarm; the past fires at once
        value = self._setting.value
        value.seconds, value.nanoseconds = divmod(wake_ns, _NS_PER_S)
        _checked(_libc.timerfd_settime(self._timer, _TFD_TIMER_ABSTIME, ctypes.byref(self._setting), None))

    def _fire(self) -> None:
        try:
            os.read(self._timer, 8)
        except BlockingIOError:
            return  # armed anew since it fired
        queue = self._queue
        # What is due now, and no more: callbacks that queue ever new ones must not keep sockets waiting.
        last_ns = time.monotonic_ns() + self._spin_ns
        due = []
        while queue and queue[0][0] <= last_ns:
            due.append(heapq.heappop(queue))
        self._is_firing = True
        for deadline_ns, _, callback in due:
            while time.monotonic_ns() < deadline_ns:
                pass
            callback()
        self._is_firing = False
        if queue:
            self._arm()


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
