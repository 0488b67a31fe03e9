"""Loads what goes into a wheelhouse, into a cache whose files are known by their SHA-256.

pip is the client: it knows the mirrors of this machine, and checks the hash before a file gets its name.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from remote.errors import RemoteError
from remote.wheelhouse.locked import Wheel, target_platforms

BATCH_BYTES = 100_000_000  # pip keeps nothing of a call that is killed
BATCH_WHEELS = 40
Say = Callable[[str], None]


def default_cache() -> Path:
    """Where other caches of the project are: $LLM_LADDER_CACHE, else below $XDG_CACHE_HOME or ~/.cache."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("LLM_LADDER_CACHE") or Path(home) / "llm-ladder") / "wheels"


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_wheels(wheels: Sequence[Wheel], python: str, cache: Path, say: Say) -> None:
    """Every wheel is in `cache` afterwards, with the hash of the lock; those that were are not loaded again.

    Raises RemoteError when pip fails or the registry has another file; what is loaded is kept.
    """
    cache.mkdir(parents=True, exist_ok=True)
    missing = [wheel for wheel in wheels if not _is_cached(wheel, cache, say)]
    groups = list(batches(missing))
    for number, group in enumerate(groups, start=1):
        first = group[0].file if len(group) == 1 else f"{len(group)} wheels"
        say(f"loading {number} of {len(groups)}: {first}, {sum(wheel.size for wheel in group) / 1e6:.0f} MB")
        with tempfile.TemporaryDirectory(dir=cache, prefix="loading-") as folder:
            _pip_download([wheel.requirement for wheel in group], python, Path(folder))
            for wheel in group:
                _keep(Path(folder, wheel.file), wheel.sha256, cache)


def batches(wheels: Sequence[Wheel]) -> Iterator[list[Wheel]]:
    """Groups for one call of pip each: a call costs a second, and what it loads counts only at its end."""
    group: list[Wheel] = []
    for wheel in wheels:
        if group and (len(group) == BATCH_WHEELS or sum(w.size for w in group) + wheel.size > BATCH_BYTES):
            yield group
            group = []
        group.append(wheel)
    if group:
        yield group


def load_uv(requirements: Path, python: str, cache: Path) -> Path:
    """The wheel of uv that `requirements` (remote/uv-requirements.txt) pins by version and hash."""
    requirement = requirements.read_text().strip()
    match = re.fullmatch(r"uv==(\S+) --hash=sha256:([0-9a-f]{64})", requirement)
    if match is None:
        raise RemoteError(
            f"{requirements} has to be one line `uv==VERSION --hash=sha256:…`, it is {requirement!r}"
        )
    version, sha256 = match.groups()
    cache.mkdir(parents=True, exist_ok=True)
    for file in cache.glob(f"uv-{version}-*.whl"):
        if file_sha256(file) == sha256:
            return file
    with tempfile.TemporaryDirectory(dir=cache, prefix="loading-") as folder:
        _pip_download([requirement], python, Path(folder))
        (file,) = Path(folder).iterdir()
        return _keep(file, sha256, cache)


def load_cpython(uv: Path, python: str, cache: Path) -> Path:
    """A tar of the newest CPython of that minor version that this uv knows (uv checks its hash).

    Its name tells the version: cpython-3.12.13-linux-x86_64.tar. Raises RemoteError when uv cannot load it.
    """
    cache.mkdir(parents=True, exist_ok=True)
    for archive in cache.glob(f"cpython-{python}.*-linux-x86_64.tar"):
        return archive
    with tempfile.TemporaryDirectory(dir=cache, prefix="loading-") as folder:
        done = subprocess.run(
            [
                uv,
                "python",
                "install",
                f"cpython-{python}-linux-x86_64-gnu",
                "--no-bin",
                f"--install-dir={folder}",
            ],
            env=os.environ | {"UV_PYTHON_DOWNLOADS": "manual"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise RemoteError(f"uv cannot load CPython {python}: {done.stderr.strip()}")
        (home,) = Path(folder).glob(f"cpython-{python}.*")
        version = home.name.split("-")[1]
        archive = Path(folder, f"cpython-{version}-linux-x86_64.tar")
        with tarfile.open(archive, "w", format=tarfile.GNU_FORMAT) as tar:
            tar.add(home, arcname=f"cpython-{version}", filter=_without_owner_and_time)
        return archive.rename(cache / archive.name)


def _without_owner_and_time(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def _is_cached(wheel: Wheel, cache: Path, say: Say) -> bool:
    file = cache / wheel.file
    if not file.exists():
        return False
    if file_sha256(file) == wheel.sha256:
        return True
    say(f"{file} is damaged: loading it again")
    file.unlink()
    return False


def _keep(file: Path, sha256: str, cache: Path) -> Path:
    if not file.exists():
        found = ", ".join(sorted(path.name for path in file.parent.iterdir()))
        raise RemoteError(f"the registry gave {found or 'nothing'} instead of {file.name} of uv.lock")
    if (found := file_sha256(file)) != sha256:
        raise RemoteError(f"{file.name} has the SHA-256 {found}, uv.lock says {sha256}")
    return file.rename(cache / file.name)


def _pip_download(requirements: Sequence[str], python: str, folder: Path) -> None:
    file = folder / "requirements.txt"
    file.write_text("".join(f"{requirement}\n" for requirement in requirements))
    done = subprocess.run(
        [
            *_pip(),
            *("download", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"),
            *("--only-binary=:all:", "--implementation=cp", f"--python-version={python}"),
            *(f"--platform={platform}" for platform in target_platforms()),
            *(f"--dest={folder}", f"--requirement={file}"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    file.unlink()
    if done.returncode != 0:
        raise RemoteError(f"pip could not load {len(requirements)} wheels: {done.stderr.strip()}")


@functools.cache
def _pip() -> list[str]:
    """Any interpreter's pip will do: which Python the wheels are for is an argument."""
    names = ("python3.12", "python3.11", "python3")
    for python in (sys.executable, *(path for name in names if (path := shutil.which(name)))):
        if subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode == 0:
            return [python, "-m", "pip"]
    raise RemoteError("there is no pip on this machine (on Debian and Ubuntu: apt-get install python3-pip)")
