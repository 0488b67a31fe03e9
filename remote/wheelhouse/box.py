"""The part of remote/wheelhouse.sh that needs Python. Runs alone on the box: standard library only.

box.py requirements MANIFEST LOCK  prints what uv is to install, when every wheel stands in LOCK with its hash
box.py unpack-uv WHEEL FOLDER      puts the program of uv's wheel into FOLDER
"""

from __future__ import annotations

import json
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any


def requirements(manifest: dict[str, Any], lock: dict[str, Any]) -> str:
    """A line of requirements.txt a wheel. Exits naming the first wheels that are not those of the lock."""
    known = {
        (package["name"], package["version"], wheel["hash"])
        for package in lock["package"]
        for wheel in package.get("wheels", [])
    }
    foreign = [
        wheel["file"]
        for wheel in manifest["wheels"]
        if (wheel["name"], wheel["version"], f"sha256:{wheel['sha256']}") not in known
    ]
    if foreign:
        sys.exit(f"{len(foreign)} wheels are not those of uv.lock: {', '.join(foreign[:5])}")
    return "".join(
        f"{wheel['name']}=={wheel['version']} --hash=sha256:{wheel['sha256']}\n"
        for wheel in manifest["wheels"]
    )


def unpack_uv(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (program,) = (name for name in archive.namelist() if name.endswith(".data/scripts/uv"))
        target = folder / "uv"
        target.write_bytes(archive.read(program))
    target.chmod(0o755)


def main(command: str, first: Path, second: Path) -> None:
    if command == "requirements":
        print(requirements(json.loads(first.read_text()), tomllib.loads(second.read_text())), end="")
    elif command == "unpack-uv":
        unpack_uv(first, second)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
