from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from paramiko import ECDSAKey

from remote.box.host_keys import pin
from remote.errors import RemoteError
from remote.providers import connect
from remote.providers.base import Address, Wanted
from remote.providers.ssh import Own, parse_address

WANTED = Wanted(gpu="H200", num_gpus=8, gpu_ram_gb=141, disk_gb=100, max_dollars_per_hour=1.0)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("box", Address("box", 22)),
        ("box.example:2222", Address("box.example", 2222)),
        ("192.0.2.1:22", Address("192.0.2.1", 22)),
        ("[2001:db8::1]", Address("2001:db8::1", 22)),
        ("[2001:db8::1]:2200", Address("2001:db8::1", 2200)),
    ],
)
def test_address(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text",
    ["", ":22", "box:", "box:0", "box:65536", "box:ssh", "2001:db8::1", "a b", "-oProxyCommand=x", "box:²"],
)
def test_an_address_that_is_none(text: str) -> None:
    with pytest.raises(RemoteError, match="box"):
        parse_address(text)


def test_the_one_box_is_offered_rented_and_left() -> None:
    said: list[str] = []
    own = Own(Address("box", 2222), said.append)
    (offer,) = own.offers(WANTED)
    box = own.create(offer, "llm-ladder/a/1800000000", "", 0, "", "")
    assert (box.state, box.addresses, box.label) == (
        "running",
        (Address("box", 2222),),
        "llm-ladder/a/1800000000",
    )
    assert own.box(box.id) == replace(box, label="")
    assert own.boxes("") == []
    own.destroy(box.id)
    assert said == ["box:2222 is a box of your own: it is left running"]


def test_host_keys_are_those_that_the_user_knows(tmp_path: Path) -> None:
    own = Own(Address("box", 2222), known_hosts=tmp_path / "known_hosts")
    (offer,) = own.offers(WANTED)
    box = own.create(offer, "llm-ladder/a/1800000000", "", 0, "", "")
    with pytest.raises(RemoteError, match=r"no host key of \[box\]:2222 in .*known_hosts"):
        own.host_keys(box)
    made = ECDSAKey.generate()
    key = f"{made.get_name()} {made.get_base64()}"
    pin(own.known_hosts, [own.address], [key])
    assert own.host_keys(box) == [key]


def test_an_excluded_box_is_not_offered() -> None:
    assert Own(Address("box", 22)).offers(replace(WANTED, exclude_machines=frozenset({"box:22"}))) == []


def test_another_box_is_not_known() -> None:
    assert Own(Address("box", 22)).box("other:22") is None


def test_connect() -> None:
    assert connect("ssh:box:2222") == Own(Address("box", 2222))
    with pytest.raises(RemoteError, match="unknown provider 'runpod'"):
        connect("runpod")
