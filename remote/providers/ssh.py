"""A box one already has. It is neither rented nor destroyed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from remote.box.host_keys import host_name, known
from remote.errors import RemoteError
from remote.providers.base import Address, Box, Offer, Wanted

NAME = "ssh"


def parse_address(text: str) -> Address:
    """HOST or HOST:PORT, an IPv6 address in brackets; port 22 unless given."""
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        host, port = text, "22"
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    bare_ipv6 = ":" in host and not text.startswith("[")
    # ssh would take a host that starts with a dash for an option.
    if bare_ipv6 or not re.fullmatch(r"[^\s-]\S*", host):
        raise RemoteError(f"box {text!r}: must be HOST or HOST:PORT, with an IPv6 address in brackets")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise RemoteError(f"box {text!r}: port {port!r} must be 1 to 65535")
    return Address(host, int(port))


@dataclass(frozen=True)
class Own:
    """One box; methods as in base.Provider. `say` gets a line for the user.

    The box keeps no label and so is never found by one: nothing can reap it.
    """

    address: Address
    say: Callable[[str], None] = print
    name: str = NAME
    known_hosts: Path = field(default_factory=lambda: Path.home() / ".ssh" / "known_hosts")

    @property
    def _id(self) -> str:
        return f"{self.address.host}:{self.address.port}"

    def offers(self, wanted: Wanted) -> list[Offer]:
        """The box, unless it is excluded. What it has is looked at when it is prepared."""
        if self._id in wanted.exclude_machines:
            return []
        return [Offer(self._id, NAME, self._id, None, None, None, None, None, None, None, None, 0.0, "own")]

    def create(
        self, offer: Offer, label: str, image: str, disk_gb: int, public_key: str, onstart: str
    ) -> Box:
        return self._box(label)

    def boxes(self, label_prefix: str) -> list[Box]:
        return []

    def box(self, box_id: str) -> Box | None:
        return self._box("") if box_id == self._id else None

    def destroy(self, box_id: str) -> None:
        self.say(f"{box_id} is a box of your own: it is left running")

    def host_keys(self, box: Box) -> list[str] | None:
        """Those in the user's own known_hosts. Raises RemoteError when there are none."""
        if keys := known(self.known_hosts, self.address):
            return keys
        raise RemoteError(
            f"no host key of {host_name(self.address)} in {self.known_hosts}: connect once with ssh and "
            "compare the fingerprint it shows with the box's own"
        )

    def _box(self, label: str) -> Box:
        return Box(self._id, NAME, label, self._id, "running", (self.address,), 0.0, None)
