"""A file that is whole or not there."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def put(content: bytes, path: Path) -> None:
    """The bytes under their name, at once; nothing is left behind when that fails (OSError)."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        unfinished = Path(file.name)
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            unfinished.chmod(0o644)
            unfinished.replace(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
