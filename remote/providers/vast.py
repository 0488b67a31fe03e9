"""Vast.ai through its REST API.

A client of our own for the few calls that are needed: the vendor's package pins cryptography, raises on null
fields, and tries a create again after a lost answer, which can rent two boxes.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remote.clock import SYSTEM_CLOCK, Clock
from remote.errors import Busy, OfferGone, ProviderError, Refused, RemoteError, Unclear
from remote.providers.base import Box, Offer, Wanted, host_keys_in, suits
from remote.providers.rest import Api, Fault, Key
from remote.providers.vast_rows import NAME, box_of, offer_of, rental, search

URL = "https://console.vast.ai"
LIST = "/api/v1/instances/"  # v0 has none any more
PAGE = 25
LISTINGS = 3
ATTACH_TRIES = 6
ATTACH_PAUSE_S = 5.0
DESTROY_LIMIT_S = 600.0
DESTROY_POLL_S = 5.0
LOG_POLLS = 30
LOG_POLL_S = 1.0
LOG_LINES = 2000
GONE = ("no_such_ask", "not available", "no longer available", "already rented")
KEY_REFUSED = ("auth_error",)
NO_CREDIT = ("insufficient_credit",)


def read_key() -> Key:
    """$VAST_API_KEY, else ~/.config/vastai/vast_api_key, which must be readable by its owner only."""
    value = os.environ.get("VAST_API_KEY", "").strip()
    if value:
        return Key(value)
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    path = folder / "vastai" / "vast_api_key"
    try:
        with path.open(encoding="utf-8") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise RemoteError(f"{path} has mode {mode:o}, the limit is 600: chmod 600 {path}")
            return Key(file.read().strip())
    except (OSError, UnicodeDecodeError) as error:
        raise RemoteError(f"no API key: VAST_API_KEY is not set, {path} cannot be read: {error}") from None


def connect(clock: Clock = SYSTEM_CLOCK) -> Vast:
    """With the user's key, at $VAST_URL where that is set."""
    return Vast(Api(os.environ.get("VAST_URL") or URL, read_key(), clock))


@dataclass(frozen=True)
class Vast:
    """Vast.ai; methods as in base.Provider."""

    api: Api
    name: str = NAME

    def offers(self, wanted: Wanted) -> list[Offer]:
        # The search is a POST, but changes nothing: it may be tried again.
        rows = self.api.call("POST", "/api/v0/bundles/", search(wanted)).get("offers")
        if not isinstance(rows, list):
            raise ProviderError(f"POST /api/v0/bundles/: the answer has no list of offers: {str(rows)[:200]}")
        found = [offer for row in rows if (offer := offer_of(row)) and suits(offer, wanted)]
        return sorted(found, key=lambda offer: (offer.dollars_per_hour, offer.id))

    def create(
        self, offer: Offer, label: str, image: str, disk_gb: int, public_key: str, onstart: str
    ) -> Box:
        try:
            answer = self.api.call(
                "PUT", f"/api/v0/asks/{offer.id}/", rental(label, image, disk_gb, onstart), tries=1
            )
        except Fault as fault:
            raise _not_created(offer, fault) from fault
        if answer.get("success") is not True or not _contract(answer):
            text = json.dumps({name: value for name, value in answer.items() if "key" not in name})
            raise _not_created(offer, Fault(f"PUT /api/v0/asks/{offer.id}/: {text[:300]}", 200, text))
        box_id = _contract(answer)
        try:
            self._attach(box_id, public_key)
        except ProviderError as error:
            raise Unclear(f"box {box_id} was rented, but takes no ssh key: {error}", box_id) from error
        return Box(box_id, NAME, label, offer.machine_id, "starting", (), offer.dollars_per_hour, None)

    def boxes(self, label_prefix: str) -> list[Box]:
        for _ in range(LISTINGS):
            rows, total = self._list()
            if total is None or len(rows) >= total:
                return [box for box in map(box_of, rows.values()) if box.label.startswith(label_prefix)]
        raise ProviderError(f"the list of boxes has {len(rows)} rows, but the provider counts {total}")

    def box(self, box_id: str) -> Box | None:
        path = _path(box_id)
        try:
            answer = self.api.call("GET", path, query={"owner": "me"})
        except Fault as fault:
            if fault.status in (404, 410) and fault.code == "no_such_instance":
                return None
            raise
        if "instances" not in answer:
            raise ProviderError(f"GET {path}: the answer does not speak of boxes: {str(answer)[:200]}")
        return None if answer["instances"] is None else box_of(answer["instances"])

    def destroy(self, box_id: str) -> None:
        clock = self.api.clock
        end = clock.monotonic() + DESTROY_LIMIT_S
        while True:
            refused, said = self._delete(box_id)
            try:
                if self._gone(box_id):
                    return
            except Fault as fault:
                if not fault.passing:
                    raise
                said = f"{said}; then {fault}"
            if refused:
                raise ProviderError(f"box {box_id} is still there: {said}")
            if clock.monotonic() >= end:
                limit = f"{DESTROY_LIMIT_S:.0f} s"
                raise ProviderError(f"box {box_id} is not known to be gone after {limit}: {said}")
            clock.sleep(DESTROY_POLL_S)

    def host_keys(self, box: Box) -> list[str] | None:
        body = {"tail": str(LOG_LINES)}
        url = self.api.call("PUT", f"/api/v0/instances/request_logs/{box.id}/", body).get("result_url")
        if not isinstance(url, str) or not url:
            return None
        for _ in range(LOG_POLLS):
            text = self.api.public_text(url)
            if text is not None:
                return host_keys_in(text)
            self.api.clock.sleep(LOG_POLL_S)
        return None

    def _attach(self, box_id: str, public_key: str) -> None:
        for left in reversed(range(ATTACH_TRIES)):
            try:
                self.api.call("POST", f"{_path(box_id)}ssh/", {"ssh_key": public_key})
                return
            except Fault as fault:
                # The answer to an earlier try was lost.
                if fault.status in (400, 409) and "already" in fault.text.lower():
                    return
                # Not every part of the provider knows of the box yet.
                if fault.status != 404 or not left:
                    raise
            self.api.clock.sleep(ATTACH_PAUSE_S)

    def _list(self) -> tuple[dict[str, Mapping[str, Any]], int | None]:
        """All rows by id, and how many the provider says there are."""
        query = {
            "select_filters": "{}",
            "order_by": json.dumps([{"col": "id", "dir": "asc"}]),
            "limit": str(PAGE),
        }
        rows: dict[str, Mapping[str, Any]] = {}
        seen: set[str] = set()
        while True:
            answer = self.api.call("GET", LIST, query=query)
            page, token = answer.get("instances"), answer.get("next_token")
            if not isinstance(page, list):
                raise ProviderError(f"GET {LIST}: the answer has no list of boxes: {str(answer)[:200]}")
            rows.update((box_of(row).id, row) for row in page)
            if not token:
                total = answer.get("total_instances")
                return rows, total if isinstance(total, int) else None
            if str(token) in seen:
                raise ProviderError(f"GET {LIST}: page {str(token)[:100]} comes again: it does not end")
            seen.add(str(token))
            query["after_token"] = str(token)

    def _delete(self, box_id: str) -> tuple[bool, str]:
        """Asks for the end of a box: whether that is refused for good, and what was said; no proof of it."""
        try:
            return False, f"DELETE answered {str(dict(self.api.call('DELETE', _path(box_id), {})))[:200]}"
        except Fault as fault:
            return not fault.passing, str(fault)

    def _gone(self, box_id: str) -> bool:
        return all(box.id != box_id for box in self.boxes("")) and self.box(box_id) is None


def _path(box_id: str) -> str:
    # Without an id the same path means all boxes.
    if not box_id.isascii() or not box_id.isdigit():
        raise ProviderError(f"box {box_id!r}: an id at Vast.ai is a number")
    return f"/api/v0/instances/{box_id}/"


def _contract(answer: Mapping[str, Any]) -> str:
    number = answer.get("new_contract")
    return str(number) if isinstance(number, int) and not isinstance(number, bool) and number > 0 else ""


def _not_created(offer: Offer, fault: Fault) -> ProviderError:
    """What a create that failed means. Whatever does not clearly say that nothing was rented is Unclear."""
    said = f"{fault.code} {fault.text}".lower()
    if made := _contract(fault.body):
        return Unclear(f"offer {offer.id}: refused, but box {made} was made: {fault}", made)
    if not fault.sent:
        return ProviderError(f"offer {offer.id}: the provider cannot be reached: {fault}")
    if fault.status is None or fault.status >= 500 or fault.status == 408:
        return Unclear(f"offer {offer.id}: it is not known whether a box was made: {fault}")
    if fault.status == 429:
        return Busy(f"offer {offer.id}: {fault}")
    if fault.status in (401, 403) or any(word in said for word in KEY_REFUSED):
        return Refused(f"the provider does not take the API key: {fault}")
    if fault.status == 402 or any(word in said for word in NO_CREDIT):
        return Refused(f"the account has no credit: {fault}")
    if any(word in said for word in GONE):
        return OfferGone(f"offer {offer.id} is gone: {fault}")
    if fault.status < 400 and fault.body.get("success") is not False:
        return Unclear(f"offer {offer.id}: it is not known whether a box was made: {fault}")
    return ProviderError(f"offer {offer.id}: {fault}")
