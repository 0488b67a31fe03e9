"""From an API key to results at home: rent a GPU box, run stages on it, fetch what they measured.

Call `fab` in this folder. RUNBOOK.md has the settings file, the steps in order, and what to do when one
fails.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fabric import task
from invoke import Context, Exit

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from remote import campaign as whole
from remote import fetch as fetching
from remote import matrix, providers, rehearsal
from remote import prepare as preparing
from remote import reap as reaping
from remote import status as standing
from remote.desk import Desk, RunFolder, Stop
from remote.errors import RemoteError
from remote.follow import follow
from remote.journal import Journal, state_folder
from remote.link import Link, reach_steadily
from remote.printable import printable
from remote.rent import keep
from remote.settings import ROOT, Settings, check_stage, load
from remote.takeover import box_of, take_up

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
HELP = {
    "settings": "TOML file: which box, caps, stages (RUNBOOK.md has one)",
    "run": "run id: what you call it; the first word of its results' names",
    "dry_run": "say what would be done, and do nothing",
    "json": "for programs, on stdout; all else goes to stderr",
    "box": "one of the boxes of the settings file",
    "results": "where complete runs go (default: results/v1 of this checkout)",
}


def _task(**texts: str) -> Callable[[Callable[..., Any]], Any]:
    """A task whose flags have the usual help, and words of their own besides."""

    def wrap(body: Callable[..., Any]) -> Any:
        names = body.__code__.co_varnames[1 : body.__code__.co_argcount]
        help_of = {name: text for name, text in (HELP | texts).items() if name in names}
        return task(help=help_of, auto_shortflags=False)(body)

    return wrap


@_task()
def offers(c: Context, settings: str, box: str = "", json: bool = False) -> None:
    """Offers that have all that the settings want, the cheapest first."""
    with _told():
        wanted = _one(settings, box)
        found = providers.connect(wanted.provider).offers(wanted.wanted)
        _print(found, json, rehearsal.offer_lines(found))


@_task()
def rent(c: Context, settings: str, run: str = "", box: str = "", dry_run: bool = False) -> None:
    """Rent a box, and keep it until its deadline or `destroy`."""
    with _told():
        desk = _new_desk(_one(settings, box), run or _run_id(settings))
        if dry_run:
            return _lines(rehearsal.rent_lines(desk))
        with desk.journal.hold(desk.run):
            desk.folder.keep_settings(desk.settings)
            if take_up(desk) is not None:
                raise RemoteError(f"run {desk.run} has a box already")
            link = whole.hired(desk)
            keep(link.box, desk.journal)
        desk.say(f"box {link.box.id} of run {desk.run} is rented; to log in: {whole.login(link)}")


@_task()
def push(c: Context, run: str, dry_run: bool = False) -> None:
    """Push the source of this checkout to the box of a run."""
    if dry_run:
        return _rehearse(run, rehearsal.push_lines)
    _on_box(run, preparing.push)


@_task()
def prepare(c: Context, run: str, dry_run: bool = False) -> None:
    """Arm the dead-man switch, push the source if that is missing, make the environments."""
    if dry_run:
        return _rehearse(run, rehearsal.prepare_lines)
    _on_box(run, preparing.prepare)


@_task(stage="name of a stage, as for run_stage.sh; the word after `run` will do")
def run(c: Context, stage: str, run: str, dry_run: bool = False) -> None:
    """Run a stage on the box of a run as a detached job, and follow it to its end."""

    def work(desk: Desk, link: Link) -> None:
        check_stage(stage, desk.checkout)
        if status := whole.run_stage(desk, link, stage):
            raise Exit(code=status)

    if dry_run:
        return _rehearse(run, lambda desk: rehearsal.stage_lines(desk, [stage]))
    _on_box(run, work)


@_task()
def attach(c: Context, run: str) -> None:
    """Follow what runs on the box of a run, from where it was followed last."""

    def work(desk: Desk, link: Link) -> None:
        names = [name for name in whole.jobs(desk, link.box) if whole.running(link, name)]
        for name in names:
            desk.say(f"following {name} on box {link.box.id}")
            follow(desk, link, name)
        if not names:
            desk.say(f"nothing of run {run} is running on box {link.box.id}")

    _on_box(run, work)


@_task()
def status(c: Context, run: str = "", json: bool = False) -> None:
    """Every run, or one: its box, price so far, time left, and whether a controller is at work."""
    with _told():
        rows = standing.status(Journal(state_folder()), run or None)
        _print(rows, json, standing.table(rows))


@_task()
def fetch(c: Context, run: str, results: str = "", dry_run: bool = False, json: bool = False) -> None:
    """Copy the results of a run from its box, verify them, and put what is complete into results/v1."""

    def work(desk: Desk, link: Link) -> None:
        arrived = fetching.bring_home(desk, link)
        _print(arrived, json, [whole.said(one) for one in arrived] or ["no result yet"])
        if any(one.problems for one in arrived):
            raise Exit(code=1)

    if dry_run:
        return _rehearse(run, rehearsal.fetch_lines, results)
    _on_box(run, work, results, quiet=json)


@_task()
def destroy(c: Context, run: str, dry_run: bool = False) -> None:
    """Destroy the box of a run and see it gone; what was not fetched is lost."""
    if dry_run:
        return _rehearse(run, rehearsal.destroy_lines)
    with _told():
        desk = _old_desk(run)
        with desk.journal.hold(run):
            box = take_up(desk)
            if box is None:
                return desk.say(f"run {run} has no box")
            whole.release(desk, box, "destroyed by its user")


@_task(provider="who rents the boxes out (default: vast)")
def reap(c: Context, provider: str = "vast", dry_run: bool = False, json: bool = False) -> None:
    """End every box that is overdue or that no controller works for any more (for cron, too)."""
    with _told():
        report = reaping.reap(providers.connect(provider), Journal(state_folder()), dry_run=dry_run)
        if json:
            _print([dataclasses.asdict(report) | {"clean": report.clean}], True, [])
        else:
            reaping.show(report)
        if not report.clean:
            raise Exit(code=1)


@_task(keep="a box whose work failed stays until its deadline")
def campaign(
    c: Context,
    settings: str = "",
    run: str = "",
    results: str = "",
    keep: bool = False,
    dry_run: bool = False,
    json: bool = False,
) -> None:
    """All of it for every box of the settings: rent to destroy; with --run alone, go on with a run."""
    with _told():
        desks, stop = _desks(settings, run, results, quiet=json)
        if dry_run:
            return _lines(line for desk in desks for line in rehearsal.campaign_lines(desk))
        outcomes = matrix.campaigns(desks, stop, keep)
        name = run or desks[0].run
        joined = matrix.merged(name, outcomes, desks[0].results) if len(desks) > 1 else []
        failures = {one: error for one, error in outcomes.items() if isinstance(error, RemoteError)}
        for one, error in failures.items():
            print(printable(f"{one}: failed: {error}"), file=sys.stderr)
        _print([_as_json(one, outcome) for one, outcome in outcomes.items()], json, joined)
        if failures or not all(outcome.ok for outcome in outcomes.values()):  # type: ignore[union-attr]
            raise Exit(code=1)


def _one(settings: str, box: str) -> Settings:
    """The settings of one box of the file."""
    found = load(Path(settings))
    if box not in found:
        raise RemoteError(f"box {box!r}: {settings} has {', '.join(map(repr, found))}")
    return found[box]


def _run_id(settings: str) -> str:
    return f"{Path(settings).stem}-{time.strftime('%m%d-%H%M%S', time.gmtime())}"


def _desks(settings: str, run: str, results: str, quiet: bool) -> tuple[list[Desk], Stop]:
    """A desk for each box: of a settings file, or of a run that was begun."""
    stop = Stop()
    if settings:
        chosen, base = load(Path(settings)), run or _run_id(settings)
    elif run:
        chosen, base = {"": RunFolder.of(state_folder(), run).kept_settings()}, run
    else:
        raise RemoteError("campaign: --settings FILE is needed, or --run of a run that was begun")
    desks = []
    for name, one in chosen.items():
        full = f"{base}-{name}" if name else base
        desks.append(_new_desk(one, full, results, stop, quiet, tag=len(chosen) > 1))
    return desks, stop


def _new_desk(
    settings: Settings,
    run: str,
    results: str = "",
    stop: Stop | None = None,
    quiet: bool = False,
    tag: bool = False,
) -> Desk:
    stream = sys.stderr if quiet else sys.stdout

    def say(line: str) -> None:
        print(f"[{run}] {printable(line)}" if tag else printable(line), file=stream, flush=True)

    return Desk(
        run=run,
        settings=settings,
        provider=providers.connect(settings.provider),
        journal=Journal(state_folder()),
        results=Path(results).absolute() if results else ROOT / "results" / "v1",
        say=say,
        clock=(stop or Stop()).clock(),
    )


def _old_desk(run: str, results: str = "", quiet: bool = False) -> Desk:
    return _new_desk(RunFolder.of(state_folder(), run).kept_settings(), run, results, quiet=quiet)


def _rehearse(run: str, lines: Callable[[Desk], Sequence[str]], results: str = "") -> None:
    with _told():
        _lines(lines(_old_desk(run, results)))


def _on_box(run: str, work: Callable[[Desk, Link], None], results: str = "", quiet: bool = False) -> None:
    """Work on the box that a run has, and goes on having."""
    with _told():
        desk = _old_desk(run, results, quiet)
        with desk.journal.hold(run):
            box = box_of(desk)
            if box is None:
                raise RemoteError(f"run {run} has no box")
            work(desk, reach_steadily(desk, box))


def _as_json(run: str, outcome: whole.Outcome | RemoteError) -> dict[str, object]:
    if isinstance(outcome, RemoteError):
        return {"run": run, "ok": False, "error": str(outcome)}
    return outcome.as_json()


def _print(rows: Sequence[Any], as_json: bool, lines: Sequence[str]) -> None:
    if as_json:
        plain = [dataclasses.asdict(row) if dataclasses.is_dataclass(row) else row for row in rows]
        print(json.dumps(plain, default=str))
    else:
        _lines(lines)


def _lines(lines: Sequence[str] | Iterator[str]) -> None:
    for line in lines:
        print(printable(line), flush=True)


def _end_once(number: int, _: object) -> None:
    """The first signal ends the work; more of them must not disturb its way out, which destroys the box."""
    for other in ENDING:
        signal.signal(other, lambda *_: None)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)


@contextmanager
def _told() -> Iterator[None]:
    """Errors become a line and status 1; Ctrl-C, SIGTERM and a closed terminal end the work in order."""
    for number in ENDING:
        signal.signal(number, _end_once)
    try:
        yield
    except RemoteError as error:
        raise Exit(printable(f"error: {error}"), code=1) from error
