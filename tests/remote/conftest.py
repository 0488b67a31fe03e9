from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.remote.checkout import Checkout
from tests.remote.rented import Street, street


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """The scripts in a folder with spaces in its name, on a PATH without any Python."""
    return Checkout.make(tmp_path)


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Street]:
    """The fake provider, whose boxes are ssh servers."""
    with street(tmp_path / "street") as made:
        yield made


@pytest.fixture
def small_disk() -> Iterator[Callable[[Path, int], None]]:
    """Mounts a file system of so many bytes at a folder."""
    mounted: list[Path] = []

    def mount(folder: Path, size: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if os.geteuid() != 0:
            pytest.skip("only root can mount a small file system")
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"no small file system can be mounted here: {done.stderr.strip()}")
        mounted.append(folder)

    yield mount
    for folder in mounted:
        with contextlib.suppress(subprocess.CalledProcessError):
            subprocess.run(["umount", "--lazy", folder], check=True)
