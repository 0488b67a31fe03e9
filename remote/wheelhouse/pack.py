"""Packs an environment of uv.lock into a folder of parts."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from remote.errors import RemoteError
from remote.wheelhouse.download import Say, file_sha256, load_cpython, load_uv, load_wheels
from remote.wheelhouse.locked import Wheel, lock_sha256, locked_wheels, needed_glibc
from remote.wheelhouse.manifest import NAME, Manifest, read_manifest
from remote.wheelhouse.parts import are_intact, remove_parts, write_parts

BLOCK_BYTES = 4096  # of most file systems: a file takes up to one more than its size


def pack(
    root: Path,
    uv: Path,
    extra: str,
    python: str,
    out: Path,
    part_bytes: int,
    cache: Path,
    say: Say,
    *,
    with_uv: bool,
    with_python: bool,
) -> Manifest:
    """Makes `out` the wheelhouse of one environment of root/uv.lock; without work where it already is.

    May be killed and called again. Raises RemoteError when the lock is stale, something cannot be loaded, or
    a disk is too small.
    """
    wheels = locked_wheels(root, uv, extra, python)
    say(f"{extra} for CPython {python}: {describe(wheels)}")
    out.mkdir(parents=True, exist_ok=True)
    load_wheels(wheels, python, cache, say)
    tools = [load_uv(root / "remote" / "uv-requirements.txt", python, cache)] if with_uv else []
    tools += [load_cpython(uv, python, cache)] if with_python else []

    files = [(f"wheels/{wheel.file}", cache / wheel.file) for wheel in wheels]
    files += [(tool.name, tool) for tool in tools]
    stream_bytes = sum(path.stat().st_size + BLOCK_BYTES for _, path in files)
    planned = Manifest(
        extra=extra,
        python=python,
        glibc=needed_glibc([wheel.file for wheel in wheels]),
        lock_sha256=lock_sha256(root),
        uv=next((tool.name for tool in tools if tool.suffix == ".whl"), ""),
        cpython=next((tool.name for tool in tools if tool.suffix == ".tar"), ""),
        part_bytes=part_bytes,
        stream_bytes=stream_bytes,
        environment_bytes=sum(_installed_bytes(cache / wheel.file) for wheel in wheels),
        tools={tool.name: file_sha256(tool) for tool in tools},
        wheels=wheels,
        parts={},
    )
    packed = read_manifest(out)
    if packed is not None and replace(packed, parts={}) == planned and are_intact(packed.parts, out):
        say(f"{out} already holds it")
        return packed

    (out / NAME).unlink(missing_ok=True)
    remove_parts(out)
    _check_space(out, stream_bytes)
    manifest = replace(planned, parts=write_parts(files, out, part_bytes))
    manifest.write(out)
    say(f"{out}: {len(manifest.parts)} parts of {part_bytes / 2**20:.0f} MiB")
    return manifest


def describe(wheels: Sequence[Wheel]) -> str:
    return f"{len(wheels)} wheels, {sum(wheel.size for wheel in wheels) / 1e9:.2f} GB"


def _installed_bytes(wheel: Path) -> int:
    with zipfile.ZipFile(wheel) as archive:
        return sum(member.file_size + BLOCK_BYTES for member in archive.infolist())


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise RemoteError(f"{folder} has {free / 1e9:.1f} GB free, the parts need {needed / 1e9:.1f} GB")
