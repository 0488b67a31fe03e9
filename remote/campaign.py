"""All of it: a box is rented, made ready, works, gives its results, and is seen gone.

Whatever goes wrong, and also when the user ends it, what there is of results is copied and the box is
destroyed. A controller that is killed can do neither: the same call goes on where it was, or `reap` ends the
box.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from remote import fetch, money
from remote.box import deadman, job
from remote.desk import Desk, job_of
from remote.errors import RemoteError
from remote.fetch import Arrived
from remote.follow import run_job
from remote.link import BoxLost, Link, reach, reach_steadily
from remote.prepare import SetupFailed, prepare, setup_command
from remote.providers.base import PRINT_HOST_KEYS, Box
from remote.rent import Order, give_back, keep, rent
from remote.takeover import take_up

MACHINES = 3  # that may fail at their set-up before the campaign gives up
GRACE_S = 30.0  # for a stage that is ended, to store what it has


@dataclass(frozen=True)
class Outcome:
    """`statuses`: exit status by stage; `hours`: paid for; `box`: empty when none is left."""

    run: str
    statuses: dict[str, int]
    arrived: tuple[Arrived, ...]
    dollars: float
    hours: float
    box: str

    @property
    def ok(self) -> bool:
        """Whether every stage ended well and all its results are at home."""
        return not any(self.statuses.values()) and not any(run.problems for run in self.arrived)

    def as_json(self) -> dict[str, object]:
        arrived = [dataclasses.asdict(run) | {"path": str(run.path)} for run in self.arrived]
        return dataclasses.asdict(self) | {"arrived": arrived, "ok": self.ok}


def campaign(desk: Desk, keep_failed: bool = False) -> Outcome:
    """Does all of it, or what is left of it after a controller that was killed.

    `keep_failed`: a box whose work failed stays until its deadline. Raises RunHeld when another controller
    works on the run, and RemoteError when the campaign failed; then the box is gone unless the message or a
    line before it says otherwise.
    """
    with desk.journal.hold(desk.run):
        desk.folder.keep_settings(desk.settings)
        unfit: set[str] = set()
        for left in reversed(range(MACHINES)):
            link = taken_up(desk) or hired(desk, unfit)
            try:
                with in_hand(desk, link, keep_failed):
                    statuses, arrived = work(desk, link)
                break
            except SetupFailed as error:
                if not left or keep_failed or not desk.settings.rented:
                    raise
                unfit.add(link.box.machine_id)
                desk.say(f"next machine: {error}")
        failed = any(statuses.values()) or any(run.problems for run in arrived)
        kept = keep_failed and failed
        if kept:
            hand_over(desk, link)
        else:
            release(desk, link.box, "failed" if failed else "done")
    box = link.box.id if kept else ""
    outcome = Outcome(desk.run, statuses, tuple(arrived), desk.spent(), _hours(desk), box)
    for line in final_lines(outcome, desk):
        desk.say(line)
    return outcome


def work(desk: Desk, link: Link) -> tuple[dict[str, int], list[Arrived]]:
    """Exit status by stage, and what came home. After a stage that failed the next one has its turn."""
    prepare(desk, link)
    statuses = {stage: run_stage(desk, link, stage) for stage in desk.settings.stages}
    desk.say("fetching and verifying the results")
    arrived = fetch.bring_home(desk, link)
    well = [name for stage, status in statuses.items() if status == 0 and (name := desk.run_of(stage))]
    return statuses, [*arrived, *fetch.missing(desk, link.box.id, well, arrived)]


def run_stage(desk: Desk, link: Link, stage: str) -> int:
    command = desk.stage_command(stage, link.box)
    desk.say(f"stage {stage}")
    status = run_job(desk, link, job_of(stage, command), command)
    desk.say(f"stage {stage} ended with status {status}")
    return status


def hired(desk: Desk, unfit: Collection[str] = ()) -> Link:
    """A new box that answers, not on a machine that is unfit. Raises RemoteError; then there is none."""
    wanted = desk.settings.wanted
    box = rent(
        desk.provider,
        replace(wanted, exclude_machines=wanted.exclude_machines | frozenset(unfit)),
        order(desk),
        desk.journal,
        ready=lambda box: reach(desk, box) is not None,
        say=desk.say,
        clock=desk.clock,
    )
    return _linked(desk, box)


def order(desk: Desk) -> Order:
    settings = desk.settings
    public = "" if not settings.rented else desk.key().with_suffix(".pub").read_text().strip()
    # Before anybody connects the box knows only the cap; the deadline of its label comes with `arm`.
    onstart = PRINT_HOST_KEYS + deadman.onstart(int(settings.hours * money.HOUR_S))
    return Order(desk.run, settings.image, settings.disk_gb, public, onstart, settings.caps, desk.prefix)


def taken_up(desk: Desk) -> Link | None:
    """The box that an earlier controller of the run has left, when it answers."""
    box = take_up(desk)
    if box is None:
        return None
    desk.say(f"going on with box {box.id}")
    return _linked(desk, box)


def _linked(desk: Desk, box: Box) -> Link:
    """A box that is rented but does not answer is given back."""
    try:
        return reach_steadily(desk, box)
    except BaseException as error:
        release(desk, box, str(error))
        raise


@contextmanager
def in_hand(desk: Desk, link: Link, keep_failed: bool) -> Iterator[None]:
    """However the work ends before its end: results that there are come home, then the box goes."""
    try:
        yield
    except BaseException as error:
        why = str(error) or type(error).__name__
        desk.say(f"failed: {why}")
        try:
            if not isinstance(error, SetupFailed):
                _salvage(desk, link, lost=isinstance(error, BoxLost))
        finally:
            if keep_failed:
                hand_over(desk, link)
            else:
                release(desk, link.box, why)
        raise


def release(desk: Desk, box: Box, why: str) -> None:
    """Destroys the box and sees it gone. Raises RemoteError where either fails."""
    give_back(desk.provider, box, desk.journal, desk.clock, why)
    if desk.settings.rented:
        desk.say(f"box {box.id} is destroyed and gone")


def hand_over(desk: Desk, link: Link) -> None:
    """The box is the user's until its deadline."""
    keep(link.box, desk.journal, desk.clock)
    desk.say(f"box {link.box.id} is kept until its deadline: {login(link)}")


def login(link: Link) -> str:
    """The ssh command for people."""
    return shlex.join([*link.ssh.command_line(), link.ssh.address.host])


def final_lines(outcome: Outcome, desk: Desk) -> list[str]:
    lines = [said(run) for run in outcome.arrived]
    stages = ", ".join(
        f"{stage} {'ok' if rc == 0 else f'status {rc}'}" for stage, rc in outcome.statuses.items()
    )
    price = f", ${outcome.dollars:.2f}" if desk.settings.rented else ""
    return [*lines, f"{outcome.run}: {stages}; {outcome.hours:.2f} h{price}"]


def _salvage(desk: Desk, link: Link, lost: bool) -> None:
    """What can be had of a run that failed, in one try: nobody waits for a box that costs money."""
    try:
        if not lost:
            _end_jobs(desk, link)
            fetch.sync(desk, link)
    except RemoteError as error:
        desk.say(f"the last results could not be copied: {error}")
    try:
        for run in fetch.settle(desk, link.box.id):
            desk.say(said(run))
    except RemoteError as error:
        desk.say(str(error))


def _end_jobs(desk: Desk, link: Link) -> None:
    for name in jobs(desk, link.box):
        if running(link, name):
            job.stop(link.ssh, name, GRACE_S, min(desk.poll_s, 1.0), desk.clock)


def running(link: Link, name: str) -> bool:
    """Whether there is such a job and it runs. Raises Lost."""
    link.ssh.read("true")
    try:
        return job.status(link.ssh, name).state == "running"
    except RemoteError:
        return False


def said(run: Arrived) -> str:
    if run.problems:
        return f"{run.run} is NOT at home: {'; '.join(run.problems)} ({run.path})"
    return f"{run.run} is in {run.path}"


def jobs(desk: Desk, box: Box) -> list[str]:
    """Names of the jobs that the settings of the run give, in their order."""
    commands = {"setup": setup_command(desk.settings)}
    commands |= {stage: desk.stage_command(stage, box) for stage in desk.settings.stages}
    return [job_of(what, command) for what, command in commands.items() if command]


def _hours(desk: Desk) -> float:
    now = desk.clock.now()
    return sum(money.hours(rent, now) for rent in money.rents_of(desk.entries()))
