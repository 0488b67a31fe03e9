from __future__ import annotations

from pathlib import Path

import pytest

from remote.errors import RemoteError
from remote.journal import Entry, Journal
from remote.status import status, table
from tests.remote.clocks import START, StillClock


def entry(run: str, step: str, at: float, dollars: float = 2.0) -> Entry:
    return Entry(
        at=START + at,
        run=run,
        step=step,
        provider="vast",
        label=f"llm-ladder/{run}/1800007200",
        deadline=1_800_007_200,
        machine="102",
        box="" if step == "intent" else "5001",
        dollars_per_hour=dollars,
    )


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    made = Journal(tmp_path)
    for run, steps in {
        "night": ("intent", "created", "running"),
        "old": ("intent", "created", "destroyed"),
    }.items():
        for number, step in enumerate(steps):
            made.write(entry(run, step, 900.0 * number))
    return made


def test_price_so_far_and_time_left(journal: Journal) -> None:
    still = StillClock(START + 3600)
    night, old = status(journal, clock=still.clock)
    assert (night.run, night.step, night.box, night.at_work) == ("night", "running", "5001", False)
    assert (night.dollars, night.hours, night.minutes_left) == (2.0, 1.0, 60.0)
    assert (old.step, old.dollars, old.hours, old.minutes_left) == ("destroyed", 1.0, 0.5, None)


def test_a_controller_at_work_is_seen(journal: Journal) -> None:
    with journal.hold("night"):
        assert [row.at_work for row in status(journal)] == [True, False]


def test_one_run(journal: Journal) -> None:
    assert [row.run for row in status(journal, "old")] == ["old"]
    with pytest.raises(RemoteError, match="knows no run other"):
        status(journal, "other")


def test_the_table_has_a_line_a_run(journal: Journal, tmp_path: Path) -> None:
    lines = table(status(journal, clock=StillClock(START + 3600).clock))
    assert [line.split() for line in lines[1:]] == [
        ["night", "running", "5001", "102", "2.000", "2.00", "1.00", "60"],
        ["old", "destroyed", "5001", "102", "2.000", "1.00", "0.50"],
    ]
    assert table(status(Journal(tmp_path / "empty"))) == ["no run yet"]
