"""The connection to the box of a run: found, pinned, and found again when the box has moved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from remote.box.errors import HostKeyMismatch, KeyRefused, Lost
from remote.box.host_keys import pin
from remote.box.ssh import Ssh
from remote.desk import Desk
from remote.errors import ProviderError, RemoteError
from remote.providers.base import Address, Box
from remote.rent import NotUsable

Answer = TypeVar("Answer")


class BoxLost(RemoteError):
    """The provider says that the box is gone or will not run again."""


@dataclass
class Link:
    """`box` as the provider described it last; `ssh` at the address that answered last."""

    desk: Desk
    box: Box
    ssh: Ssh
    _missed: int = field(default=0, init=False)

    def steadily(self, action: Callable[[], Answer]) -> Answer:
        """The action, which may be repeated, again after each drop, for as long as the desk has patience.

        Raises BoxLost, HostKeyMismatch, and the last Lost.
        """
        clock = self.desk.clock
        give_up = clock.monotonic() + self.desk.patience_s
        while True:
            try:
                return action()
            except HostKeyMismatch:
                if not self.pin_anew():
                    raise
            except (Lost, KeyRefused) as error:
                if clock.monotonic() >= give_up:
                    raise
                self.desk.say(f"no contact, trying again: {error}")
            clock.sleep(self.desk.poll_s)
            self.look()

    def look(self) -> None:
        """Asks the provider for the box, and follows it to another address.

        Raises BoxLost when it has stopped, or is not listed twice in a row.
        """
        try:
            seen = self.desk.provider.box(self.box.id)
        except ProviderError as error:
            self.desk.say(f"box {self.box.id}: {error}")
            return
        if seen is None:
            self._missed += 1
            if self._missed > 1:
                raise BoxLost(f"box {self.box.id} on machine {self.box.machine_id} has vanished")
            return
        self._missed = 0
        if seen.state in ("stopped", "failed"):
            raise BoxLost(f"box {seen.id} on machine {seen.machine_id} is {seen.state}: {seen.message}")
        if seen.addresses and seen.addresses != self.box.addresses:
            self._move(seen)

    def pin_anew(self) -> bool:
        """A box that was started again may have new host keys: whether the provider vouches for such."""
        desk, file = self.desk, self.desk.folder.known_hosts
        before = file.read_bytes() if file.exists() else b""
        try:
            keys = desk.provider.host_keys(self.box)
        except ProviderError as error:
            desk.say(f"box {self.box.id}: {error}")
            return False
        if keys is None:
            return False
        pin(file, self.box.addresses, keys)
        self.ssh.close()
        return file.read_bytes() != before

    def _move(self, seen: Box) -> None:
        self.box = replace(self.box, addresses=seen.addresses)
        self.pin_anew()
        for address in seen.addresses:
            self.ssh.address = address
            self.ssh.close()
            try:
                if self.ssh.alive():
                    self.desk.say(f"box {seen.id} is at {address.host}:{address.port} now")
                    return
            except (HostKeyMismatch, KeyRefused) as error:
                self.desk.say(f"box {seen.id}: {error}")
        self.ssh.address = seen.addresses[0]


def reach(desk: Desk, box: Box) -> Link | None:
    """A link to a box whose host keys the provider vouches for; None while it does not answer.

    Raises NotUsable when something else answers at each of its addresses.
    """
    try:
        keys = desk.provider.host_keys(box)
    except ProviderError as error:
        desk.say(f"box {box.id}: {error}")
        return None
    if keys is None or not box.addresses:
        return None
    pin(desk.folder.known_hosts, box.addresses, keys)
    strange = []
    for address in box.addresses:
        ssh = _ssh(desk, address)
        try:
            if ssh.alive():
                return Link(desk, box, ssh)
        except KeyRefused:
            pass  # just after the start of a box its key may still be on its way
        except HostKeyMismatch as error:
            strange.append(str(error))
        ssh.close()
    if len(strange) == len(box.addresses):
        raise NotUsable("; ".join(strange))
    return None


def reach_steadily(desk: Desk, box: Box) -> Link:
    """As reach, waiting for an answer for as long as the desk has patience. Raises Lost."""
    give_up = desk.clock.monotonic() + desk.patience_s
    while (link := reach(desk, box)) is None:
        if desk.clock.monotonic() >= give_up:
            where = f"box {box.id} on machine {box.machine_id}"
            raise Lost(f"{where} does not answer for {desk.patience_s:.0f} s")
        desk.clock.sleep(desk.poll_s)
    return link


def _ssh(desk: Desk, address: Address) -> Ssh:
    return Ssh(address, desk.settings.user, desk.key(), desk.folder.known_hosts)
