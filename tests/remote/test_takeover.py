"""What a controller does with what an earlier one of its run has left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from remote.desk import Desk
from remote.errors import ProviderError
from remote.journal import Journal
from remote.providers.rest import Api, Key
from remote.providers.vast import Vast
from remote.rent import SETTLE_S, keep, rent
from remote.takeover import box_of, take_up
from tests.remote.clocks import StillClock
from tests.remote.doomed import ORDER, WANTED
from tests.remote.fake_vast import FakeVast, Trouble, make_offer
from tests.remote.rented import SETTINGS

RUN = ORDER.run


class House:
    def __init__(self, fake: FakeVast, folder: Path) -> None:
        self.fake, self.still = fake, StillClock()
        clock = self.still.clock
        vast = Vast(Api(fake.url, Key(fake.key), clock, timeout_s=10.0))
        self.desk = Desk(RUN, SETTINGS, vast, Journal(folder), folder, lambda line: None, clock)

    def rent(self) -> str:
        desk = self.desk
        box = rent(desk.provider, WANTED, ORDER, desk.journal, say=desk.say, clock=desk.clock)
        return box.id

    def note(self, step: str, at: float, box: str = "", deadline: int = 1_800_010_000) -> None:
        self.desk.journal.write(
            self.desk.entries()[0].model_copy(
                update={
                    "step": step,
                    "box": box,
                    "at": at,
                    "label": f"llm-ladder/{RUN}/{deadline}",
                    "deadline": deadline,
                }
            )
        )

    @property
    def left(self) -> list[str]:
        return [str(number) for number in self.fake.boxes]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with FakeVast([make_offer(1011, 0.40), make_offer(1021, 0.35)]) as fake:
        yield House(fake, tmp_path)


def test_nothing_was_left(house: House) -> None:
    assert take_up(house.desk) is None and box_of(house.desk) is None


@pytest.mark.parametrize("handed_over", [False, True])
def test_a_box_that_runs_is_used(house: House, handed_over: bool) -> None:
    number = house.rent()
    box = box_of(house.desk)
    assert box is not None
    if handed_over:
        keep(box, house.desk.journal, house.desk.clock)
    taken = take_up(house.desk)
    assert taken is not None and (taken.id, taken.label) == (number, box.label)
    assert taken.dollars_per_hour == pytest.approx(0.37) and house.left == [number]


def test_a_box_past_its_deadline_is_destroyed(house: House) -> None:
    house.rent()
    house.still.time += 3 * 3600
    assert take_up(house.desk) is None and house.left == []
    assert house.desk.entries()[-1].step == "destroyed"


def test_a_box_that_stopped_is_destroyed(house: House) -> None:
    number = house.rent()
    house.fake.outbid(int(number))
    assert take_up(house.desk) is None and house.left == []


def test_a_box_that_was_to_be_destroyed_is_destroyed(house: House) -> None:
    number = house.rent()
    entry = house.desk.entries()[-1]
    house.desk.journal.write(entry.model_copy(update={"step": "destroying"}))
    assert take_up(house.desk) is None and house.left == [] and number


def test_of_two_boxes_one_is_used(house: House) -> None:
    first = house.rent()
    house.still.time += 1
    second = house.rent()
    assert house.left == [first, second]
    taken = take_up(house.desk)
    assert taken is not None and taken.id == first and house.left == [first]


def test_a_request_without_an_answer_is_waited_for(house: House) -> None:
    """Its box appears late, and goes."""
    house.rent()
    house.note("intent", house.still.time)
    number = house.fake.add_box(f"llm-ladder/{RUN}/1800010000", 300, late=3)
    taken = take_up(house.desk)
    assert taken is not None and str(number) not in house.left and len(house.left) == 1
    assert house.desk.entries()[-1].step == "cleared" and house.desk.entries()[-1].box == str(number)


def test_a_request_that_made_nothing_is_given_time(house: House) -> None:
    house.rent()
    asked = house.still.time
    house.note("intent", asked)
    assert take_up(house.desk) is not None
    assert house.still.time - asked >= SETTLE_S
    assert house.desk.entries()[-1].step == "cleared"


def test_what_cannot_be_seen_is_not_called_gone(house: House) -> None:
    """With the provider out of order nothing is rented and no line says that the box is destroyed."""
    number = house.rent()
    house.fake.troubles.append(Trouble("GET", ".*", 1000, 503))
    with pytest.raises(ProviderError):
        take_up(house.desk)
    assert house.left == [number] and house.desk.entries()[-1].step == "running"
