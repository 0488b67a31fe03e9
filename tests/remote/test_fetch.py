"""What was copied from a box comes to lie beside the other runs only when it is complete and whole."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from harness.verify import verify
from remote.desk import Desk
from remote.errors import RemoteError
from remote.fetch import missing, settle
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


def lie(path: Path, change: dict[str, object]) -> None:
    """The manifest says something else."""
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | change))


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"[" * 100_000, b'{"schema_version": 1' + b"0" * 5000 + b"}", b"null", b"7"]
)
def test_a_manifest_that_is_none(desk: Desk, content: bytes) -> None:
    path = came(desk)
    (path / "manifest.json").write_bytes(content)
    came(desk, "night-other")
    other, run = settle(desk, "1")
    assert run.problems and not (desk.results / "night-smoke").exists()
    assert other.problems == ()


@pytest.mark.parametrize(
    "change",
    [
        {"cells": []},
        {"files": []},
        {"complete": False},
        {"files": [{"path": "../../../etc/passwd", "sha256": "0" * 64, "bytes": 1}]},
        {"files": [{"path": "nul\0", "sha256": "0" * 64, "bytes": 1}]},
    ],
)
def test_a_manifest_that_lies(desk: Desk, change: dict[str, object]) -> None:
    lie(came(desk), change)
    (run,) = settle(desk, "1")
    assert run.problems and list(desk.results.iterdir()) == []


@pytest.mark.parametrize("name", ["-rf", "a b", "caf\u00e9", "a\nb", "\x1b[2J"])
def test_a_folder_that_is_not_named_like_a_run(desk: Desk, name: str) -> None:
    came(desk, name)
    (run,) = settle(desk, "1")
    assert "is no name of a run" in run.problems[0] and list(desk.results.iterdir()) == []


def test_a_run_that_should_have_come_is_missed(desk: Desk) -> None:
    came(desk)
    arrived = settle(desk, "1")
    (run,) = missing(desk, "1", ["night-smoke", "night-compare"], arrived)
    assert (run.run, run.problems) == ("night-compare", ("did not come from box 1",))
