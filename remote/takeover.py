"""What an earlier controller of the run has left: a box that can be used, and nothing else."""

from __future__ import annotations

from dataclasses import replace

from remote.desk import Desk
from remote.errors import RemoteError
from remote.journal import Entry
from remote.labels import parse_label
from remote.providers.base import Box
from remote.rent import POLL_S, SETTLE_S, give_back

USABLE = ("running", "kept")
OVER = ("refused", "cleared", "destroyed")


def box_of(desk: Desk) -> Box | None:
    """The box that the run has by its journal, as the provider describes it now; None without one."""
    found = [entry for entry in _last_steps(desk) if entry.step in USABLE]
    return _seen(desk, found[-1]) if found else None


def take_up(desk: Desk) -> Box | None:
    """The usable box of the run, None without one. All else that the run has left is destroyed.

    The caller holds the run's lock. Raises RemoteError when something cannot be seen or destroyed.
    """
    usable: Box | None = None
    for entry in _last_steps(desk):
        if entry.step in OVER:
            continue
        if entry.step in ("intent", "unclear"):
            _clear(desk, entry)
            continue
        seen = _seen(desk, entry) if entry.step in USABLE and usable is None else None
        if seen is not None and seen.state == "running" and desk.clock.now() < entry.deadline:
            usable = seen
        else:
            desk.say(f"destroying box {entry.box}, left by an earlier controller")
            give_back(desk.provider, _box(entry), desk.journal, desk.clock, "left by an earlier controller")
    return usable


def _last_steps(desk: Desk) -> list[Entry]:
    """The last line of each request of the run, in order of the requests."""
    return list({entry.label: entry for entry in desk.entries()}.values())


def _seen(desk: Desk, entry: Entry) -> Box | None:
    seen = desk.provider.box(entry.box)
    price = entry.dollars_per_hour
    return None if seen is None else replace(seen, label=entry.label, dollars_per_hour=price)


def _box(entry: Entry) -> Box:
    price = entry.dollars_per_hour
    return Box(entry.box, entry.provider, entry.label, entry.machine, "starting", (), price, None)


def _clear(desk: Desk, entry: Entry) -> None:
    """Destroys what a request without an answer has made, waiting for it to appear."""
    if parse_label(entry.label) is None:
        raise RemoteError(f"the journal has the label {entry.label!r}, which is not PREFIX/RUN/DEADLINE")
    while True:
        found = {box.id for box in desk.provider.boxes(entry.label)} | ({entry.box} if entry.box else set())
        for box_id in sorted(found):
            desk.say(f"destroying box {box_id}, made by a request without an answer")
            desk.provider.destroy(box_id)
        # What costs nothing was not rented, and nothing of it can appear.
        if found or not entry.dollars_per_hour or desk.clock.now() - entry.at >= SETTLE_S:
            at, box_id = desk.clock.now(), min(found, default="")
            desk.journal.write(entry.model_copy(update={"at": at, "step": "cleared", "box": box_id}))
            return
        desk.clock.sleep(POLL_S)
