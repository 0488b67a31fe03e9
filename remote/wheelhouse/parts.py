"""One tar stream cut into parts of a given size, so that any way of copying small files carries it.

The same files give the same parts, byte for byte. On the box `cat part-* | tar -x` joins them.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import BinaryIO

from remote.wheelhouse.download import file_sha256

PART_GLOB = "part-[0-9][0-9][0-9][0-9]"


class PartWriter:
    """A file to write to; what is written lies in `folder` as part-0000, part-0001, …

    Each part has `part_bytes` bytes, the last one up to that. `sums` has the SHA-256 of each part that is
    full, and of all after `close`.
    """

    def __init__(self, folder: Path, part_bytes: int) -> None:
        self.sums: dict[str, str] = {}
        self._folder = folder
        self._part_bytes = part_bytes
        self._file: BinaryIO | None = None
        self._written = 0
        self._sum = hashlib.sha256()

    def write(self, data: bytes) -> int:
        rest = memoryview(data)
        while rest:
            if self._file is None:
                self._file = self._path.open("wb")
                self._written, self._sum = 0, hashlib.sha256()
            now = rest[: self._part_bytes - self._written]
            self._file.write(now)
            self._sum.update(now)
            self._written += len(now)
            if self._written == self._part_bytes:
                self.close()
            rest = rest[len(now) :]
        return len(data)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            self.sums[self._path.name] = self._sum.hexdigest()

    @property
    def _path(self) -> Path:
        return self._folder / f"part-{len(self.sums):04d}"


def write_parts(files: Iterable[tuple[str, Path]], folder: Path, part_bytes: int) -> dict[str, str]:
    """Writes files under their names in the stream; gives the SHA-256 of each part by its name."""
    writer = PartWriter(folder, part_bytes)
    with tarfile.open(fileobj=writer, mode="w|", format=tarfile.GNU_FORMAT) as tar:
        for name, path in files:
            member = tarfile.TarInfo(name)
            member.size = path.stat().st_size
            with path.open("rb") as content:
                tar.addfile(member, content)
    writer.close()
    return writer.sums


def remove_parts(folder: Path) -> None:
    for path in folder.glob(PART_GLOB):
        path.unlink()


def are_intact(sums: Mapping[str, str], folder: Path) -> bool:
    """Whether `folder` holds these parts, and no other."""
    if {path.name for path in folder.glob(PART_GLOB)} != set(sums):
        return False
    return all(file_sha256(folder / name) == sha256 for name, sha256 in sums.items())
