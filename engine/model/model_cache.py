"""Folders made once and kept: each is published whole or not at all, and checked before it is used again."""

import fcntl
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from engine.config import ConfigError
from engine.model.checkpoint import file_sha256
from engine.model.progress import Progress

SUMS = "SHA256SUMS"


class Content(Protocol):
    """Something that fills a folder: `size` in bytes, rounded up; `write` reports the bytes it wrote."""

    @property
    def size(self) -> int: ...

    def write(self, folder: Path, wrote: Callable[[int], None]) -> None: ...


def cache_root(given: Path | None) -> Path:
    """The cache folder: `given`, else $LLM_LADDER_CACHE, else $XDG_CACHE_HOME/llm-ladder, else ~/.cache/…"""
    if given is not None:
        return given
    if own := os.environ.get("LLM_LADDER_CACHE"):
        return Path(own)
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "llm-ladder"
    return Path.home() / ".cache" / "llm-ladder"


def ensure(folder: Path, files: Sequence[str], label: str, open_content: Callable[[], Content]) -> Path:
    """`folder` with exactly `files`, whole and with right checksums: kept as it is, or made (again).

    The content is written beside the folder and renamed into place, under a lock that a second caller waits
    for. A damaged folder is replaced, and stderr says so. Raises ConfigError naming the folder and the bytes
    needed when it cannot be written.
    """
    if damage(folder, files) is None:
        return folder
    with Progress(f"preparing {label}") as progress:
        content = open_content()
        progress.expect(content.size)
        try:
            _make(folder, files, content, progress)
        except OSError as error:
            raise ConfigError(
                f"{folder}: cannot be written ({error.strerror or error}); it needs {content.size:,} bytes. "
                "LLM_LADDER_CACHE names another cache folder"
            ) from None
    return folder


def damage(folder: Path, files: Sequence[str]) -> str | None:
    """What is wrong with a folder of the cache; None when every file has its checksum."""
    try:
        lines = (folder / SUMS).read_text().splitlines()
        sums = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
        if set(sums) != set(files):
            return f"{SUMS} does not list its files"
        for name, digest in sums.items():
            if file_sha256(folder / name) != digest:
                return f"{name} does not match its SHA-256"
    except (OSError, ValueError) as error:
        return str(error)
    return None


def _make(folder: Path, files: Sequence[str], content: Content, progress: Progress) -> None:
    parent = folder.parent
    parent.mkdir(parents=True, exist_ok=True)
    with _lock(parent / f".{folder.name}.lock"):
        fault = damage(folder, files)
        if fault is None:
            return
        if folder.exists():
            print(f"{folder} is damaged ({fault}); making it again", file=sys.stderr)
        part, replaced = parent / f".{folder.name}.part", parent / f".{folder.name}.replaced"
        for leftover in (part, replaced):
            shutil.rmtree(leftover, ignore_errors=True)
        free = shutil.disk_usage(parent).free
        if free < content.size:
            raise OSError(f"{free:,} bytes free")
        part.mkdir()
        try:
            content.write(part, progress.advance)
            _write_sums(part, files)
            if folder.exists():
                folder.rename(replaced)
            part.rename(folder)
            _sync_folder(parent)
        finally:
            shutil.rmtree(part, ignore_errors=True)
            shutil.rmtree(replaced, ignore_errors=True)


def _write_sums(folder: Path, files: Sequence[str]) -> None:
    with (folder / SUMS).open("x") as file:
        file.writelines(f"{file_sha256(folder / name)}  {name}\n" for name in sorted(files))
        file.flush()
        os.fsync(file.fileno())
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Held by one process at a time; the system frees it when its holder dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
