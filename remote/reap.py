"""Ends every box that is overdue or that no controller works for any more.

A box lives as long as the controller that rented it, or, once it is handed to the user (`kept`), until the
deadline in its label. Boxes of other machines are known by their label only, and end at their deadline. May
run at any time, also twice at once: from cron, it keeps a box from outliving a controller that was killed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Literal

from remote import money, providers
from remote.clock import SYSTEM_CLOCK, Clock
from remote.errors import RemoteError
from remote.journal import Entry, Journal, RunHeld, state_folder
from remote.labels import PREFIX, parse_label
from remote.printable import printable
from remote.providers.base import Box, Provider
from remote.rent import POLL_S, SETTLE_S, give_back

Action = Literal["destroyed", "would destroy", "left", "not destroyed"]


@dataclass(frozen=True)
class Finding:
    """What was done about a box and why. `dollars`: price so far, None where its start is not known."""

    box: str
    label: str
    machine: str
    action: Action
    reason: str
    dollars: float | None


@dataclass(frozen=True)
class Report:
    """`pending`: runs with a request so young that its box may yet appear; `damaged`: unreadable lines."""

    findings: tuple[Finding, ...]
    pending: tuple[str, ...]
    damaged: int

    @property
    def clean(self) -> bool:
        """Whether nothing is left that ought to be gone, or that cannot be judged."""
        bad = any(finding.action == "not destroyed" for finding in self.findings)
        return not bad and not self.pending


def reap(
    provider: Provider,
    journal: Journal,
    prefix: str = PREFIX,
    dry_run: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> Report:
    """Sweeps until no request is so young that its box may yet appear (at most SETTLE_S seconds).

    Raises RemoteError when the provider's list or the journal cannot be had: then nothing is known.
    """
    findings: dict[str, Finding] = {}
    while True:
        report = sweep(provider, journal, prefix, dry_run, clock)
        findings.update((finding.box, finding) for finding in report.findings)
        if not report.pending or dry_run:
            return replace(report, findings=tuple(findings.values()))
        clock.sleep(POLL_S)


def sweep(
    provider: Provider, journal: Journal, prefix: str, dry_run: bool, clock: Clock = SYSTEM_CLOCK
) -> Report:
    """One look at all boxes."""
    # The list first: a box that is in it has its line in the journal by now.
    boxes = provider.boxes("")
    entries = _of(provider, journal)
    ours = [box for box in (_labelled(box, entries) for box in boxes) if box.label.startswith(f"{prefix}/")]
    findings = [_treat(provider, box, journal, dry_run, clock) for box in ours]
    pending = list(_settle(provider, journal, dry_run, clock))
    if not dry_run:
        _note_gone(provider, journal, {box.id for box in boxes}, clock)
    return Report(tuple(findings), tuple(pending), journal.read()[1])


def judge(box: Box, entries: Sequence[Entry], held: bool, now: float) -> tuple[bool, str]:
    """Whether the box is to end, and why. `held`: a controller works on its run."""
    label = parse_label(box.label)
    if label is None:
        return False, "its label has no deadline, and no line of the journal names it: look at it yourself"
    if now >= label.deadline:
        return True, f"overdue by {(now - label.deadline) / 60:.0f} min"
    left = f"{(label.deadline - now) / 60:.0f} min before its deadline"
    if held:
        return False, f"its run is at work, {left}"
    if not any(entry.run == label.run for entry in entries):
        return False, f"rented from another machine, {left}"
    steps = [entry.step for entry in entries if entry.box == box.id]
    if steps and steps[-1] in ("destroying", "destroyed", "unclear", "cleared"):
        return True, "it was to be destroyed"
    if "kept" in steps:
        return False, f"kept by its user, {left}"
    return True, "its controller is gone"


def _labelled(box: Box, entries: Sequence[Entry]) -> Box:
    """The provider may lose a label, or refuse a request and yet make a box: the journal knows its id."""
    known = [entry.label for entry in entries if entry.box == box.id]
    return replace(box, label=known[-1]) if known and parse_label(box.label) is None else box


def _treat(provider: Provider, box: Box, journal: Journal, dry_run: bool, clock: Clock) -> Finding:
    label = parse_label(box.label)
    with _held(journal, label.run if label else None) as held:
        end, reason = judge(box, _of(provider, journal), held, clock.now())
        if not end:
            return _finding(box, "left" if label else "not destroyed", reason, clock)
        if dry_run:
            return _finding(box, "would destroy", reason, clock)
        try:
            give_back(provider, box, journal, clock, f"reap: {reason}")
        except RemoteError as error:
            return _finding(box, "not destroyed", f"{reason}; {error}", clock)
        return _finding(box, "destroyed", reason, clock)


def _settle(provider: Provider, journal: Journal, dry_run: bool, clock: Clock) -> Iterator[str]:
    """Runs with a request of unknown outcome. What is old enough is noted as cleared."""
    last = {entry.label: entry for entry in _of(provider, journal)}
    for label, entry in last.items():
        if entry.step not in ("intent", "unclear"):
            continue
        with _held(journal, entry.run) as held:
            latest = [other for other in _of(provider, journal) if other.label == label][-1]
            if held or latest != entry:
                continue
            if clock.now() - entry.at < SETTLE_S:
                yield entry.run
            elif not dry_run:
                journal.write(entry.model_copy(update={"at": clock.now(), "step": "cleared", "note": "reap"}))


def _note_gone(provider: Provider, journal: Journal, listed: Collection[str], clock: Clock) -> None:
    """What is gone without a line that says so, as when its controller was killed, costs no more from now."""
    for label, entry in {entry.label: entry for entry in _of(provider, journal)}.items():
        young = clock.now() - entry.at < SETTLE_S
        if entry.step not in ("created", "running", "kept", "destroying") or entry.box in listed or young:
            continue
        with _held(journal, entry.run) as held:
            latest = [other for other in _of(provider, journal) if other.label == label][-1]
            if not held and latest == entry and provider.box(entry.box) is None:
                gone = {"at": clock.now(), "step": "destroyed", "note": "reap: it was gone"}
                journal.write(entry.model_copy(update=gone))


@contextmanager
def _held(journal: Journal, run: str | None) -> Iterator[bool]:
    """Whether a controller holds the run; otherwise none can take it up meanwhile."""
    with ExitStack() as stack:
        held = False
        if run is not None:
            try:
                stack.enter_context(journal.hold(run, shared=True))
            except RunHeld:
                held = True
        yield held


def _of(provider: Provider, journal: Journal) -> list[Entry]:
    return [entry for entry in journal.read()[0] if entry.provider == provider.name]


def _finding(box: Box, action: Action, reason: str, clock: Clock) -> Finding:
    started = box.started_at
    rent = money.Rent(box.id, box.dollars_per_hour, started, None) if started is not None else None
    dollars = money.price_so_far([rent], clock.now()) if rent else None
    return Finding(box.id, box.label, box.machine_id, action, reason, dollars)


def show(report: Report, say: Callable[[str], None] = print) -> None:
    for finding in report.findings:
        price = "" if finding.dollars is None else f", ${finding.dollars:.2f} so far"
        box = f"box {finding.box} ({finding.label}) on machine {finding.machine}"
        say(printable(f"{finding.action}: {box}: {finding.reason}{price}"))
    for run in report.pending:
        say(f"pending: a box of run {run} may yet appear: call again in {SETTLE_S / 60:.0f} min")
    if report.damaged:
        say(f"the journal has {report.damaged} unreadable line(s), from writers that were killed")
    if not report.findings and not report.pending:
        say("no box")


def main(arguments: Sequence[str] | None = None) -> int:
    """Status 0: nothing is left that ought to be gone; 1: something is, or nothing is known."""
    parser = argparse.ArgumentParser("python -m remote.reap", description="End overdue and orphaned boxes.")
    parser.add_argument("--provider", default="vast")
    parser.add_argument("--prefix", default=PREFIX, help="first part of the labels")
    parser.add_argument("--dry-run", action="store_true", help="say what would be destroyed")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    try:
        report = reap(providers.connect(given.provider), Journal(state_folder()), given.prefix, given.dry_run)
    except RemoteError as error:
        print(printable(f"reap: {error}"), file=sys.stderr)
        return 1
    if given.json:
        print(json.dumps(dataclasses.asdict(report) | {"clean": report.clean}))
    else:
        show(report)
    return 0 if report.clean else 1


if __name__ == "__main__":
    sys.exit(main())
