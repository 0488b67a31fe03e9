"""A box that is broken or means harm: it gets nothing out of its place, and is destroyed."""

from __future__ import annotations

from pathlib import Path

import pytest

from remote import follow
from remote.box import deadman, job, rsync
from remote.campaign import campaign
from remote.errors import RemoteError
from remote.printable import printable
from tests.remote.rented import Street, hook, make_desk


class Says:
    """An ssh connection to a box that answers this to everything."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer

    def read(self, *_: object, **__: object) -> bytes:
        return self.answer


@pytest.mark.parametrize(
    "answer",
    ["", "ended", "ended \u00b2 5", "ended 0 \u00b2", "ended 0 " + "9" * 5000, "gone 0 5", "ended -1 5"],
)
def test_what_is_no_status_of_a_job_is_an_error_that_shows_it(answer: str) -> None:
    with pytest.raises(RemoteError, match="not the status of a job"):
        job.status(Says(answer.encode()), "job")  # type: ignore[arg-type]


@pytest.mark.parametrize("answer", [b"", b"armed", b"armed x", b"armed " + b"9" * 5000, b"\xff\xfe", b"on 5"])
def test_what_is_no_status_of_a_switch_is_an_error_that_shows_it(answer: bytes) -> None:
    with pytest.raises(RemoteError, match="not the status of a dead-man switch"):
        deadman.status(Says(answer))  # type: ignore[arg-type]


def test_what_it_says_does_not_steer_a_terminal() -> None:
    assert printable("a\x1b[2J\r\nb\u202ec\x9b31m\td caf\u00e9") == "a[2Jbc31m\td caf\u00e9"


@pytest.mark.slow
def test_a_stage_that_says_all_is_well_and_brings_nothing(there: Street, tmp_path: Path) -> None:
    hook(there, 'rm -r "$partial"; exit 0')
    desk = make_desk(there.fake.url, tmp_path)
    outcome = campaign(desk)
    assert outcome.statuses == {"smoke": 0} and not outcome.ok
    assert "night-smoke is NOT at home: did not come from box 5001" in desk.say.text  # type: ignore[attr-defined]
    assert there.fake.boxes == {}


@pytest.mark.slow
def test_a_log_without_an_end_does_not_fill_the_disk_here(
    there: Street, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "MOST_LOG_BYTES", 10_000_000)
    hook(there, "exec yes")
    desk = make_desk(there.fake.url, tmp_path)
    with pytest.raises(RemoteError, match=r"smoke-.*log is longer than the limit of 10000000 bytes"):
        campaign(desk)
    (log,) = desk.folder.path.glob("boxes/*/smoke-*.log")
    assert 1_000_000 < log.stat().st_size <= 10_000_000
    assert there.fake.boxes == {}


@pytest.mark.slow
def test_links_pipes_and_huge_files_stay_on_the_box(
    there: Street, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link in the place of a run, or in one, would lead the copy out of its folder."""
    monkeypatch.setattr(rsync, "MOST_FILE_BYTES", 10_000_000)
    aim = tmp_path / "aim"
    aim.mkdir()
    (aim / "mine").write_text("mine")
    hook(
        there,
        f'ln -s {aim} "$partial/link"; ln -s {aim}/mine "$partial/mine"; ln -s {aim} results/v1/night-link; '
        'mkfifo "$partial/pipe"; truncate -s 11000000 "$partial/huge"\n',
    )
    desk = make_desk(there.fake.url, tmp_path)
    assert campaign(desk).ok
    for folder in (desk.results, desk.folder.path):
        strange = [
            file for file in folder.rglob("*") if file.is_symlink() or not (file.is_file() or file.is_dir())
        ]
        assert strange == [] and list(folder.rglob("huge")) == [] and list(folder.rglob("night-link")) == []
    assert [file.name for file in aim.iterdir()] == ["mine"] and (aim / "mine").read_text() == "mine"
