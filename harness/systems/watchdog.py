"""Runs one server and outlives it: nothing of the server is left behind, however the harness ends.

Started as a script with the process id of the harness and the server's command line. It ends the server and
all of its descendants when the harness asks (SIGTERM), when the harness dies in whatever way, kill -9
included (the kernel then sends SIGTERM, PR_SET_PDEATHSIG), and when the server's first process is gone. As
"child subreaper" it inherits descendants whose parents died, also those that left the server's process group.
Standard library only: it must run without the packages of any environment.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

GRACE_S = 20.0
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


class _Stop(Exception):
    pass


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def _stop(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Stop


def descendants(root: int) -> list[int]:
    """Process ids of all descendants of a process, parents before children, from /proc/<pid>/stat."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(fields[1])
    found: list[int] = []
    generation = {root}
    while generation:
        generation = {pid for pid, parent in parents.items() if parent in generation}
        found += generation
    return found


def _signal_descendants(number: signal.Signals) -> None:
    for pid in descendants(os.getpid()):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _kill_descendants() -> None:
    """SIGKILL until no child is left; what is orphaned meanwhile arrives here as a child."""
    while True:
        _signal_descendants(signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            return
        time.sleep(0.02)


def _end(server: "subprocess.Popen[bytes]") -> None:
    """SIGTERM to the first process, SIGKILL to what is left. A frozen server is woken: it must be able to
    hear."""
    if server.poll() is None:
        began = time.monotonic()
        server.terminate()
        _signal_descendants(signal.SIGCONT)
        try:
            server.wait(GRACE_S)
            print(f"watchdog: server ended {time.monotonic() - began:.1f} s after SIGTERM", flush=True)
        except subprocess.TimeoutExpired:
            print(f"watchdog: no end within {GRACE_S:g} s of SIGTERM, killing", flush=True)
    _kill_descendants()


def main(harness_pid: int, command: list[str]) -> int:
    """Exit status of the server's first process, or 0 when it was told to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != harness_pid:
        return 0
    server = None
    try:
        server = subprocess.Popen(command, start_new_session=True)
        return server.wait()
    except _Stop:
        return 0
    finally:
        if server is not None:
            _end(server)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
