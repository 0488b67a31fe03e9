"""The scripts that work on the box, carried there as one archive."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remote.box.ssh import Ssh

SCRIPTS = ("deadman.sh", "job.sh", "power_down.sh")
FOLDER = "llm-ladder/box"

# Each script takes its place by a rename: one that runs meanwhile goes on as what it was started as.
INSTALL = (
    f"umask 077; new={FOLDER}.new.$$; mkdir -p {FOLDER} $new && tar -xz --no-same-owner -C $new -f - "
    f"&& mv -f $new/* {FOLDER}/ && rmdir $new"
)


def archive(names: Sequence[str] = SCRIPTS) -> bytes:
    """Scripts as .tar.gz, the same bytes each time."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in names:
            text = (Path(__file__).parent / name).read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text), 0o700
            tar.addfile(entry, io.BytesIO(text))
    return gzip.compress(plain.getvalue(), mtime=0)


def install(ssh: Ssh) -> None:
    """Puts the scripts of this checkout on the box."""
    ssh.read(INSTALL, stdin=archive())
