"""Several boxes at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from harness.verify import verify
from remote.campaign import Outcome, campaign
from remote.desk import Desk, Ended, Stop
from remote.errors import RemoteError
from remote.matrix import campaigns, merged
from tests.remote.rented import SETTINGS, Street, make_desk
from tests.remote.sshd import Box, until

pytestmark = pytest.mark.slow  # real servers and real waits


def desks(there: Street, folder: Path, names: str) -> list[Desk]:
    return [make_desk(there.fake.url, folder, f"night-{name}") for name in names]


def test_boxes_work_at_once_and_their_results_are_joined(there: Street, tmp_path: Path) -> None:
    outcomes = campaigns(desks(there, tmp_path, "ab"), Stop())
    assert all(isinstance(outcome, Outcome) and outcome.ok for outcome in outcomes.values())
    assert len(there.fake.created) == 2 and there.fake.boxes == {}
    results = tmp_path / "results"
    (line,) = merged("night", outcomes, results)
    assert line == f"night-a-smoke + night-b-smoke are merged in {results / 'night-smoke'}"
    assert verify(results / "night-smoke") == []
    (again,) = merged("night", outcomes, results)
    assert "are not merged: " in again


def test_one_that_fails_does_not_disturb_the_other(there: Street, tmp_path: Path) -> None:
    good, bad = desks(there, tmp_path, "ab")
    bad = replace(bad, settings=SETTINGS.model_copy(update={"gpu": "RTX 6090"}))
    outcomes = campaigns([good, bad], Stop())
    won, lost = outcomes["night-a"], outcomes["night-b"]
    assert isinstance(won, Outcome) and won.ok
    assert isinstance(lost, RemoteError) and "nothing is on offer" in str(lost)
    assert merged("night", outcomes, tmp_path / "results") == []


def test_the_user_ends_it(there: Street, tmp_path: Path) -> None:
    """A controller in a thread hears of it at its next pause, and destroys its box."""

    def wait(box: Box) -> None:
        (box.home / "hook").write_text('touch "$HOME/at-work"; sleep 1000')

    there.made = wait
    stop = Stop()
    desk = make_desk(there.fake.url, tmp_path, clock=stop.clock())
    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(campaign, desk)
        until(lambda: there.boxes and (there.box.home / "at-work").exists())
        stop.event.set()
        with pytest.raises(Ended, match="the user ended it"):
            working.result(60)
    assert there.fake.boxes == {}
    assert "night-smoke is NOT at home: is incomplete" in desk.say.text  # type: ignore[attr-defined]
