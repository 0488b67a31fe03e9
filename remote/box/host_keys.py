"""Host keys pinned per run: a known_hosts file that both Fabric and rsync's ssh read, and nothing else."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paramiko import HostKeys

from remote.box.errors import HostKeyMismatch, Lost
from remote.errors import RemoteError

if TYPE_CHECKING:
    from remote.providers.base import Address

KINDS = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa")


def host_name(address: Address) -> str:
    """The name of an ssh server in known_hosts: OpenSSH writes the port only when it is not 22."""
    return address.host if address.port == 22 else f"[{address.host}]:{address.port}"


def pin(known_hosts: Path, addresses: Sequence[Address], keys: Sequence[str]) -> None:
    """Makes these public keys ("TYPE BASE64", a comment may follow) the only ones accepted at the addresses.

    Writes the whole file anew, mode 0600. Raises RemoteError for what is not a key of a known type.
    """
    known = sorted((_parsed(key) for key in keys), key=lambda key: KINDS.index(key[0]))
    if not known:
        raise RemoteError("no host key to pin, at least 1 is needed")
    lines = [f"{host_name(address)} {kind} {data}\n" for address in addresses for kind, data in known]
    new = known_hosts.with_name(f"{known_hosts.name}.new")
    try:
        known_hosts.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.writelines(lines)
        new.replace(known_hosts)
    except OSError as error:
        raise RemoteError(f"{known_hosts} cannot be written: {error}") from error


def check_pinned(known_hosts: Path, address: Address) -> None:
    """Raises HostKeyMismatch when no key is pinned for the address."""
    if not known_hosts.exists() or HostKeys(str(known_hosts)).lookup(host_name(address)) is None:
        raise HostKeyMismatch(f"no host key of {host_name(address)} is pinned in {known_hosts}")


def known(known_hosts: Path, address: Address) -> list[str]:
    """The public keys that a known_hosts file, its names hashed or not, has for the address, as `pin` takes
    them."""
    found = HostKeys(str(known_hosts)).lookup(host_name(address)) if known_hosts.exists() else None
    return [f"{kind} {key.get_base64()}" for kind, key in (found or {}).items() if kind in KINDS]


def scan(address: Address, timeout_s: int = 10) -> list[str]:
    """The host keys that whoever answers at the address shows, as `pin` takes them.

    Nothing vouches for them: only for a network one trusts, or for comparison by eye. Raises Lost without an
    answer.
    """
    command = ["ssh-keyscan", "-T", str(timeout_s), "-p", str(address.port), "--", address.host]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    keys = [line.split(" ", 1)[1] for line in done.stdout.splitlines() if line and not line.startswith("#")]
    if not keys:
        raise Lost(f"{host_name(address)} showed no host key within {timeout_s} s: {done.stderr.strip()}")
    return keys


def _parsed(key: str) -> tuple[str, str]:
    match = re.fullmatch(r"(\S+) ([A-Za-z0-9+/]+={0,2})( [^\n]*)?", key.strip())
    if match is None or match[1] not in KINDS:
        raise RemoteError(f"not a public host key: {key[:60]!r}; known types: {', '.join(KINDS)}")
    return match[1], match[2]
