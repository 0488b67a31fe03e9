"""Killed with -9 at any step, a controller leaves no box behind the next reap; nor does a killed reaper."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote.journal import Journal
from remote.providers.rest import Api, Key
from remote.providers.vast import Vast
from remote.reap import Report, reap
from tests.remote.doomed import RUN, HastyClock
from tests.remote.fake_vast import KEY, FakeVast, Row, Trouble, make_offer

ROOT = Path(__file__).resolve().parents[2]
STEPS = ("intent", "created", "running", "destroying", "destroyed")
LINES = [f"{when} line {step}" for step in STEPS for when in ("before", "torn", "after")]
CALLS = [
    f"{when} {call}"
    for call in ("offers", "create", "boxes", "box", "destroy")
    for when in ("before", "after")
]
WORK = ["at work"]
SERVER = ["in create", "in create, late", "in attach", "in destroy", "in destroy, stubborn"]
LOST = ["after line unclear", "torn line unclear", "before line cleared", "torn line cleared"]


@pytest.fixture
def fake() -> Iterator[FakeVast]:
    with FakeVast([make_offer(1011, 0.40), make_offer(1021, 0.35)]) as fake:
        yield fake


def start(what: str, step: str, fake: FakeVast, state: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.remote.doomed", what, step, fake.url, str(state)]
    return subprocess.Popen(command, cwd=ROOT, env=os.environ | {"VAST_API_KEY": KEY})


def killed(what: str, step: str, fake: FakeVast, state: Path) -> None:
    child = start(what, step, fake, state)
    assert child.wait(60) == -signal.SIGKILL


def reap_now(fake: FakeVast, state: Path) -> Report:
    clock = HastyClock().clock
    return reap(Vast(Api(fake.url, Key(KEY), clock, timeout_s=10.0)), Journal(state), clock=clock)


def bystanders(fake: FakeVast) -> set[int]:
    """A box of another machine, a box of the user's own, and none of them overdue."""
    return {
        fake.add_box(f"llm-ladder/elsewhere/{int(time.time()) + 36_000}", 900),
        fake.add_box("my own", 901),
    }


@pytest.mark.parametrize("step", LINES + CALLS + WORK)
def test_a_controller(fake: FakeVast, tmp_path: Path, step: str) -> None:
    others = bystanders(fake)
    killed("rent", step, fake, tmp_path)
    assert reap_now(fake, tmp_path).clean
    assert set(fake.boxes) == others
    assert reap_now(fake, tmp_path).clean


@pytest.mark.parametrize("step", SERVER)
def test_a_controller_while_the_provider_works(fake: FakeVast, tmp_path: Path, step: str) -> None:
    """The provider carries the request out, and there is nobody left to hear of it."""
    others = bystanders(fake)
    fake.late = 6 if "late" in step else 0
    fake.stubborn = 2 if "stubborn" in step else 0
    child: list[subprocess.Popen[bytes]] = []

    def kill(row: Row) -> None:
        child[0].kill()
        child[0].wait()

    if "create" in step:
        fake.on_create = kill
    elif "destroy" in step:
        fake.on_destroy = kill
    else:
        fake.on_attach = kill
    child.append(start("rent", "", fake, tmp_path))
    assert child[0].wait(60) == -signal.SIGKILL
    fake.on_create = fake.on_destroy = fake.on_attach = lambda row: None
    assert reap_now(fake, tmp_path).clean
    assert set(fake.boxes) == others


@pytest.mark.parametrize("step", LOST)
def test_a_controller_after_a_lost_answer(fake: FakeVast, tmp_path: Path, step: str) -> None:
    others = bystanders(fake)
    fake.troubles.append(Trouble("PUT", r"/api/v0/asks/\d+/", after=True, cut=True))
    fake.late = 3
    killed("rent", step, fake, tmp_path)
    assert reap_now(fake, tmp_path).clean
    assert set(fake.boxes) == others


@pytest.mark.parametrize("step", ["before line kept", "torn line kept"])
def test_a_controller_before_the_box_is_handed_over(fake: FakeVast, tmp_path: Path, step: str) -> None:
    killed("keep", step, fake, tmp_path)
    assert reap_now(fake, tmp_path).clean
    assert fake.boxes == {}


def test_a_box_that_was_handed_over_stays(fake: FakeVast, tmp_path: Path) -> None:
    killed("keep", "after line kept", fake, tmp_path)
    assert reap_now(fake, tmp_path).clean
    assert len(fake.boxes) == 1


@pytest.mark.parametrize(
    "step",
    ["before boxes", "after boxes", "before destroy", "after destroy"]
    + [f"{when} line {step}" for step in ("destroying", "destroyed") for when in ("before", "torn", "after")],
)
def test_a_reaper(fake: FakeVast, tmp_path: Path, step: str) -> None:
    others = bystanders(fake)
    killed("rent", "at work", fake, tmp_path)
    assert len(fake.boxes) == 3
    killed("reap", step, fake, tmp_path)
    assert reap_now(fake, tmp_path).clean
    assert set(fake.boxes) == others


def test_a_controller_that_lives_keeps_its_box(fake: FakeVast, tmp_path: Path) -> None:
    """The same reap, while the lock of the run is held."""
    killed("rent", "at work", fake, tmp_path)
    with Journal(tmp_path).hold(RUN):
        assert reap_now(fake, tmp_path).clean
    assert len(fake.boxes) == 1
