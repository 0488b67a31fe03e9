from __future__ import annotations

import socket
import subprocess
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remote.errors import Busy, OfferGone, ProviderError, Refused, RemoteError, Unclear
from remote.providers import connect
from remote.providers.base import PRINT_HOST_KEYS, Address, Box, Offer, Wanted, host_keys_in
from remote.providers.rest import Api, Fault, Key
from remote.providers.vast import Vast, read_key
from remote.providers.vast_rows import box_of
from tests.remote.clocks import StillClock
from tests.remote.fake_vast import HOST_KEY, KEY, FakeVast, Trouble, make_offer

WANTED = Wanted(gpu="RTX 4090", num_gpus=1, gpu_ram_gb=24, disk_gb=73, max_dollars_per_hour=1.00)
LABEL = "llm-ladder/night-1/1800003600"
PUBLIC_KEY = "ssh-ed25519 AAAAC3Nza run"
ASKS, LIST, ONE = r"/api/v0/asks/\d+/", "/api/v1/instances/", r"/api/v0/instances/\d+/"


def create(vast: Vast, offer: Offer | None = None) -> Box:
    offer = offer or vast.offers(WANTED)[0]
    return vast.create(offer, LABEL, "vendor/image:1", WANTED.disk_gb, PUBLIC_KEY, PRINT_HOST_KEYS)


def run_up(vast: Vast, box: Box) -> Box:
    for _ in range(3):
        seen = vast.box(box.id)
        assert seen is not None
    assert seen.state == "running"
    return seen


class TestKey:
    def test_of_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VAST_API_KEY", KEY + "\n")
        assert read_key().header() == f"Bearer {KEY}"

    @pytest.fixture
    def key_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.delenv("VAST_API_KEY", raising=False)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        path = tmp_path / "vastai" / "vast_api_key"
        path.parent.mkdir()
        return path

    def test_of_the_file(self, key_file: Path) -> None:
        key_file.write_text(KEY + "\n")
        key_file.chmod(0o600)
        assert read_key().header() == f"Bearer {KEY}"

    @pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
    def test_that_others_can_read_is_refused(self, key_file: Path, mode: int) -> None:
        key_file.write_text(KEY)
        key_file.chmod(mode)
        with pytest.raises(RemoteError, match=rf"mode {mode:o}, the limit is 600") as caught:
            read_key()
        assert KEY not in str(caught.value)

    def test_that_is_missing(self, key_file: Path) -> None:
        with pytest.raises(RemoteError, match="VAST_API_KEY is not set"):
            read_key()

    def test_at_another_address(self, fake: FakeVast, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VAST_API_KEY", KEY)
        monkeypatch.setenv("VAST_URL", fake.url)
        assert connect("vast").boxes("") == []

    def test_that_is_wrong(self, fake: FakeVast, still: StillClock) -> None:
        vast = Vast(Api(fake.url, Key("wrong-key-wrong-key"), still.clock))
        with pytest.raises(Fault, match="auth_error"):
            vast.boxes("")
        with pytest.raises(Fault, match="auth_error"):
            vast.box("5001")
        with pytest.raises(Fault, match="auth_error"):
            vast.destroy("5001")


class TestOffers:
    def test_cheapest_first(self, vast: Vast) -> None:
        assert [offer.id for offer in vast.offers(WANTED)] == ["1021", "1011", "1031"]

    def test_fields(self, vast: Vast) -> None:
        assert vast.offers(WANTED)[0] == Offer(
            id="1021",
            provider="vast",
            machine_id="102",
            gpu="RTX 4090",
            num_gpus=1,
            gpu_ram_mb=24564,
            driver="580.95.05",
            cuda_max=13.0,
            disk_gb=500.0,
            reliability=0.99,
            down_mbps=900.0,
            dollars_per_hour=pytest.approx(0.35 + 0.20 * 73 / 730),
            location="Sweden, SE",
        )

    def test_price_and_cap_are_those_with_the_disk(self, vast: Vast, fake: FakeVast) -> None:
        fake.offers = {11: make_offer(11, 0.30, storage_cost=1.0), 21: make_offer(21, 0.35, storage_cost=0.1)}
        assert [offer.id for offer in vast.offers(replace(WANTED, disk_gb=10))] == ["11", "21"]
        assert [offer.id for offer in vast.offers(replace(WANTED, disk_gb=146))] == ["21", "11"]
        capped = replace(WANTED, disk_gb=146, max_dollars_per_hour=0.40)
        assert [offer.id for offer in vast.offers(capped)] == ["21"]

    @pytest.mark.parametrize("filters", [True, False])
    @pytest.mark.parametrize(
        "changes",
        [
            {"gpu_name": "RTX 4090 D"},
            {"gpu_name": "RTX 4090D"},
            {"num_gpus": 2},
            {"gpu_ram": 23999},
            {"driver_version": "570.211.01"},
            {"driver_version": None},
            {"cuda_max_good": 12.8},
            {"cuda_max_good": None},
            {"disk_space": 72.9},
            {"reliability2": 0.94, "reliability": 0.94},
            {"reliability2": None, "reliability": None},
            {"inet_down": 199},
            {"inet_down": None},
            {"dph_base": 0.99},
            {"machine_id": None},
            {"machine_id": 666},
            {"id": None},
        ],
    )
    def test_that_lack_something(
        self, vast: Vast, fake: FakeVast, changes: dict[str, Any], filters: bool
    ) -> None:
        """Also when the provider gives what was not searched for."""
        fake.filters = filters
        fake.offers[11] = make_offer(11, 0.01, **changes)
        wanted = replace(WANTED, exclude_machines=frozenset({"666"}))
        assert [offer.id for offer in vast.offers(wanted)] == ["1021", "1011", "1031"]

    @pytest.mark.parametrize("filters", [True, False])
    @pytest.mark.parametrize("name", ["H100 NVL", "H100 PCIE", "H100 SXM", "H100"])
    def test_names_are_exact(self, vast: Vast, fake: FakeVast, name: str, filters: bool) -> None:
        fake.filters = filters
        names = ["H100 NVL", "H100 PCIE", "H100 SXM", "H100"]
        fake.offers = {n: make_offer(n, 0.9, gpu_name=gpu, gpu_ram=81559) for n, gpu in enumerate(names, 11)}
        assert [offer.gpu for offer in vast.offers(replace(WANTED, gpu=name))] == [name]

    @pytest.mark.parametrize("trouble", [{"offers": None}, {}, {"offers": "x"}])
    def test_an_answer_without_offers(self, vast: Vast, fake: FakeVast, trouble: dict[str, Any]) -> None:
        fake.troubles.append(Trouble("POST", "/api/v0/bundles/", status=200, body=trouble))
        with pytest.raises(ProviderError, match="no list of offers"):
            vast.offers(WANTED)

    def test_a_storm_passes(self, vast: Vast, fake: FakeVast) -> None:
        fake.troubles.append(
            Trouble("POST", "/api/v0/bundles/", times=3, status=429, body="API requests too frequent")
        )
        assert len(vast.offers(WANTED)) == 3


class TestCreate:
    def test_box(self, vast: Vast, fake: FakeVast) -> None:
        box = create(vast)
        row = fake.boxes[int(box.id)]
        assert (box.state, box.label, box.machine_id, box.addresses) == ("starting", LABEL, "102", ())
        assert box.dollars_per_hour == pytest.approx(row["dph_total"])
        assert row["label"] == LABEL
        assert row["ssh_keys"] == [PUBLIC_KEY]

    def test_request(self, vast: Vast, fake: FakeVast) -> None:
        create(vast)
        (request,) = fake.requests("PUT", ASKS)
        assert request.body["disk"] == 73
        assert request.body["onstart"] == PRINT_HOST_KEYS
        assert request.body["image"] == "vendor/image:1"
        assert request.body["cancel_unavail"] is True
        assert request.body["runtype"] == "ssh_direc ssh_proxy"

    @pytest.mark.parametrize(
        "trouble",
        [
            Trouble("PUT", ASKS, times=9, after=True, cut=True),
            Trouble("PUT", ASKS, times=9, after=True, status=502, body="bad gateway"),
            Trouble("PUT", ASKS, times=9, after=True, status=503),
            Trouble("PUT", ASKS, times=9, after=True, status=200, body="<html>"),
            Trouble(
                "PUT", ASKS, times=9, after=True, status=200, body={"success": True, "new_contract": None}
            ),
            Trouble("PUT", ASKS, times=9, after=True, status=302, headers={"Location": "/elsewhere"}),
        ],
        ids=["cut", "502", "503", "html", "no id", "redirect"],
    )
    def test_a_lost_answer_is_unclear_and_not_asked_for_again(
        self, vast: Vast, fake: FakeVast, trouble: Trouble
    ) -> None:
        fake.resale = True
        fake.troubles.append(trouble)
        with pytest.raises(Unclear) as caught:
            create(vast)
        assert caught.value.box_id is None
        assert len(fake.requests("PUT", ASKS)) == 1
        assert [box.id for box in vast.boxes(LABEL)] == [str(fake.created[0])]

    def test_the_key_of_a_box_is_not_told(self, vast: Vast, fake: FakeVast) -> None:
        fake.troubles.append(
            Trouble("PUT", ASKS, status=200, body={"success": True, "instance_api_key": "secret-of-a-box"})
        )
        with pytest.raises(Unclear) as caught:
            create(vast)
        assert "secret" not in "".join(traceback.format_exception(caught.value))

    def test_a_time_out_is_unclear(self, vast: Vast, fake: FakeVast, still: StillClock) -> None:
        fake.troubles.append(Trouble("PUT", ASKS, after=True, wait_s=1.0))
        hasty = Vast(Api(fake.url, Key(KEY), still.clock, timeout_s=0.3))
        with pytest.raises(Unclear, match="TimeoutError"):
            create(hasty, vast.offers(WANTED)[0])

    def test_an_offer_that_is_gone(self, vast: Vast, fake: FakeVast) -> None:
        offer = vast.offers(WANTED)[0]
        fake.offers.clear()
        with pytest.raises(OfferGone, match="1021"):
            create(vast, offer)
        assert fake.created == []

    @pytest.mark.parametrize(
        ("status", "body"),
        [
            (400, {"success": False, "error": "no_such_ask", "msg": "x"}),
            (404, {"error": "no_such_ask"}),
            (410, {"msg": "error 404/3603: no_such_ask"}),
            (404, "no_such_ask"),
            (200, {"success": False, "error": "no_such_ask"}),
        ],
    )
    def test_the_ways_to_say_so(self, vast: Vast, fake: FakeVast, status: int, body: Any) -> None:
        fake.troubles.append(Trouble("PUT", ASKS, status=status, body=body))
        with pytest.raises(OfferGone):
            create(vast)

    @pytest.mark.parametrize(
        ("status", "body", "kind"),
        [
            (429, "API requests too frequent: endpoint threshold=4.0", Busy),
            (
                400,
                {"success": False, "error": "insufficient_credit", "msg": "Your account lacks credit"},
                Refused,
            ),
            (402, "", Refused),
            (404, {"success": False, "error": "auth_error", "msg": "Invalid user key"}, Refused),
            (401, "", Refused),
            (400, {"success": False, "error": "invalid_args", "msg": "disk is too large"}, ProviderError),
        ],
    )
    def test_a_clear_no(
        self, vast: Vast, fake: FakeVast, status: int, body: Any, kind: type[ProviderError]
    ) -> None:
        fake.troubles.append(Trouble("PUT", ASKS, status=status, body=body))
        with pytest.raises(ProviderError) as caught:
            create(vast)
        assert type(caught.value) is kind
        assert len(fake.requests("PUT", ASKS)) == 1

    def test_a_refusal_that_made_a_box_all_the_same(self, vast: Vast, fake: FakeVast) -> None:
        trouble = Trouble("PUT", ASKS, status=400, after=True)
        trouble.body = lambda sent: {
            "success": False,
            "error": "bid_too_low",
            "new_contract": sent["new_contract"],
        }
        fake.troubles.append(trouble)
        with pytest.raises(Unclear) as caught:
            create(vast)
        assert caught.value.box_id == str(fake.created[0])

    def test_a_provider_that_is_not_there(self, vast: Vast, still: StillClock) -> None:
        offer = vast.offers(WANTED)[0]
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        away = Vast(Api(f"http://127.0.0.1:{port}", Key(KEY), still.clock))
        with pytest.raises(ProviderError, match="cannot be reached") as caught:
            create(away, offer)
        assert not isinstance(caught.value, Unclear)
        assert KEY not in "".join(traceback.format_exception(caught.value))

    def test_a_box_that_does_not_take_the_key(self, vast: Vast, fake: FakeVast) -> None:
        fake.troubles.append(Trouble("POST", ONE + "ssh/", times=99))
        with pytest.raises(Unclear, match="ssh key") as caught:
            create(vast)
        assert caught.value.box_id == str(fake.created[0])

    def test_a_box_that_is_not_known_everywhere_at_once(self, vast: Vast, fake: FakeVast) -> None:
        body = {"success": False, "error": "no_such_instance"}
        fake.troubles.append(Trouble("POST", ONE + "ssh/", times=5, status=404, body=body))
        box = create(vast)
        assert fake.boxes[int(box.id)]["ssh_keys"] == [PUBLIC_KEY]

    def test_a_lost_answer_about_the_key(self, vast: Vast, fake: FakeVast) -> None:
        fake.troubles.append(Trouble("POST", ONE + "ssh/", after=True, cut=True))
        box = create(vast)
        assert fake.boxes[int(box.id)]["ssh_keys"] == [PUBLIC_KEY]


class TestBoxes:
    def test_all_pages(self, vast: Vast, fake: FakeVast) -> None:
        numbers = [str(fake.add_box(f"llm-ladder/run-{n}/1800000000")) for n in range(60)]
        assert [box.id for box in vast.boxes("llm-ladder/")] == numbers
        assert len(fake.requests("GET", LIST)) == 3

    def test_prefix(self, vast: Vast, fake: FakeVast) -> None:
        for label in ("llm-ladder/a/1800000000", "llm-ladder-2/a/1800000000", "mine", "", None):
            fake.add_box(label)
        assert [box.label for box in vast.boxes("llm-ladder/")] == ["llm-ladder/a/1800000000"]
        assert len(vast.boxes("")) == 5

    def test_nulls(self, vast: Vast, fake: FakeVast) -> None:
        number = fake.add_box(None, status=None)
        fake.boxes[number] = {"id": number} | dict.fromkeys(fake.boxes[number].keys() - {"id"})
        (box,) = vast.boxes("")
        assert box == Box(str(number), "vast", "", "", "starting", (), 0.0, None, "no status yet")

    @pytest.mark.parametrize(
        "answer",
        [
            "",
            {},
            {"instances": None},
            {"instances": "x"},
            {"success": False},
            {"instances": [{"label": "a"}]},
        ],
    )
    def test_an_answer_that_is_no_list_is_not_an_empty_one(
        self, vast: Vast, fake: FakeVast, answer: Any
    ) -> None:
        fake.troubles.append(Trouble("GET", LIST, times=99, status=200, body=answer))
        with pytest.raises(ProviderError):
            vast.boxes("")

    def test_a_deprecated_list_is_not_an_empty_one(self, vast: Vast, fake: FakeVast) -> None:
        fake.troubles.append(
            Trouble("GET", LIST, times=99, status=410, body={"error": "deprecated_endpoint"})
        )
        with pytest.raises(ProviderError, match="deprecated_endpoint"):
            vast.boxes("")

    def test_a_failing_second_page_is_not_the_end(self, vast: Vast, fake: FakeVast) -> None:
        for _ in range(30):
            fake.add_box("llm-ladder/a/1800000000")
        first = Trouble("GET", LIST, after=True, status=200, body=lambda sent: sent)
        fake.troubles += [first, Trouble("GET", LIST, times=99)]
        with pytest.raises(ProviderError, match="503"):
            vast.boxes("")

    def test_fewer_rows_than_are_counted(self, vast: Vast, fake: FakeVast) -> None:
        fake.add_box("llm-ladder/a/1800000000")
        short = Trouble("GET", LIST, after=True, status=200, body=lambda sent: sent | {"total_instances": 2})
        fake.troubles.append(short)
        assert len(vast.boxes("")) == 1
        short.times = 99
        with pytest.raises(ProviderError, match="has 1 rows, but the provider counts 2"):
            vast.boxes("")

    def test_pages_without_an_end(self, vast: Vast, fake: FakeVast) -> None:
        fake.add_box("llm-ladder/a/1800000000")
        fake.troubles.append(
            Trouble(
                "GET",
                LIST,
                times=99,
                after=True,
                status=200,
                body=lambda sent: sent | {"next_token": "9"},
            )
        )
        with pytest.raises(ProviderError, match="does not end"):
            vast.boxes("")


class TestBox:
    def test_life(self, vast: Vast, fake: FakeVast) -> None:
        box = create(vast)
        states = [vast.box(box.id) for _ in range(3)]
        assert [seen.state for seen in states if seen] == ["starting", "starting", "running"]
        assert states[0] and states[0].message == "no status yet"
        assert states[1] and states[1].message == "loading: status is loading"

    def test_unknown(self, vast: Vast) -> None:
        assert vast.box("999") is None

    @pytest.mark.parametrize("number", ["", "12/34", "../users", "5001 ", "٣"])
    def test_an_id_is_a_number(self, vast: Vast, fake: FakeVast, number: str) -> None:
        for call in (vast.box, vast.destroy):
            with pytest.raises(ProviderError, match=r"an id at Vast\.ai is a number"):
                call(number)
        assert fake.seen == []

    def test_an_error_is_not_unknown(self, vast: Vast, fake: FakeVast) -> None:
        fake.troubles.append(Trouble("GET", ONE, times=99, status=404, body="404 page not found"))
        with pytest.raises(ProviderError, match="404"):
            vast.box("5001")

    def test_an_answer_about_something_else(self, vast: Vast, fake: FakeVast) -> None:
        fake.troubles.append(Trouble("GET", ONE, status=200, body={"success": True}))
        with pytest.raises(ProviderError, match="does not speak of boxes"):
            vast.box("5001")

    @pytest.mark.parametrize(
        ("status", "state"),
        [
            (None, "starting"),
            ("created", "starting"),
            ("loading", "starting"),
            ("rebooting", "starting"),
            ("some new word", "starting"),
            ("running", "running"),
            ("stopped", "stopped"),
            ("frozen", "stopped"),
            ("exited", "failed"),
            ("offline", "failed"),
            ("unknown", "failed"),
        ],
    )
    def test_states(self, status: str | None, state: str) -> None:
        assert box_of({"id": 1, "actual_status": status}).state == state

    def test_outbid(self, vast: Vast, fake: FakeVast) -> None:
        box = create(vast)
        fake.outbid(int(box.id))
        seen = vast.box(box.id)
        assert seen is not None and seen.state == "stopped"

    @pytest.mark.parametrize("status", [None, "loading"])
    def test_outbid_before_it_ran(self, status: str | None) -> None:
        row = {"id": 1, "actual_status": status, "intended_status": "stopped", "cur_state": "stopped"}
        assert box_of(row).state == "stopped"

    def test_addresses(self, vast: Vast) -> None:
        box = run_up(vast, create(vast))
        number = int(box.id)
        assert box.addresses == (
            Address("203.0.113.9", 40000 + number % 1000),
            Address("ssh4.vast.example", 10000 + number),
        )

    @pytest.mark.parametrize(
        "changes",
        [
            {"ports": None},
            {"ports": [22]},
            {"ports": {}},
            {"ports": {"22/tcp": None}},
            {"ports": {"22/tcp": []}},
            {"ports": {"22/tcp": [{"HostPort": "0"}]}},
            {"ports": {"22/tcp": [{"HostPort": "x"}]}},
            {"public_ipaddr": None},
            {"public_ipaddr": " "},
        ],
    )
    def test_host_and_port_of_two_addresses_do_not_mix(self, changes: dict[str, Any]) -> None:
        row = {"id": 1, "public_ipaddr": "203.0.113.9", "ports": {"22/tcp": [{"HostPort": "40022"}]}}
        row |= {"ssh_host": "proxy", "ssh_port": 2222} | changes
        assert box_of(row).addresses == (Address("proxy", 2222),)

    def test_another_port_after_a_restart(self, vast: Vast, fake: FakeVast) -> None:
        box = run_up(vast, create(vast))
        fake.restart(int(box.id), 41234, HOST_KEY)
        seen = vast.box(box.id)
        assert seen is not None and seen.addresses[0] == Address("203.0.113.9", 41234)


class TestDestroy:
    def test_box(self, vast: Vast, fake: FakeVast) -> None:
        box = create(vast)
        vast.destroy(box.id)
        assert fake.boxes == {}
        assert fake.seen[-2].path == LIST

    def test_what_is_gone_already(self, vast: Vast) -> None:
        vast.destroy("5999")

    def test_a_request_that_is_taken_and_forgotten(self, vast: Vast, fake: FakeVast) -> None:
        fake.stubborn = 3
        vast.destroy(create(vast).id)
        assert fake.boxes == {}
        assert len(fake.requests("DELETE")) == 4

    def test_a_box_that_does_not_go(self, vast: Vast, fake: FakeVast) -> None:
        fake.stubborn = 10**6
        box = create(vast)
        with pytest.raises(ProviderError, match=f"box {box.id} is not known to be gone after 600 s"):
            vast.destroy(box.id)

    @pytest.mark.parametrize("status", [429, 500, 502, 503])
    def test_a_storm(self, vast: Vast, fake: FakeVast, status: int) -> None:
        box = create(vast)
        fake.troubles += [
            Trouble(method, path, 9, status)
            for method, path in (("DELETE", ONE), ("GET", LIST), ("GET", ONE))
        ]
        vast.destroy(box.id)
        assert fake.boxes == {}

    def test_a_lost_answer(self, vast: Vast, fake: FakeVast) -> None:
        box = create(vast)
        fake.troubles.append(Trouble("DELETE", ONE, after=True, cut=True))
        vast.destroy(box.id)
        assert fake.boxes == {}

    @pytest.mark.parametrize("status", [200, 404, 410, 503])
    def test_a_failed_list_is_not_read_as_gone(self, vast: Vast, fake: FakeVast, status: int) -> None:
        box = create(vast)
        fake.troubles += [Trouble("DELETE", ONE, 10**6), Trouble("GET", LIST, 10**6, status, body="")]
        with pytest.raises(ProviderError):
            vast.destroy(box.id)
        assert int(box.id) in fake.boxes

    def test_a_list_that_forgets_the_box_is_not_enough(self, vast: Vast, fake: FakeVast) -> None:
        box = create(vast)
        empty = {"instances": [], "next_token": None, "total_instances": 0}
        fake.troubles += [Trouble("DELETE", ONE, 1, 500), Trouble("GET", LIST, 1, 200, body=empty)]
        vast.destroy(box.id)
        assert fake.boxes == {}

    @pytest.mark.parametrize("body", ["404 page not found", {"success": False, "error": "not_allowed"}])
    def test_a_refusal_while_the_box_is_there(self, vast: Vast, fake: FakeVast, body: Any) -> None:
        box = create(vast)
        fake.troubles.append(Trouble("DELETE", ONE, 99, 403, body=body))
        with pytest.raises(ProviderError, match=f"box {box.id} is still there"):
            vast.destroy(box.id)


class TestHostKeys:
    def test_none_yet(self, vast: Vast) -> None:
        assert vast.host_keys(create(vast)) is None

    def test_of_a_running_box(self, vast: Vast, fake: FakeVast) -> None:
        fake.log_polls = 3
        box = run_up(vast, create(vast))
        assert vast.host_keys(box) == [HOST_KEY]
        assert all("authorization" not in seen.headers for seen in fake.requests("GET", "/results/.*"))

    def test_after_a_restart(self, vast: Vast, fake: FakeVast) -> None:
        box = run_up(vast, create(vast))
        fake.restart(int(box.id), 41234, "ecdsa-sha2-nistp256 AAAAother")
        assert vast.host_keys(box) == ["ecdsa-sha2-nistp256 AAAAother"]

    def test_a_block_that_is_not_complete(self, vast: Vast, fake: FakeVast) -> None:
        box = run_up(vast, create(vast))
        row = fake.boxes[int(box.id)]
        row["log"] = "llm-ladder-host-keys begin\nssh-ed25519 AAAAhalf\n"
        assert vast.host_keys(box) is None
        row["log"] += (
            "llm-ladder-host-keys begin\r\nssh-rsa AAAAwhole root@box\r\nllm-ladder-host-keys end\r\n"
        )
        assert vast.host_keys(box) == ["ssh-rsa AAAAwhole"]

    def test_what_a_box_prints(self, tmp_path: Path) -> None:
        for kind in ("rsa", "ed25519"):
            (tmp_path / f"ssh_host_{kind}_key.pub").write_text(f"ssh-{kind} AAAA{kind} root@box\n")
            (tmp_path / f"ssh_host_{kind}_key").write_text("private")
        log = tmp_path / "log"
        script = PRINT_HOST_KEYS.replace("/etc/ssh", str(tmp_path)).replace("/proc/1/fd/1", str(log))
        subprocess.run(["bash", "-euc", script + "wait"], check=True)
        assert host_keys_in(log.read_text()) == ["ssh-ed25519 AAAAed25519", "ssh-rsa AAAArsa"]
        assert "private" not in log.read_text()

    def test_a_log_that_never_comes(self, vast: Vast, fake: FakeVast) -> None:
        fake.log_polls = 10**6
        assert vast.host_keys(run_up(vast, create(vast))) is None


def test_the_key_goes_to_no_box(vast: Vast, fake: FakeVast) -> None:
    create(vast)
    assert KEY not in str([seen.body for seen in fake.seen])
    assert KEY not in str(fake.boxes)


class TestVendorsClient:
    """The fake is worth something only if the vendor's own client takes it for the real thing."""

    @pytest.fixture
    def client(self, fake: FakeVast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        vastai = pytest.importorskip("vastai", reason="the vendor's client is in the extra `vast` only")
        monkeypatch.setenv("HOME", str(tmp_path))
        return vastai.VastAI(api_key=KEY, server_url=fake.url)

    def test_life_of_a_box(self, client: Any, vast: Vast, fake: FakeVast) -> None:
        query = "gpu_name=RTX_4090 num_gpus=1 cuda_max_good>=13.0 driver_version>=580.00.00"
        offers = client.search_offers(query=query, order="dph_total", storage=73)
        assert [str(row["id"]) for row in offers] == [offer.id for offer in vast.offers(WANTED)]
        assert offers[0]["dph_total"] == vast.offers(WANTED)[0].dollars_per_hour
        number = client.create_instance(
            id=offers[0]["id"], image="vendor/image:1", disk=73, label=LABEL, ssh=True, direct=True
        )["new_contract"]
        client.attach_ssh(number, PUBLIC_KEY)
        run_up(vast, vast.boxes(LABEL)[0])
        assert client.show_instance(id=number)["actual_status"] == "running"
        assert HOST_KEY in client.logs(number)
        client.destroy_instance(id=number)
        assert client.show_instance(id=number) is None
        assert fake.boxes == {}

    def test_pages(self, client: Any, fake: FakeVast) -> None:
        numbers = [fake.add_box(f"llm-ladder/run-{n}/1800000000") for n in range(60)]
        assert [row["id"] for row in client.show_instances()] == numbers

    def test_requests_are_shaped_like_its_own(self, client: Any, vast: Vast, fake: FakeVast) -> None:
        create(vast)
        client.create_instance(id=1011, image="i", disk=73, label=LABEL, ssh=True, direct=True)
        ours, theirs = (seen.body for seen in fake.requests("PUT", ASKS))
        assert set(ours) <= set(theirs)
        assert ours["runtype"] == theirs["runtype"] and ours["client_id"] == theirs["client_id"]

    def test_a_lost_answer_makes_it_rent_twice(self, client: Any, fake: FakeVast) -> None:
        """Why it is not used here."""
        fake.resale = True
        fake.troubles.append(Trouble("PUT", ASKS, after=True, cut=True))
        client.create_instance(id=1011, image="i", disk=73, label=LABEL, ssh=True, direct=True)
        assert len(fake.boxes) == 2
