"""What boxes have cost, and how long they may live. Pure functions; times are seconds since the epoch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from remote.errors import RemoteError
from remote.journal import Entry

HOUR_S = 3600.0
WAY_OUT_S = 900.0  # money kept back for a box that is destroyed only by the next reap after its deadline
SHORTEST_LIFE_S = 600.0


@dataclass(frozen=True)
class Caps:
    """Limits of a run: `hours` that a box may live, `dollars` for all its boxes together."""

    hours: float
    dollars: float

    def __post_init__(self) -> None:
        for what, value in (("hours", self.hours), ("dollars", self.dollars)):
            if not 0 < value < float("inf"):
                raise RemoteError(f"cap of {value} {what}: must be more than 0 and finite")


@dataclass(frozen=True)
class Rent:
    """One box: paid from `start`, the moment it was asked for, to `end`, or until now while that is None."""

    box: str
    dollars_per_hour: float
    start: float
    end: float | None


def hours(rent: Rent, now: float) -> float:
    """Hours paid for up to `now`; never less than 0, also when the clock was set back."""
    return max(0.0, (now if rent.end is None else rent.end) - rent.start) / HOUR_S


def price_so_far(rents: Iterable[Rent], now: float) -> float:
    """Dollars: hours x dollars per hour, summed. The provider's bill adds traffic."""
    return sum(hours(rent, now) * rent.dollars_per_hour for rent in rents)


def deadline(caps: Caps, dollars_per_hour: float, now: float, spent: float = 0.0, boxes: int = 1) -> int:
    """When a box rented now must be gone, so that `boxes` such boxes keep the caps after `spent` dollars.

    Raises RemoteError when the caps leave less than SHORTEST_LIFE_S.
    """
    left = caps.dollars - spent
    life_s = caps.hours * HOUR_S
    if dollars_per_hour > 0:
        life_s = min(life_s, left / (boxes * dollars_per_hour) * HOUR_S - WAY_OUT_S)
    if life_s < SHORTEST_LIFE_S:
        raise RemoteError(
            f"caps of {caps.hours:g} h and ${caps.dollars:.2f}, of which ${spent:.2f} is spent, allow "
            f"{boxes} box(es) at ${dollars_per_hour:.3f}/h {max(life_s, 0) / 60:.0f} min "
            f"({WAY_OUT_S / 60:.0f} min kept for the way out); the least is {SHORTEST_LIFE_S / 60:.0f} min"
        )
    return int(now + life_s)


def exceeded(caps: Caps, rents: Iterable[Rent], now: float) -> str | None:
    """Why the run must end now; None while the caps are kept."""
    rents = list(rents)
    spent = price_so_far(rents, now)
    if spent >= caps.dollars:
        return f"${spent:.2f} is spent, the cap is ${caps.dollars:.2f}"
    for rent in rents:
        if rent.end is None and hours(rent, now) >= caps.hours:
            name = rent.box or "(id not known)"
            return f"box {name} is paid for {hours(rent, now):.2f} h, the cap is {caps.hours:g} h"
    return None


def rents_of(entries: Sequence[Entry]) -> list[Rent]:
    """What was rented by the journal's lines, which may be those of one run or of all.

    A create whose answer is not known counts from its intent until it is cleared: no price is told too low.
    """
    open_rents: dict[tuple[str, str], Rent] = {}
    closed: list[Rent] = []
    for entry in entries:
        pending = (entry.label, "")
        key = (entry.label, entry.box)
        if entry.step == "intent":
            open_rents[pending] = Rent("", entry.dollars_per_hour, entry.at, None)
        elif entry.step == "refused" or (entry.step == "cleared" and not entry.box):
            open_rents.pop(pending, None)
        elif entry.step in ("cleared", "destroyed"):
            ended = open_rents.pop(key, None) or open_rents.pop(pending, None)
            if ended:
                closed.append(Rent(entry.box, ended.dollars_per_hour, ended.start, entry.at))
        elif entry.box:
            begun = open_rents.pop(pending, None) or open_rents.get(key)
            if begun:
                price = entry.dollars_per_hour or begun.dollars_per_hour
                open_rents[key] = Rent(entry.box, price, begun.start, None)
    return closed + list(open_rents.values())
