from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remote import reap as reaper
from remote.errors import ProviderError
from remote.journal import Entry, Journal
from remote.providers.rest import Api, Key
from remote.providers.vast import Vast
from remote.reap import Report, judge, reap
from remote.rent import SETTLE_S
from tests.remote.clocks import START, StillClock
from tests.remote.fake_vast import KEY, FakeVast, Trouble

LIST, ONE = "/api/v1/instances/", r"/api/v0/instances/\d+/"
SOON, PAST = int(START) + 3600, int(START) - 600
BOX_LABEL = f"llm-ladder/night-1/{SOON}"


class Yard:
    def __init__(self, fake: FakeVast, folder: Path) -> None:
        self.fake, self.still, self.journal = fake, StillClock(), Journal(folder)
        self.vast = Vast(Api(fake.url, Key(fake.key), self.still.clock, timeout_s=10.0))

    def note(
        self, step: str, box: str | int = "", label: str = BOX_LABEL, at: float = START - 1000, **more: Any
    ) -> None:
        _, run, deadline = label.split("/")
        fields = dict(
            at=at, run=run, step=step, provider="vast", label=label, deadline=int(deadline), box=str(box)
        )
        self.journal.write(Entry(**(fields | more)))

    def box(self, *steps: str, label: str = BOX_LABEL) -> int:
        """A box with the journal of a controller that came so far."""
        number = self.fake.add_box(label)
        for step in steps:
            self.note(step, "" if step == "intent" else number, label)
        return number

    def reap(self, **changes: Any) -> Report:
        return reap(self.vast, self.journal, clock=self.still.clock, **changes)


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    with FakeVast() as fake:
        yield Yard(fake, tmp_path)


def outcome(report: Report) -> dict[str, tuple[str, str]]:
    return {finding.box: (finding.action, finding.reason) for finding in report.findings}


def test_no_box(yard: Yard) -> None:
    assert yard.reap() == Report((), (), 0)


@pytest.mark.parametrize("step", ["created", "running", "kept", "destroying"])
def test_a_box_that_went_while_nobody_looked_costs_no_more(yard: Yard, step: str) -> None:
    number = yard.box("intent", "created", step)
    del yard.fake.boxes[number]
    assert yard.reap(dry_run=True).clean and yard.journal.read()[0][-1].step == step
    assert yard.reap().clean and yard.reap().clean
    last = yard.journal.read()[0][-1]
    assert (last.step, last.box, last.at) == ("destroyed", str(number), yard.still.time)
    assert len(yard.journal.read()[0]) == 4


def test_a_box_that_is_too_young_to_be_listed_is_not_called_gone(yard: Yard) -> None:
    yard.note("intent", at=START - 10)
    yard.note("created", 5999, at=START - 5)
    yard.reap()
    assert yard.journal.read()[0][-1].step == "created"


def test_a_box_that_is_not_listed_but_known_is_not_called_gone(yard: Yard) -> None:
    """Nor is one whose controller is at work: what it sees it notes itself."""
    number = yard.box("intent", "created", "running")
    yard.fake.troubles.append(Trouble("GET", LIST, 9, 200, body={"instances": [], "total_instances": 0}))
    yard.reap()
    del yard.fake.boxes[number]
    with yard.journal.hold("night-1"):
        yard.reap()
    assert yard.journal.read()[0][-1].step == "running"


def test_an_overdue_box_of_another_machine(yard: Yard) -> None:
    number = yard.box(label=f"llm-ladder/elsewhere/{PAST}")
    report = yard.reap()
    assert outcome(report) == {str(number): ("destroyed", "overdue by 10 min")}
    assert report.clean and yard.fake.boxes == {}


def test_a_box_of_another_machine_before_its_deadline(yard: Yard) -> None:
    number = yard.box()
    report = yard.reap()
    assert outcome(report) == {
        str(number): ("left", "rented from another machine, 60 min before its deadline")
    }
    assert report.clean and number in yard.fake.boxes


def test_boxes_that_are_not_ours(yard: Yard) -> None:
    for label in (None, "", "mine", f"llm-ladder-2/a/{PAST}", f"other/a/{PAST}", "llm-ladder"):
        yard.fake.add_box(label)
    assert yard.reap().findings == ()
    assert len(yard.fake.boxes) == 6


@pytest.mark.parametrize("label", ["llm-ladder/night-1", "llm-ladder/night-1/17", "llm-ladder/night-1/18000"])
def test_a_label_that_was_cut_ends_no_box_and_is_told(yard: Yard, label: str) -> None:
    yard.fake.add_box(label)
    report = yard.reap()
    assert [finding.action for finding in report.findings] == ["not destroyed"]
    assert not report.clean and len(yard.fake.boxes) == 1


@pytest.mark.parametrize("label", [None, "", "llm-ladder/night-1"])
def test_a_label_that_was_lost_stands_in_the_journal(yard: Yard, label: str | None) -> None:
    number = yard.box("intent", "created", "running")
    yard.fake.boxes[number]["label"] = label
    assert outcome(yard.reap()) == {str(number): ("destroyed", "its controller is gone")}


@pytest.mark.parametrize(
    "steps",
    [
        ("intent",),
        ("intent", "unclear"),
        ("intent", "refused"),
        ("intent", "cleared"),
        ("intent", "created"),
        ("intent", "created", "running"),
        ("intent", "created", "running", "destroying"),
        ("intent", "created", "running", "destroying", "destroyed"),
        ("intent", "created", "running", "kept", "destroying"),
        ("intent", "created", "running", "kept", "destroying", "destroyed"),
    ],
)
def test_a_box_whose_controller_is_gone(yard: Yard, steps: tuple[str, ...]) -> None:
    number = yard.box(*steps)
    report = yard.reap()
    assert outcome(report)[str(number)][0] == "destroyed"
    assert report.clean and yard.fake.boxes == {}
    assert [entry.step for entry in yard.journal.read()[0]][-2:] == ["destroying", "destroyed"]


def test_a_box_whose_controller_works(yard: Yard) -> None:
    number = yard.box("intent", "created", "running")
    with yard.journal.hold("night-1"):
        assert outcome(yard.reap()) == {
            str(number): ("left", "its run is at work, 60 min before its deadline")
        }
    assert number in yard.fake.boxes
    assert outcome(yard.reap())[str(number)][0] == "destroyed"


def test_a_kept_box(yard: Yard) -> None:
    number = yard.box("intent", "created", "running", "kept")
    assert outcome(yard.reap()) == {str(number): ("left", "kept by its user, 60 min before its deadline")}
    yard.still.time = SOON
    assert outcome(yard.reap()) == {str(number): ("destroyed", "overdue by 0 min")}


def test_a_second_box_of_a_kept_ones_request(yard: Yard) -> None:
    kept, other = yard.box("intent", "created", "running", "kept"), yard.fake.add_box(BOX_LABEL)
    assert {box: action for box, (action, _) in outcome(yard.reap()).items()} == {
        str(kept): "left",
        str(other): "destroyed",
    }


def test_an_overdue_box_ends_though_its_controller_works(yard: Yard) -> None:
    label = f"llm-ladder/night-1/{PAST}"
    yard.box("intent", "created", "running", "kept", label=label)
    with yard.journal.hold("night-1"):
        assert [finding.action for finding in yard.reap().findings] == ["destroyed"]
    assert yard.fake.boxes == {}


def test_all_pages(yard: Yard) -> None:
    for number in range(60):
        yard.fake.add_box(f"llm-ladder/run-{number}/{PAST}")
    assert len(yard.reap().findings) == 60
    assert yard.fake.boxes == {}


def test_dry_run(yard: Yard) -> None:
    yard.box("intent", "created")
    before = yard.journal.path.read_bytes()
    assert [finding.action for finding in yard.reap(dry_run=True).findings] == ["would destroy"]
    assert len(yard.fake.boxes) == 1 and yard.fake.requests("DELETE") == []
    assert yard.journal.path.read_bytes() == before


def test_another_prefix(yard: Yard) -> None:
    yard.box()
    number = yard.fake.add_box(f"try/a/{PAST}")
    assert list(outcome(yard.reap(prefix="try"))) == [str(number)]
    assert len(yard.fake.boxes) == 1


def test_price(yard: Yard) -> None:
    number = yard.box("intent", "created")
    yard.fake.boxes[number].update(start_date=START - 1800, dph_total=0.5)
    assert yard.reap().findings[0].dollars == pytest.approx(0.25)


def test_a_box_without_a_start_has_no_price(yard: Yard) -> None:
    number = yard.box("intent", "created")
    yard.fake.boxes[number].update(start_date=None)
    assert yard.reap().findings[0].dollars is None


def test_one_box_that_does_not_go_keeps_none_of_the_others(yard: Yard) -> None:
    first, second = yard.box("intent", "created"), yard.box("intent", "created")
    yard.fake.troubles.append(Trouble("DELETE", f"/api/v0/instances/{first}/", 10**6, 403, body="no"))
    report = yard.reap()
    assert {box: action for box, (action, _) in outcome(report).items()} == {
        str(first): "not destroyed",
        str(second): "destroyed",
    }
    assert not report.clean
    yard.fake.troubles.clear()
    assert yard.reap().clean and yard.fake.boxes == {}


def test_a_storm_of_errors_while_destroying(yard: Yard) -> None:
    yard.box("intent", "created")
    yard.fake.troubles += [Trouble("DELETE", ONE, 20, 502), Trouble("GET", ONE, 10, 429)]
    assert yard.reap().clean and yard.fake.boxes == {}


def test_a_list_that_fails_is_not_read_as_no_box(yard: Yard) -> None:
    yard.box("intent", "created")
    yard.fake.troubles.append(Trouble("GET", LIST, 10**6, 200, body=""))
    with pytest.raises(ProviderError):
        yard.reap()


class TestRequestOfUnknownOutcome:
    def test_is_waited_for(self, yard: Yard) -> None:
        yard.note("intent", at=START)
        number = yard.fake.add_box(BOX_LABEL, late=4)
        report = yard.reap()
        assert outcome(report) == {str(number): ("destroyed", "its controller is gone")}
        assert report.clean and yard.fake.boxes == {}

    @pytest.mark.parametrize("step", ["intent", "unclear"])
    def test_is_settled_in_the_end(self, yard: Yard, step: str) -> None:
        yard.note(step, at=START)
        report = yard.reap()
        assert report == Report((), (), 0)
        assert yard.still.time - START >= SETTLE_S
        assert [entry.step for entry in yard.journal.read()[0]] == [step, "cleared"]
        yard.still.slept.clear()
        assert yard.reap().clean and yard.still.slept == []

    def test_is_told_by_a_dry_run(self, yard: Yard) -> None:
        yard.note("intent", at=START)
        report = yard.reap(dry_run=True)
        assert report.pending == ("night-1",) and not report.clean
        assert yard.still.slept == []

    def test_is_not_settled_by_a_dry_run(self, yard: Yard) -> None:
        yard.note("intent", at=START - 10_000)
        assert yard.reap(dry_run=True).clean
        assert [entry.step for entry in yard.journal.read()[0]] == ["intent"]

    def test_is_left_to_the_controller_that_works(self, yard: Yard) -> None:
        yard.note("intent", at=START - 10_000)
        with yard.journal.hold("night-1"):
            assert yard.reap().clean
        assert [entry.step for entry in yard.journal.read()[0]] == ["intent"]


def test_damaged_lines_are_told(yard: Yard) -> None:
    number = yard.box("intent", "created")
    with yard.journal.path.open("a") as file:
        file.write('{"at": 1')
    report = yard.reap()
    assert outcome(report)[str(number)][0] == "destroyed"
    assert report.damaged == 1


def test_lines_of_other_providers_do_not_count(yard: Yard) -> None:
    number = yard.fake.add_box(BOX_LABEL)
    yard.note("destroyed", number, provider="other")
    assert outcome(yard.reap())[str(number)][0] == "left"


def test_twice_at_once(yard: Yard) -> None:
    for _ in range(3):
        yard.box("intent", "created")
    for number in range(3):
        yard.box(label=f"llm-ladder/elsewhere-{number}/{PAST}")
    kept = yard.box("intent", "created", "running", "kept", label=f"llm-ladder/kept/{SOON}")
    reports: list[Report] = []
    start = threading.Barrier(4)

    def work() -> None:
        start.wait()
        reports.append(yard.reap())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reports) == 4 and all(report.clean for report in reports)
    assert list(yard.fake.boxes) == [kept]
    assert sorted(yard.fake.destroyed) == sorted(set(yard.fake.destroyed)) and len(yard.fake.destroyed) == 6


def test_a_reaper_is_not_taken_for_a_controller(yard: Yard) -> None:
    number = yard.box("intent", "created")
    with yard.journal.hold("night-1", shared=True):
        assert outcome(yard.reap())[str(number)][0] == "destroyed"


def test_a_controller_cannot_take_up_a_run_that_is_being_reaped(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remote.journal.LOCK_WAIT_S", 0.1)
    number = yard.box("intent", "created")
    held: list[str] = []

    def look(_: object) -> None:
        try:
            with yard.journal.hold("night-1"):
                held.append("free")
        except Exception as error:
            held.append(type(error).__name__)

    yard.fake.on_destroy = look
    yard.reap()
    assert held == ["RunHeld"] and number not in yard.fake.boxes


def test_judge_needs_no_journal_for_the_deadline(yard: Yard) -> None:
    yard.box()
    (box,) = yard.vast.boxes("")
    assert judge(box, [], held=True, now=SOON) == (True, "overdue by 0 min")
    assert judge(box, [], held=True, now=SOON - 1)[0] is False


class TestCommand:
    @pytest.fixture
    def at_home(self, yard: Yard, monkeypatch: pytest.MonkeyPatch) -> Yard:
        monkeypatch.setenv("VAST_API_KEY", KEY)
        monkeypatch.setenv("VAST_URL", yard.fake.url)
        monkeypatch.setenv("LLM_LADDER_STATE", str(yard.journal.folder))
        return yard

    def test_all_is_well(self, at_home: Yard, capsys: pytest.CaptureFixture[str]) -> None:
        assert reaper.main([]) == 0
        assert capsys.readouterr().out == "no box\n"

    def test_a_box(self, at_home: Yard, capsys: pytest.CaptureFixture[str]) -> None:
        number = at_home.fake.add_box(f"llm-ladder/a/{int(time.time()) - 60}")
        assert reaper.main([]) == 0
        out = capsys.readouterr().out
        assert out.startswith(f"destroyed: box {number} (llm-ladder/a/")
        assert "overdue by 1 min, $0.40 so far" in out
        assert at_home.fake.boxes == {}

    def test_json(self, at_home: Yard, capsys: pytest.CaptureFixture[str]) -> None:
        at_home.fake.add_box("llm-ladder/a")
        assert reaper.main(["--json"]) == 1
        said = json.loads(capsys.readouterr().out)
        assert said["clean"] is False and said["findings"][0]["action"] == "not destroyed"

    def test_an_error(self, at_home: Yard, capsys: pytest.CaptureFixture[str]) -> None:
        at_home.fake.key = "another-key-another-key"
        assert reaper.main([]) == 1
        said = capsys.readouterr()
        assert "auth_error" in said.err and said.out == "" and KEY not in said.err
