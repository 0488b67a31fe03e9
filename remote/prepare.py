"""A box that answers is made ready: its dead-man switch first, then the source, then its environments."""

from __future__ import annotations

import shlex
import threading
from pathlib import Path

from remote.box import deadman
from remote.desk import CHECKOUT, RESULTS, Desk, job_of, write_private
from remote.errors import RemoteError
from remote.follow import Log, run_job
from remote.labels import parse_label
from remote.link import Link
from remote.settings import Settings

SOURCE_FILE = ".source.json"
HOUSES = "llm-ladder/houses"  # on the box, in its home folder
RSYNC_S = 300.0
GET_RSYNC = (
    "command -v rsync >/dev/null || "
    "{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq rsync; } >/dev/null"
)
_recording = threading.Lock()  # boxes that are prepared at the same time share the checkout


class SetupFailed(RemoteError):
    """The machine does not do, or its environments could not be made: another one may do."""


def prepare(desk: Desk, link: Link) -> None:
    """May be called again at any point; source that is on the box stays as it is, since a stage may run."""
    arm(desk, link)
    if not desk.folder.pushed(link.box.id).exists():
        push(desk, link)
    set_up(desk, link)


def arm(desk: Desk, link: Link) -> None:
    """From now on a rented box ends at its deadline whatever becomes of the controller.

    Of a box of one's own only the jobs end.
    """
    label = parse_label(link.box.label)
    if label is None:
        raise RemoteError(f"box {link.box.id} has the label {link.box.label!r}, which has no deadline")
    left = int(label.deadline - desk.clock.now())
    ends = "box" if desk.settings.rented else "jobs"
    link.steadily(lambda: deadman.arm(link.ssh, left, ends, desk.clock))
    desk.say(f"dead-man switch armed: {left / 60:.0f} min")


def push(desk: Desk, link: Link) -> None:
    """The checkout without what git ignores, and the record of which code it is."""
    desk.say("pushing the source")
    record = source_record(desk.checkout)
    if desk.settings.rented:
        link.steadily(lambda: link.ssh.read(GET_RSYNC, RSYNC_S))
    link.steadily(lambda: link.ssh.push(desk.checkout, CHECKOUT))
    link.steadily(lambda: link.ssh.write(f"{CHECKOUT}/{SOURCE_FILE}", record))
    link.steadily(lambda: link.ssh.read(f"mkdir -p {RESULTS}"))
    write_private(desk.folder.pushed(link.box.id), b"")


def source_record(checkout: Path) -> bytes:
    """What `python -m harness source` writes; a checkout without git must have brought it."""
    with _recording:
        if (checkout / ".git").exists():
            # Here, because its import takes seconds, and most tasks do without.
            from harness.source import write_source_file

            write_source_file(checkout)
        try:
            return (checkout / SOURCE_FILE).read_bytes()
        except OSError as error:
            raise RemoteError(f"{checkout} has no git and no {SOURCE_FILE}: {error}") from error


def set_up(desk: Desk, link: Link) -> None:
    """Raises SetupFailed with the last words of the set-up."""
    command = setup_command(desk.settings)
    if not command:
        return
    for house in desk.settings.wheelhouses:
        desk.say(f"pushing {house.name}")
        link.steadily(lambda house=house: link.ssh.push(house, f"{HOUSES}/{house.name}", ()))
    name = job_of("setup", command)
    desk.say("setting up")
    status = run_job(desk, link, name, command)
    if status != 0:
        said = Log(desk.folder.log(link.box.id, name), desk).last_lines()
        raise SetupFailed(f"set-up of box {link.box.id} ended with status {status}: {said}")


def setup_command(settings: Settings) -> str:
    """Empty when there is nothing to set up: run_stage.sh makes the project's environment itself."""
    calls = [
        f'bash remote/wheelhouse.sh install "$HOME"/{shlex.quote(f"{HOUSES}/{house.name}")}'
        for house in settings.wheelhouses
    ]
    if settings.systems:
        calls.append(f"bash remote/setup_gpu_box.sh {' '.join(settings.systems)}")
    return " && ".join([f"cd {CHECKOUT}", *calls]) if calls else ""
