"""The dead-man switch of a box, armed before any work: nobody need be there for the spending to end."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from typing import Literal

from remote.box import scripts
from remote.box.ssh import Ssh
from remote.clock import SYSTEM_CLOCK, Clock
from remote.errors import RemoteError

Ends = Literal["jobs", "box"]

STARTS_S = 20.0
MAX_ONSTART = 3500  # characters; Vast.ai takes 4,048, and the box prints its host keys as well


@dataclass(frozen=True)
class Deadman:
    """`off`: no process watches. `seconds_left` is negative when the deadline has passed."""

    state: Literal["armed", "fired", "off"]
    seconds_left: int


def arm(ssh: Ssh, seconds: int, ends: Ends, clock: Clock = SYSTEM_CLOCK) -> None:
    """Ends the jobs of the box, or all of it, `seconds` from now; a later call extends or shortens the time.

    Seconds, not a date: the clock of the box may be wrong. Raises RemoteError unless the switch then says
    that it is armed.
    """
    _check_seconds(seconds)
    scripts.install(ssh)
    ssh.read(f"bash {scripts.FOLDER}/deadman.sh arm {seconds} {ends}")
    give_up = clock.monotonic() + STARTS_S
    while (now := status(ssh)).state != "armed":
        if now.state == "fired" or clock.monotonic() >= give_up:
            raise RemoteError(f"the dead-man switch of {ssh} is {now.state} just after it was armed")
        clock.sleep(0.2)


def status(ssh: Ssh) -> Deadman:
    """Raises RemoteError where no switch is installed."""
    answer = ssh.read(f"bash {scripts.FOLDER}/deadman.sh status").decode(errors="replace")
    found = re.fullmatch(r"(armed|fired|off) (-?\d{1,12})", answer.strip(), re.ASCII)
    if found is None:
        raise RemoteError(f"not the status of a dead-man switch: {answer[:200]!r}")
    return Deadman(found[1], int(found[2]))  # type: ignore[arg-type]


def onstart(seconds: int) -> str:
    """A script for the start of a rented box that arms its switch, also when nobody ever connects.

    A box that restarts goes on with the deadline it had. What ends jobs comes with the first job.
    """
    _check_seconds(seconds)
    packed = base64.b64encode(scripts.archive(("deadman.sh", "power_down.sh"))).decode()
    script = (
        f'export HOME="${{HOME:-/root}}"; cd; base64 -d <<END | ({scripts.INSTALL})\n{packed}\nEND\n'
        f"bash {scripts.FOLDER}/deadman.sh resume {seconds} box\n"
    )
    if len(script) > MAX_ONSTART:
        raise RemoteError(f"the start script has {len(script)} characters, the limit is {MAX_ONSTART}")
    return script


def _check_seconds(seconds: int) -> None:
    if seconds <= 0:
        raise RemoteError(f"dead-man switch: {seconds} s, at least 1 is needed")
