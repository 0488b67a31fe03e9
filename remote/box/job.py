"""Detached jobs on a box. A connection only starts, polls and copies: losing it changes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from remote.box import scripts
from remote.box.errors import Lost
from remote.box.ssh import Ssh
from remote.clock import SYSTEM_CLOCK, Clock
from remote.errors import RemoteError

State = Literal["running", "ended", "lost", "unknown"]

CHUNK = 4 * 2**20
POLL_S = 2.0
PATIENCE_S = 900.0  # a box that restarts, or a provider's network, may be gone for so long
KILLED_S = 10.0  # from SIGKILL to the exit status
CALL_S = 60.0


@dataclass(frozen=True)
class JobStatus:
    """`lost`: no process and no exit status, so the box restarted or the job's supervisor was killed.
    `unknown`: the box could not be asked. `rc`: exit status, 128 + n for a command ended by signal n.
    """

    state: State
    rc: int | None = None
    log_bytes: int | None = None


def start(ssh: Ssh, name: str, command: str, again: bool = False) -> bool:
    """Starts the command in the home folder of the box, unless there is a job of this name.

    Returns whether this call started it; it may be repeated when an answer was lost. `again` starts a job
    that has ended or is lost once more, at the end of the same log. Raises RemoteError for a job of this name
    with another command.
    """
    _check_name(name)
    scripts.install(ssh)
    answer = _call(ssh, f"start {name} {'again' if again else 'new'}", command.encode() + b"\n")
    return answer.strip() == b"started"


def status(ssh: Ssh, name: str) -> JobStatus:
    """What only the files on the box can tell. Raises RemoteError when there is no such job."""
    _check_name(name)
    try:
        return _parsed(_call(ssh, f"status {name}"))
    except Lost:
        return JobStatus("unknown")


def follow(
    ssh: Ssh,
    name: str,
    offset: int = 0,
    poll_s: float = POLL_S,
    patience_s: float = PATIENCE_S,
    clock: Clock = SYSTEM_CLOCK,
    between: Callable[[], None] = lambda: None,
) -> Iterator[bytes]:
    """The bytes of the job's log from `offset` on, until the job has ended or is lost and all was read.

    Goes on after a drop where it was. `between` is called before each look, also while there is no contact:
    what it raises ends the following, and it may give `ssh` another address. Raises Lost without contact for
    `patience_s`, and RemoteError when there is no such job or its log is shorter than the offset.
    """
    _check_name(name)
    silent_since: float | None = None
    while True:
        between()
        try:
            now, chunk = _read_log(ssh, name, offset)
        except Lost as error:
            if silent_since is None:
                silent_since = clock.monotonic()
            if clock.monotonic() - silent_since >= patience_s:
                raise Lost(
                    f"job {name}: no contact for {patience_s:g} s, at offset {offset}: {error}"
                ) from error
            clock.sleep(poll_s)
            continue
        silent_since = None
        offset += len(chunk)
        if chunk:
            yield chunk
        if len(chunk) < CHUNK:
            if now.state in ("ended", "lost"):
                return
            clock.sleep(poll_s)


def stop(
    ssh: Ssh, name: str, grace_s: float = 60.0, poll_s: float = POLL_S, clock: Clock = SYSTEM_CLOCK
) -> JobStatus:
    """SIGTERM, and SIGKILL for what of the job still runs `grace_s` later or is left when it has ended.

    Returns the state then; `unknown` means that the box cannot be reached. Raises Lost when it never was.
    """
    _check_name(name)
    _call(ssh, f"signal TERM {name}")
    _await_end(ssh, name, grace_s, poll_s, clock)
    _call(ssh, f"signal KILL {name}")
    return _await_end(ssh, name, KILLED_S, poll_s, clock)


def _await_end(ssh: Ssh, name: str, limit_s: float, poll_s: float, clock: Clock) -> JobStatus:
    give_up = clock.monotonic() + limit_s
    while True:
        now = status(ssh, name)
        if now.state in ("ended", "lost") or clock.monotonic() >= give_up:
            return now
        clock.sleep(poll_s)


def _read_log(ssh: Ssh, name: str, offset: int) -> tuple[JobStatus, bytes]:
    line, _, chunk = _call(ssh, f"read {name} {offset} {CHUNK}").partition(b"\n")
    now = _parsed(line)
    if now.log_bytes is not None and offset > now.log_bytes:
        raise RemoteError(f"job {name}: its log has {now.log_bytes} bytes, the offset is {offset}")
    return now, chunk


def _call(ssh: Ssh, arguments: str, stdin: bytes = b"") -> bytes:
    return ssh.read(f"bash {scripts.FOLDER}/job.sh {arguments}", CALL_S, stdin)


def _parsed(line: bytes) -> JobStatus:
    states = "|".join(get_args(State))
    found = re.fullmatch(
        rf"({states}) (-|\d{{1,3}}) (\d{{1,18}})", line.decode(errors="replace").strip(), re.ASCII
    )
    if found is None:
        raise RemoteError(f"not the status of a job: {line[:200]!r}")
    state, rc, log_bytes = found.groups()
    return JobStatus(state, None if rc == "-" else int(rc), int(log_bytes))  # type: ignore[arg-type]


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise RemoteError(
            f"job name {name!r}: at most 100 letters, digits and . _ - are allowed, the first no sign"
        )
