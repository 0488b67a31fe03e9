"""MANIFEST.json of a wheelhouse.

Written last, so a folder that has it is whole. remote/wheelhouse.sh reads it line by line, before any Python
is known to be there: each field of the first level has a line of its own, with one space in front.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from remote.errors import RemoteError
from remote.wheelhouse.locked import Wheel

FORMAT = 1
NAME = "MANIFEST.json"


@dataclass(frozen=True)
class Manifest:
    """`uv` and `cpython` are file names in the stream, empty where they are not packed; sizes in bytes.

    `stream_bytes` is what the joined parts take at most, `environment_bytes` what is installed from them.
    `tools` has the SHA-256 of uv and cpython, `parts` of each part, both by file name.
    """

    extra: str
    python: str
    glibc: str
    lock_sha256: str
    uv: str
    cpython: str
    part_bytes: int
    stream_bytes: int
    environment_bytes: int
    tools: dict[str, str]
    wheels: list[Wheel]
    parts: dict[str, str]
    format: int = FORMAT

    def write(self, folder: Path) -> None:
        partial = folder / f".{NAME}.partial"
        partial.write_text(json.dumps(asdict(self), indent=1) + "\n")
        partial.rename(folder / NAME)


def read_manifest(folder: Path) -> Manifest | None:
    """None where there is none; RemoteError where it is of another format or damaged."""
    file = folder / NAME
    if not file.exists():
        return None
    try:
        fields = json.loads(file.read_text())
        wheels = [Wheel(**wheel) for wheel in fields.pop("wheels")]
        return Manifest(**fields, wheels=wheels)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RemoteError(
            f"{file} is not a manifest of format {FORMAT}: {error}; remove it to pack anew"
        ) from error
