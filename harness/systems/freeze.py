"""Holds a server still without stopping it: its memory stays, no thread of it runs.

A process that is stopped neither forks nor notices that its children are. GPU work that was queued before
still completes; so a server should be idle when it is frozen.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from harness.systems.base import ServerError
from harness.systems.watchdog import descendants

STOP_LIMIT_S = 10.0
LOOK_INTERVAL_S = 0.002
STOPPED_STATES = frozenset("TtZX")


def freeze(root: int) -> None:
    """Stops every thread of every descendant of process `root`, and returns when all stand still.

    Parents come before their children. A process may fork until the stop reaches it, so it is over when two
    looks in a row find the same processes and all of them stopped. Raises ServerError for one that does not
    stop, with all of them running again.
    """
    deadline = time.monotonic() + STOP_LIMIT_S
    seen: set[int] | None = None
    while True:
        pids = descendants(root)
        running = [pid for pid in pids if not _stands_still(pid)]
        if not running and seen == set(pids):
            return
        if time.monotonic() > deadline:
            thaw(root)
            raise ServerError(f"processes {running} of the server do not stop within {STOP_LIMIT_S:g} s")
        for pid in running:
            _send(pid, signal.SIGSTOP)
        seen = set(pids)
        time.sleep(LOOK_INTERVAL_S)


def thaw(root: int) -> None:
    """Lets every descendant of `root` run again, children first: a parent finds them alive. One that runs
    already goes on undisturbed."""
    for pid in reversed(descendants(root)):
        _send(pid, signal.SIGCONT)


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _stands_still(pid: int) -> bool:
    """No thread of it runs: each is stopped, or ended. So also when the process is gone."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return True
    return all(_state(thread) in STOPPED_STATES for thread in threads)


def _state(thread: Path) -> str:
    """State letter of a thread, see proc_pid_stat(5); X, dead, when it is gone."""
    try:
        return (thread / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return "X"
