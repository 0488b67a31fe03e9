from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from remote.errors import ProviderError, Refused, RemoteError
from remote.journal import Journal
from remote.labels import parse_label
from remote.money import Caps
from remote.providers.base import Address, Box, Wanted
from remote.providers.rest import Api, Key
from remote.providers.ssh import Own
from remote.providers.vast import Vast
from remote.rent import SETTLE_S, LeftBehind, Order, Patience, give_back, keep, rent
from tests.remote.clocks import StillClock
from tests.remote.fake_vast import FakeVast, Trouble, make_offer

ASKS, LIST, ONE = r"/api/v0/asks/\d+/", "/api/v1/instances/", r"/api/v0/instances/\d+/"
WANTED = Wanted(gpu="RTX 4090", num_gpus=1, gpu_ram_gb=24, disk_gb=73, max_dollars_per_hour=1.00)
ORDER = Order("night-1", "vendor/image:1", 73, "ssh-ed25519 AAAA", "true", Caps(hours=3, dollars=5))


class House:
    """A fake provider with three offers, the cheapest on machine 102, then 101 and 103, and a controller."""

    def __init__(self, fake: FakeVast, folder: Path) -> None:
        self.fake, self.still, self.journal = fake, StillClock(), Journal(folder)
        self.vast = Vast(Api(fake.url, Key(fake.key), self.still.clock, timeout_s=10.0))
        self.said: list[str] = []

    def rent(self, **changes: object) -> Box:
        given = dict(wanted=WANTED, order=ORDER, say=self.said.append, clock=self.still.clock) | changes
        return rent(self.vast, journal=self.journal, **given)  # type: ignore[arg-type]

    @property
    def steps(self) -> list[str]:
        return [entry.step for entry in self.journal.read()[0]]

    @property
    def left(self) -> list[str]:
        return [str(number) for number in self.fake.boxes]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    offers = [make_offer(1011, 0.40), make_offer(1021, 0.35), make_offer(1031, 0.50)]
    with FakeVast(offers) as fake:
        yield House(fake, tmp_path)


def test_the_cheapest_box(house: House) -> None:
    start = house.still.time
    box = house.rent()
    assert (box.machine_id, box.state) == ("102", "running")
    assert house.left == [box.id]
    assert house.steps == ["intent", "created", "running"]
    label = parse_label(box.label)
    assert label and (label.prefix, label.run, label.deadline) == (
        "llm-ladder",
        "night-1",
        int(start + 3 * 3600),
    )
    entries = house.journal.read()[0]
    assert {entry.label for entry in entries} == {box.label}
    assert entries[0].offer == "1021" and entries[0].deadline == label.deadline
    assert entries[0].dollars_per_hour == pytest.approx(0.37)


def test_each_request_has_a_label_of_its_own(house: House) -> None:
    gone = {"success": False, "error": "no_such_ask"}
    house.fake.troubles.append(Trouble("PUT", ASKS, 2, 400, body=gone))
    house.rent()
    labels = [entry.label for entry in house.journal.read()[0] if entry.step == "intent"]
    assert len(labels) == len(set(labels)) == 3


def test_a_box_of_ones_own(house: House) -> None:
    own = Own(Address("box", 2222), house.said.append)
    box = rent(own, WANTED, ORDER, house.journal, say=house.said.append, clock=house.still.clock)
    give_back(own, box, house.journal, house.still.clock)
    assert (box.id, box.state, box.dollars_per_hour) == ("box:2222", "running", 0.0)
    assert house.steps == ["intent", "created", "running", "destroying", "destroyed"]
    assert house.said[-1] == "box:2222 is a box of your own: it is left running"


def test_the_intent_is_on_the_disk_before_the_request(house: House) -> None:
    seen: list[list[str]] = []
    house.fake.on_create = lambda row: seen.append(house.steps)
    house.rent()
    assert seen == [["intent"]]


def test_nothing_is_asked_for_when_the_journal_cannot_be_written(house: House) -> None:
    house.journal.path.mkdir(parents=True)
    with pytest.raises(RemoteError, match="journal"):
        house.rent()
    assert house.fake.requests("PUT") == []


def test_given_back(house: House) -> None:
    box = house.rent()
    give_back(house.vast, box, house.journal, house.still.clock)
    assert house.left == []
    assert house.steps == ["intent", "created", "running", "destroying", "destroyed"]


def test_kept(house: House) -> None:
    keep(house.rent(), house.journal, house.still.clock)
    assert house.steps[-1] == "kept"


def test_the_next_offer_when_one_is_gone(house: House) -> None:
    house.fake.troubles.append(
        Trouble("PUT", ASKS, status=400, body={"success": False, "error": "no_such_ask"})
    )
    assert house.rent().machine_id == "101"
    assert house.steps == ["intent", "refused", "intent", "created", "running"]


@pytest.mark.parametrize("boot", [("loading", "exited"), ("offline",), ("unknown",), ("loading", "stopped")])
def test_the_next_machine_when_a_box_fails(house: House, boot: tuple[str, ...]) -> None:
    house.fake.boot_of_machine[102] = boot
    house.fake.offers[1022] = make_offer(1022, 0.36)
    box = house.rent()
    assert box.machine_id == "101"
    assert house.left == [box.id]
    assert len(house.fake.destroyed) == 1


def test_a_box_that_vanishes(house: House) -> None:
    def ready(box: Box) -> bool:
        if box.machine_id == "102":
            house.fake.boxes.clear()
            return False
        return True

    assert house.rent(ready=ready).machine_id == "101"
    assert any("has vanished" in line for line in house.said)


def test_a_box_that_appears_late(house: House) -> None:
    house.fake.late = 5
    assert house.rent().machine_id == "102"
    assert house.fake.destroyed == []


def test_a_box_that_is_stuck(house: House) -> None:
    house.fake.boot_of_machine[102] = (None, "loading")
    start = house.still.time
    box = house.rent(patience=Patience(stalled_s=300, total_s=3000))
    assert box.machine_id == "101"
    assert 300 <= house.still.time - start < 420
    assert any("300 s without progress" in line and "loading" in line for line in house.said)


def test_a_slow_box_that_makes_progress_is_waited_for(house: House) -> None:
    house.fake.boot_of_machine[102] = (*(f"pulling layer {n // 20}" for n in range(200)), "running")
    start = house.still.time
    assert house.rent(patience=Patience(stalled_s=300, total_s=3600)).machine_id == "102"
    assert house.still.time - start > 1900


def test_not_for_ever(house: House) -> None:
    house.fake.boot_of_machine[102] = tuple(f"pulling layer {n}" for n in range(1000))
    assert house.rent(patience=Patience(stalled_s=300, total_s=600)).machine_id == "101"
    assert len(house.fake.destroyed) == 1


def test_a_box_that_runs_but_does_not_answer(house: House) -> None:
    asked: list[Box] = []

    def ready(box: Box) -> bool:
        asked.append(box)
        return box.machine_id == "101"

    assert house.rent(ready=ready).machine_id == "101"
    assert {box.state for box in asked} == {"running"}
    assert len(house.fake.destroyed) == 1


def test_a_new_port_while_waiting(house: House) -> None:
    def ready(box: Box) -> bool:
        if box.addresses[0].port != 41234:
            house.fake.restart(int(box.id), 41234, "ssh-ed25519 AAAAnew")
            return False
        return True

    assert house.rent(ready=ready).addresses[0].port == 41234
    assert house.fake.destroyed == []


def test_a_box_that_costs_more_than_the_limit(house: House) -> None:
    house.fake.on_create = lambda row: row.update(dph_total=1.50) if row["machine_id"] == 102 else None
    assert house.rent().machine_id == "101"
    assert any("costs $1.500/h, the limit is $1.000/h" in line for line in house.said)
    assert len(house.fake.destroyed) == 1


@pytest.mark.parametrize(("price", "machine"), [(0.80, "102"), (0.95, "101")])
def test_a_box_that_costs_more_than_its_offer_said(house: House, price: float, machine: str) -> None:
    """Below the limit an hour; by the deadline, which comes from the offer's price, over the cap or not."""
    caps = Caps(hours=3, dollars=2.50)
    house.fake.on_create = lambda row: row.update(dph_total=price) if row["machine_id"] == 102 else None
    assert house.rent(order=replace(ORDER, caps=caps)).machine_id == machine
    told = [line for line in house.said if "it was offered for $0.370/h: $2.85 by its deadline" in line]
    assert bool(told) == (machine == "101")


@pytest.mark.parametrize("price", [None, "", "free", 0, -0.5, float("nan"), 10**400])
def test_a_box_without_a_usable_price_is_paid_as_its_offer_said(house: House, price: object) -> None:
    house.fake.on_create = lambda row: row.update(dph_total=price)
    assert house.rent().dollars_per_hour == pytest.approx(0.37)


@pytest.mark.parametrize("change", [{"gpu_name": "RTX 4080"}, {"num_gpus": 2}])
def test_a_box_of_another_gpu_than_ordered(house: House, change: dict[str, object]) -> None:
    house.fake.on_create = lambda row: row.update(change) if row["machine_id"] == 102 else None
    assert house.rent().machine_id == "101"
    assert any("ordered was 1 x RTX 4090" in line for line in house.said)
    assert len(house.fake.destroyed) == 1


def test_a_box_that_does_not_say_its_gpu(house: House) -> None:
    house.fake.on_create = lambda row: row.update(gpu_name=None, num_gpus=None)
    assert house.rent().machine_id == "102"


def test_a_lost_answer(house: House) -> None:
    house.fake.troubles.append(Trouble("PUT", ASKS, after=True, cut=True))
    box = house.rent()
    assert house.left == [box.id]
    assert house.fake.destroyed == [5001]
    assert house.steps == ["intent", "unclear", "cleared", "intent", "created", "running"]


def test_a_lost_answer_and_a_box_that_appears_late(house: House) -> None:
    house.fake.troubles.append(Trouble("PUT", ASKS, after=True, cut=True))
    house.fake.late = 5
    box = house.rent()
    assert house.left == [box.id]
    assert house.fake.destroyed == [5001]


def test_a_lost_request(house: House) -> None:
    house.fake.troubles.append(Trouble("PUT", ASKS, cut=True))
    start = house.still.time
    box = house.rent()
    assert house.left == [box.id] and house.fake.created == [int(box.id)]
    assert house.still.time - start >= SETTLE_S
    assert house.steps == ["intent", "unclear", "cleared", "intent", "created", "running"]


def test_a_refusal_that_made_a_box_without_a_label(house: House) -> None:
    def refuse(sent: dict[str, int]) -> dict[str, object]:
        house.fake.boxes[sent["new_contract"]]["label"] = None
        return {"success": False, "error": "bid_too_low", "new_contract": sent["new_contract"]}

    house.fake.troubles.append(Trouble("PUT", ASKS, status=400, after=True, body=refuse))
    box = house.rent()
    assert house.left == [box.id]


def test_nothing_more_is_rented_while_a_lost_box_may_exist(house: House) -> None:
    house.fake.troubles += [Trouble("PUT", ASKS, after=True, cut=True), Trouble("GET", LIST, 10**6)]
    with pytest.raises(LeftBehind, match="may be left behind"):
        house.rent()
    assert len(house.fake.requests("PUT", ASKS)) == 1
    assert house.steps == ["intent", "unclear"]


def test_nothing_more_is_rented_while_a_failed_box_is_there(house: House) -> None:
    house.fake.boot_of_machine[102] = ("exited",)
    house.fake.troubles.append(Trouble("DELETE", ONE, 10**6, 403, body="no"))
    with pytest.raises(LeftBehind, match="may be left behind"):
        house.rent()
    assert len(house.fake.requests("PUT", ASKS)) == 1
    assert house.steps == ["intent", "created", "destroying"]


@pytest.mark.parametrize("lost", [False, True])
def test_a_journal_that_fails_in_the_middle_leaves_no_box(house: House, lost: bool) -> None:
    def spoil(row: dict[str, object]) -> None:
        house.journal.path.unlink()
        house.journal.path.mkdir()

    house.fake.on_create = spoil
    if lost:
        house.fake.troubles.append(Trouble("PUT", ASKS, after=True, cut=True))
    with pytest.raises(LeftBehind, match="journal"):
        house.rent()
    assert house.left == [] and len(house.fake.destroyed) == 1


def test_two_controllers_at_once(house: House) -> None:
    house.fake.resale = True
    start, boxes = threading.Barrier(2), []

    def work(run: str) -> None:
        controller = House(house.fake, house.journal.folder)
        start.wait()
        boxes.append(controller.rent(order=replace(ORDER, run=run)))

    threads = [threading.Thread(target=work, args=(f"night-{n}",)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({box.machine_id for box in boxes}) == 2
    assert sorted(house.left) == sorted(box.id for box in boxes)


def test_a_key_that_does_not_arrive(house: House) -> None:
    house.fake.troubles.append(Trouble("POST", ONE + "ssh/", 6))
    box = house.rent()
    assert house.left == [box.id]
    assert house.fake.boxes[int(box.id)]["ssh_keys"] == ["ssh-ed25519 AAAA"]


def test_a_busy_provider_is_given_time(house: House) -> None:
    house.fake.troubles.append(Trouble("PUT", ASKS, 2, 429, body="API requests too frequent"))
    assert house.rent().machine_id == "102"
    assert house.still.slept.count(30.0) == 2


def test_an_account_without_credit(house: House) -> None:
    house.fake.troubles.append(
        Trouble("PUT", ASKS, 9, 400, body={"success": False, "error": "insufficient_credit"})
    )
    with pytest.raises(Refused, match="no credit"):
        house.rent()
    assert len(house.fake.requests("PUT", ASKS)) == 1


def test_one_offer_sold_twice(house: House) -> None:
    """Two controllers take the same offer, both are told yes, and one box never starts."""
    house.fake.resale = True
    first = house.rent()
    house.fake.boot_of_machine[102] = ("loading",)
    second = house.rent(order=replace(ORDER, run="night-2"))
    assert (first.machine_id, second.machine_id) == ("102", "101")
    assert sorted(house.left) == sorted([first.id, second.id])
    assert any(f"machine 102 holds box {first.id}" in line for line in house.said)


def test_offers_run_out(house: House) -> None:
    house.fake.boot = ("exited",)
    with pytest.raises(RemoteError, match=r"no box for run night-1: .*102.*101.*103"):
        house.rent()
    assert house.left == []
    assert len(house.fake.created) == 3


def test_nothing_on_offer(house: House) -> None:
    with pytest.raises(RemoteError, match="nothing is on offer"):
        house.rent(wanted=replace(WANTED, gpu="H200"))


def test_caps_that_are_too_small(house: House) -> None:
    with pytest.raises(RemoteError, match="the least is 10 min"):
        house.rent(order=replace(ORDER, caps=Caps(hours=3, dollars=0.10)))
    assert house.fake.created == []


def test_what_failed_boxes_cost_counts_against_the_cap(house: House) -> None:
    house.fake.boot_of_machine[102] = ("loading",)
    box = house.rent(order=replace(ORDER, caps=Caps(hours=30, dollars=1.0)))
    label = parse_label(box.label)
    begun = next(entry.at for entry in house.journal.read()[0] if entry.label == box.label)
    assert label
    paid = 0.37 * 900 / 3600  # 900 s until the first was given up
    assert label.deadline - begun == pytest.approx((1.0 - paid) / 0.42 * 3600 - 900, abs=60)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interruption_leaves_no_box(house: House, error: type[BaseException]) -> None:
    def ready(box: Box) -> bool:
        raise error

    with pytest.raises(error):
        house.rent(ready=ready)
    assert house.left == []
    assert house.steps[-2:] == ["destroying", "destroyed"]


def test_an_interruption_in_the_middle_of_the_request(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Api.call

    def call(self: Api, method: str, path: str, *given: object, **more: object) -> object:
        answer = real(self, method, path, *given, **more)  # type: ignore[arg-type]
        if "/asks/" in path:
            raise KeyboardInterrupt
        return answer

    monkeypatch.setattr(Api, "call", call)
    with pytest.raises(KeyboardInterrupt):
        house.rent()
    assert house.left == []
    assert house.steps == ["intent", "unclear", "cleared"]


def test_a_provider_that_is_away_for_a_while(house: House) -> None:
    house.fake.troubles.append(Trouble("GET", ONE, 20))
    assert house.rent().machine_id == "102"


def test_a_box_without_a_label_cannot_be_journalled(house: House) -> None:
    box = replace(house.rent(), label="")
    with pytest.raises(RemoteError, match="not PREFIX/RUN/DEADLINE"):
        keep(box, house.journal)
    with pytest.raises(ProviderError):
        house.vast.destroy("x")


def test_a_box_with_an_address_of_its_own(house: House) -> None:
    """What a fake box needs that a real ssh server stands behind."""

    def start(row: dict[str, object]) -> None:
        ports = {"22/tcp": [{"HostIp": "127.0.0.1", "HostPort": "2022"}]}
        row.update(public_ipaddr="127.0.0.1", ports=ports, host_key="ssh-ed25519 AAAAown")

    house.fake.on_create = start
    box = house.rent()
    assert box.addresses[0] == Address("127.0.0.1", 2022)
    assert house.vast.host_keys(box) == ["ssh-ed25519 AAAAown"]
