"""Rows of the Vast.ai API as offers and boxes. Every field may be missing or null."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from remote.errors import ProviderError
from remote.providers.base import Address, Box, Offer, State, Wanted

NAME = "vast"
SHOWN_CHARACTERS = 300  # of what the provider says about a box
HOST = r"[A-Za-z0-9][A-Za-z0-9._-]*"  # neither an option of ssh nor a path of rsync
MOST_OFFERS = 64  # the server returns no more
STATES: Mapping[str, State] = {
    "running": "running",
    "stopped": "stopped",
    "frozen": "stopped",
    "exited": "failed",
    "offline": "failed",
    "unknown": "failed",
}


def search(wanted: Wanted) -> dict[str, Any]:
    """Body of POST bundles. `allocated_storage` makes dph_total the price with that disk."""
    return {
        "verified": {"eq": True},
        "external": {"eq": False},
        "rentable": {"eq": True},
        "gpu_name": {"eq": wanted.gpu},
        "num_gpus": {"eq": wanted.num_gpus},
        "gpu_ram": {"gte": wanted.gpu_ram_gb * 1000},
        "driver_version": {"gte": wanted.driver * 1_000_000},
        "cuda_max_good": {"gte": wanted.cuda},
        "disk_space": {"gte": wanted.disk_gb},
        "reliability2": {"gte": wanted.reliability},
        "inet_down": {"gte": wanted.down_mbps},
        "direct_port_count": {"gte": 1},
        "dph_total": {"lte": wanted.max_dollars_per_hour},
        "order": [["dph_total", "asc"]],
        "type": "on-demand",
        "limit": MOST_OFFERS,
        "allocated_storage": wanted.disk_gb,
    }


def rental(label: str, image: str, disk_gb: int, onstart: str) -> dict[str, Any]:
    """Body of PUT asks. `price` is for bids; `cancel_unavail`: no box rather than a stopped one."""
    return {
        "client_id": "me",
        "image": image,
        "env": {},
        "price": None,
        "disk": disk_gb,
        "label": label,
        "onstart": onstart,
        "runtype": "ssh_direc ssh_proxy",
        "image_login": None,
        "python_utf8": False,
        "lang_utf8": False,
        "use_jupyter_lab": False,
        "force": False,
        "cancel_unavail": True,
    }


def offer_of(row: Any) -> Offer | None:
    """None for a row that cannot be rented or judged: without an id, a machine or a price above 0."""
    if not isinstance(row, Mapping):
        return None
    number, machine, price = _id(row.get("id")), _id(row.get("machine_id")), _price(row.get("dph_total"))
    if not number or not machine or price is None:
        return None
    reliability = row.get("reliability2") if row.get("reliability2") is not None else row.get("reliability")
    return Offer(
        id=number,
        provider=NAME,
        machine_id=machine,
        gpu=_text(row.get("gpu_name")) or None,
        num_gpus=_whole(row.get("num_gpus")),
        gpu_ram_mb=_number(row.get("gpu_ram")),
        driver=_text(row.get("driver_version")) or None,
        cuda_max=_number(row.get("cuda_max_good")),
        disk_gb=_number(row.get("disk_space")),
        reliability=_number(reliability),
        down_mbps=_number(row.get("inet_down")),
        dollars_per_hour=price,
        location=_text(row.get("geolocation")),
    )


def box_of(row: Any) -> Box:
    """Raises ProviderError for a row without an id: leaving it out could hide a box that is being paid."""
    number = _id(row.get("id")) if isinstance(row, Mapping) else ""
    if not number:
        raise ProviderError(f"a row of the list of boxes has no id: {str(row)[:200]}")
    status = _text(row.get("actual_status"))
    return Box(
        id=number,
        provider=NAME,
        label=_text(row.get("label")),
        machine_id=_id(row.get("machine_id")),
        state=_state(row, status),
        addresses=addresses_of(row),
        dollars_per_hour=_price(row.get("dph_total")) or 0.0,
        started_at=_number(row.get("start_date")),
        message=_message(status, _text(row.get("status_msg"))),
        gpu=_text(row.get("gpu_name")) or None,
        num_gpus=_whole(row.get("num_gpus")),
    )


def _message(status: str, said: str) -> str:
    return " ".join(f"{status or 'no status yet'}: {said}".split()).rstrip(":")[:SHOWN_CHARACTERS]


def _state(row: Mapping[str, Any], status: str) -> State:
    # One that is outbid before it ran keeps its status; only what it is meant to become tells.
    if status != "running" and row.get("intended_status") == row.get("cur_state") == "stopped":
        return "stopped"
    return STATES.get(status, "starting")


def addresses_of(row: Mapping[str, Any]) -> tuple[Address, ...]:
    """The mapped port of the machine itself, then the provider's proxy: host and port of one each."""
    direct = (row.get("public_ipaddr"), _mapped_port(row.get("ports")))
    proxy = (row.get("ssh_host"), row.get("ssh_port"))
    found = [(_text(host), _whole(port)) for host, port in (direct, proxy)]
    return tuple(
        Address(host, port) for host, port in found if port and 0 < port < 65536 and re.fullmatch(HOST, host)
    )


def _mapped_port(ports: Any) -> Any:
    mapped = ports.get("22/tcp") if isinstance(ports, Mapping) else None
    first = mapped[0] if isinstance(mapped, list) and mapped else None
    return first.get("HostPort") if isinstance(first, Mapping) else None


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


def _id(value: Any) -> str:
    whole = _whole(value)
    return str(whole) if whole is not None and whole > 0 else ""


def _whole(value: Any) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number == int(number) else None


def _price(value: Any) -> float | None:
    """What is said to cost nothing, or less, has no price: caps could not be kept by it."""
    number = _number(value)
    return float(number) if number is not None and number > 0 else None


def _number(value: Any) -> float | int | None:
    """Numbers come as numbers or as text; a truth value is none, nor is what is beyond all reason."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, int):
        return value if abs(value) < 2**63 else None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
