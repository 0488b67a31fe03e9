"""Several boxes at once, each with a run of its own; one that fails does not disturb the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from remote.campaign import Outcome, campaign
from remote.desk import Desk, Stop
from remote.errors import RemoteError


def campaigns(
    desks: Sequence[Desk], stop: Stop, keep_failed: bool = False
) -> dict[str, Outcome | RemoteError]:
    """The outcome of each run, or why it failed. Each desk has its clock from `stop`.

    When the user ends it, each campaign is told, copies what there is, and destroys its box before this
    raises.
    """
    with ThreadPoolExecutor(len(desks)) as threads:
        working = {desk.run: threads.submit(campaign, desk, keep_failed) for desk in desks}
        try:
            wait(working.values())
        except BaseException:
            stop.event.set()
            raise
    outcomes: dict[str, Outcome | RemoteError] = {}
    for run, future in working.items():
        error = future.exception()
        if error is None:
            outcomes[run] = future.result()
        else:
            outcomes[run] = error if isinstance(error, RemoteError) else RemoteError(repr(error))
    return outcomes


def merged(run: str, outcomes: Mapping[str, Outcome | RemoteError], results: Path) -> list[str]:
    """Joins what several boxes measured of one stage into RUN-STAGE, and says so in a line a stage.

    Runs of different devices, stage files or models stay apart.
    """
    by_stage: dict[str, list[str]] = {}
    for name, outcome in outcomes.items():
        if isinstance(outcome, Outcome):
            at_home = {arrived.run for arrived in outcome.arrived if not arrived.problems}
            for stage in outcome.statuses:
                if f"{name}-{stage}" in at_home:
                    by_stage.setdefault(stage, []).append(f"{name}-{stage}")
    return [_merge(f"{run}-{stage}", parts, results) for stage, parts in by_stage.items() if len(parts) > 1]


def _merge(name: str, parts: Sequence[str], results: Path) -> str:
    # Here, because their import takes seconds, and most tasks do without.
    from harness.errors import BadInput
    from harness.merge import merge
    from harness.store import StoreError

    try:
        return f"{' + '.join(parts)} are merged in {merge(results, name, parts)}"
    except (BadInput, StoreError) as error:
        return f"{' + '.join(parts)} are not merged: {error}"
