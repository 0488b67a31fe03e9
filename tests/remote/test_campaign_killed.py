"""Killed with -9 at any step, a campaign leaves no box behind the next reap, or goes on where it was."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.verify import verify
from remote.campaign import campaign
from tests.remote.doomed_campaign import STEPS
from tests.remote.rented import ROOT, Street, make_desk, small_checkout, street
from tests.remote.test_killed import reap_now

# Real servers, seconds each: one of them every day.
EACH = [
    pytest.param(when, step, marks=() if (when, step) == ("after", "job start") else pytest.mark.slow)
    for step in STEPS
    for when in ("before", "after")
]


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Street]:
    with street(tmp_path / "street") as made:
        small_checkout(tmp_path / "checkout")
        yield made


def kill(there: Street, folder: Path, when: str, step: str) -> None:
    command = [sys.executable, "-m", "tests.remote.doomed_campaign", when, step, there.fake.url, str(folder)]
    assert subprocess.run(command, cwd=ROOT, timeout=60).returncode == -signal.SIGKILL


@pytest.mark.parametrize(("when", "step"), EACH)
def test_reap_then_leaves_no_box(there: Street, tmp_path: Path, when: str, step: str) -> None:
    kill(there, tmp_path, when, step)
    assert len(there.fake.created) == 1
    assert reap_now(there.fake, tmp_path / "state").clean
    assert there.fake.boxes == {}


@pytest.mark.slow
@pytest.mark.parametrize(("when", "step"), EACH)
def test_the_same_call_goes_on(there: Street, tmp_path: Path, when: str, step: str) -> None:
    """With the same box, unless it was destroyed; no stage runs twice on it."""
    kill(there, tmp_path, when, step)
    left = len(there.fake.boxes)
    desk = make_desk(there.fake.url, tmp_path)
    assert campaign(desk).ok
    assert verify(desk.results / "night-smoke") == []
    assert there.fake.boxes == {}
    assert len(there.fake.created) == (1 if left else 2)
    logs = [log.read_text() for log in desk.folder.path.glob("boxes/*/smoke-*.log")]
    assert [log.count("stage smoke begins") for log in logs] == [1] * len(there.fake.created)
