"""What can go wrong between here and a box, told apart by what one can do about it."""

from __future__ import annotations

from remote.errors import RemoteError


class Lost(RemoteError):
    """The connection did not come about or broke: the same call may work later. What ran may still run."""


class TimedOut(Lost):
    """No end within the time given: a slow command, or a box that does not answer. What ran may still run."""


class KeyRefused(RemoteError):
    """The box does not accept the key. Just after the start of a box the key may still be on its way."""


class HostKeyMismatch(RemoteError):
    """The box shows a host key that is not the pinned one, or none is pinned. Never to be passed over."""


class DiskFull(RemoteError):
    """The disk of the side that writes, or a limit on its file sizes, is exhausted."""
