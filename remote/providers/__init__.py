"""Where boxes come from. To add a provider, write its file and name it here."""

from __future__ import annotations

from remote.clock import SYSTEM_CLOCK, Clock
from remote.errors import RemoteError
from remote.providers import ssh, vast
from remote.providers.base import Provider


def connect(name: str, clock: Clock = SYSTEM_CLOCK) -> Provider:
    """`vast`, or `ssh:HOST[:PORT]` for a box one already has."""
    if name == vast.NAME:
        return vast.connect(clock)
    if name.startswith("ssh:"):
        return ssh.Own(ssh.parse_address(name.removeprefix("ssh:")))
    raise RemoteError(f"unknown provider {name!r}; there are: vast, ssh:HOST[:PORT]")
