"""Which wheels an environment holds, chosen from uv.lock for a Python that need not be the one that runs.

pip would evaluate markers with its own interpreter, so markers and tags are evaluated here: each package ends
up as one wheel with one hash.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.markers import Marker
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

from remote.errors import RemoteError

EXTRAS = ("none", "vllm", "sglang", "vast")
PYTHONS = ("3.11", "3.12")
NEWEST_GLIBC = 35  # 2.35 is that of Ubuntu 22.04, the oldest image that CUDA 13 comes with
OLDEST_GLIBC = 5
LEGACY_PLATFORMS = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


@dataclass(frozen=True)
class Wheel:
    """A file of the registry; `size` in bytes, 0 where the lock does not say."""

    name: str
    version: str
    file: str
    sha256: str
    size: int

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"


def lock_sha256(root: Path) -> str:
    return hashlib.sha256((root / "uv.lock").read_bytes()).hexdigest()


def locked_wheels(root: Path, uv: Path, extra: str, python: str) -> list[Wheel]:
    """Wheels of an environment, by name.

    `extra` is one of EXTRAS ("none": the environment of the project itself, as set-up makes it), `python` one
    of PYTHONS. Raises RemoteError when uv.lock does not fit pyproject.toml, or has no wheel for this Python.
    """
    packages = tomllib.loads(_export(root, uv, extra)).get("packages", [])
    variables = marker_variables(python)
    tags = target_tags(python)
    wanted = [entry for entry in packages if _holds(entry.get("marker"), variables)]
    return sorted((choose_wheel(entry, tags) for entry in wanted), key=lambda wheel: wheel.file)


def _export(root: Path, uv: Path, extra: str) -> str:
    chosen = [] if extra == "none" else ["--no-dev", "--extra", extra]
    variables = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    done = subprocess.run(
        [
            uv,
            f"--directory={root}",
            *["export", "--locked", "--format=pylock.toml", "--no-emit-project"],
            *chosen,
        ],
        env=variables | {"UV_PYTHON": sys.executable, "UV_PYTHON_DOWNLOADS": "never"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise RemoteError(
            f"uv cannot export the environment {extra} of {root}/uv.lock: {done.stderr.strip()}"
        )
    return done.stdout


def _holds(marker: str | None, variables: Mapping[str, str]) -> bool:
    return marker is None or Marker(marker).evaluate(dict(variables))


def marker_variables(python: str) -> dict[str, str]:
    """The environment markers of CPython `python` (a minor version, "3.12") on Linux x86-64."""
    return {
        "implementation_name": "cpython",
        "implementation_version": f"{python}.0",
        "os_name": "posix",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }


def target_platforms() -> list[str]:
    """Platform tags a box may be expected to run, the newest glibc first."""
    names = []
    for minor in range(NEWEST_GLIBC, OLDEST_GLIBC - 1, -1):
        names.append(f"manylinux_2_{minor}_x86_64")
        if minor in LEGACY_PLATFORMS:
            names.append(f"{LEGACY_PLATFORMS[minor]}_x86_64")
    return names


def target_tags(python: str) -> dict[Tag, int]:
    """Each tag that CPython `python` installs on such a box, with its rank; 0 is the best."""
    major, minor = (int(part) for part in python.split("."))
    platforms = target_platforms()
    tags = [
        *cpython_tags((major, minor), platforms=platforms),
        *compatible_tags((major, minor), interpreter=f"cp{major}{minor}", platforms=platforms),
    ]
    return {tag: rank for rank, tag in reversed(list(enumerate(tags)))}


def choose_wheel(package: Mapping[str, Any], tags: Mapping[Tag, int]) -> Wheel:
    """The best wheel of a package of pylock.toml (PEP 751), as an installer on the box would choose it."""
    ranked = []
    for entry in package.get("wheels", []):
        file = entry.get("name") or PurePosixPath(unquote(urlsplit(entry["url"]).path)).name
        _, _, build, file_tags = parse_wheel_filename(file)
        ranks = [tags[tag] for tag in file_tags if tag in tags]
        if ranks:
            ranked.append((-min(ranks), build, file, entry))
    if not ranked:
        raise RemoteError(
            f"uv.lock has no wheel of {package['name']} {package['version']} for this Python on Linux x86-64 "
            f"with glibc 2.{NEWEST_GLIBC} or older"
        )
    _, _, file, entry = max(ranked, key=lambda choice: choice[:3])
    return Wheel(package["name"], package["version"], file, entry["hashes"]["sha256"], entry.get("size", 0))


def needed_glibc(files: Sequence[str]) -> str:
    """The oldest glibc on which all these wheel files run, as "2.28"."""
    minors = {f"manylinux_2_{minor}_x86_64": minor for minor in range(OLDEST_GLIBC, NEWEST_GLIBC + 1)}
    minors |= {f"{name}_x86_64": minor for minor, name in LEGACY_PLATFORMS.items()}
    needed = [OLDEST_GLIBC]
    for file in files:
        known = [minors[tag.platform] for tag in parse_wheel_filename(file)[3] if tag.platform in minors]
        needed += [min(known)] if known else []
    return f"2.{max(needed)}"
