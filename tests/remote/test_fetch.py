"""What was copied from a box comes to lie beside the other runs only when it is complete and whole."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness.verify import verify
from remote.desk import Desk
from remote.errors import RemoteError
from remote.fetch import settle
from remote.journal import Journal
from remote.providers.base import Address
from remote.providers.ssh import Own
from tests.remote.rented import SAMPLE, SETTINGS


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    (tmp_path / "results").mkdir()
    own = Own(Address("box", 22))
    return Desk("night", SETTINGS, own, Journal(tmp_path / "state"), tmp_path / "results")


def came(desk: Desk, name: str = "night-smoke") -> Path:
    return Path(shutil.copytree(SAMPLE, desk.folder.arrived("1") / name))


def test_a_whole_run_is_laid_down_once(desk: Desk) -> None:
    came(desk)
    for _ in range(2):
        (run,) = settle(desk, "1")
        assert (run.run, run.path, run.problems) == ("night-smoke", desk.results / "night-smoke", ())
    assert verify(run.path) == []


def test_nothing_came(desk: Desk) -> None:
    assert settle(desk, "1") == []


def test_a_run_that_grew_when_it_was_copied_is_that_run(desk: Desk) -> None:
    came(desk)
    came(desk, ".night-smoke.partial")
    (run,) = settle(desk, "1")
    assert run.problems == ()


@pytest.mark.parametrize(
    ("name", "damage", "problem"),
    [
        (".night-smoke.partial", "", "is incomplete"),
        ("night-smoke", "manifest.json", "it is no complete run"),
        ("night-smoke", "requests.csv.gz", "requests.csv.gz: missing"),
    ],
)
def test_what_is_not_whole_stays_away(desk: Desk, name: str, damage: str, problem: str) -> None:
    path = came(desk, name)
    if damage:
        (path / damage).unlink()
    (run,) = settle(desk, "1")
    assert run.run == "night-smoke" and run.path == path and problem in "; ".join(run.problems)
    assert list(desk.results.iterdir()) == []


def test_another_run_of_the_name_is_left_alone(desk: Desk) -> None:
    came(desk)
    there = desk.results / "night-smoke"
    there.mkdir()
    (there / "manifest.json").write_text("other")
    (run,) = settle(desk, "1")
    assert "another run of this name" in run.problems[0]
    assert (there / "manifest.json").read_text() == "other"


def test_a_full_disk_leaves_no_part_of_a_run(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    path = came(desk)

    def full(source: Path, target: Path) -> None:
        target.mkdir()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copytree", full)
    with pytest.raises(RemoteError, match="No space left on device; it is kept there"):
        settle(desk, "1")
    assert list(desk.results.iterdir()) == [] and path.exists()
