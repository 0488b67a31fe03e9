"""What the journal knows of runs: box, price so far, time left. Asks no provider."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from remote import money
from remote.clock import SYSTEM_CLOCK, Clock
from remote.errors import RemoteError
from remote.journal import Entry, Journal, RunHeld
from remote.takeover import OVER


@dataclass(frozen=True)
class Row:
    """`step`: the last line of the journal; `at_work`: a controller holds the run; `dollars`: price so far;
    `minutes_left`: to the deadline of a box that may exist, else None.
    """

    run: str
    step: str
    box: str
    machine: str
    at_work: bool
    dollars_per_hour: float
    dollars: float
    hours: float
    minutes_left: float | None
    note: str


def status(journal: Journal, run: str | None = None, clock: Clock = SYSTEM_CLOCK) -> list[Row]:
    """A row for each run, or for one. Raises RemoteError for a run that the journal does not know."""
    entries = journal.read()[0]
    runs = list(dict.fromkeys(entry.run for entry in entries)) if run is None else [run]
    rows = [_row(journal, [entry for entry in entries if entry.run == name], clock.now()) for name in runs]
    if run is not None and rows == [None]:
        raise RemoteError(f"the journal {journal.path} knows no run {run}")
    return [row for row in rows if row is not None]


def table(rows: Sequence[Row]) -> list[str]:
    """Lines for a person."""
    if not rows:
        return ["no run yet"]
    heads = ("run", "step", "box", "machine", "$/h", "$ so far", "hours", "min left", "controller")
    lines = [heads]
    for row in rows:
        left = "" if row.minutes_left is None else f"{row.minutes_left:.0f}"
        prices = (f"{row.dollars_per_hour:.3f}", f"{row.dollars:.2f}", f"{row.hours:.2f}")
        at_work = "at work" if row.at_work else ""
        lines.append((row.run, row.step, row.box, row.machine, *prices, left, at_work))
    return aligned(lines)


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


def _row(journal: Journal, entries: Sequence[Entry], now: float) -> Row | None:
    if not entries:
        return None
    last = entries[-1]
    rents = money.rents_of(entries)
    return Row(
        run=last.run,
        step=last.step,
        box=last.box,
        machine=last.machine,
        at_work=_at_work(journal, last.run),
        dollars_per_hour=last.dollars_per_hour,
        dollars=money.price_so_far(rents, now),
        hours=sum(money.hours(rent, now) for rent in rents),
        minutes_left=None if last.step in OVER else (last.deadline - now) / 60,
        note=last.note,
    )


def _at_work(journal: Journal, run: str) -> bool:
    try:
        with journal.hold(run, shared=True):
            return False
    except RunHeld:
        return True
