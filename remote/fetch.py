"""Results from the box: copied while they grow, verified at the end, and only then laid beside the others."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from remote.desk import RESULTS, Desk
from remote.errors import RemoteError
from remote.labels import NAME, NAME_RULE
from remote.link import Link


@dataclass(frozen=True)
class Arrived:
    """A run that came from a box. `problems`: why it is not at home; then it lies at `path` for a look."""

    run: str
    path: Path
    problems: tuple[str, ...]


def sync(desk: Desk, link: Link) -> None:
    """One copy of what there is now. Raises the errors of Ssh.fetch."""
    link.ssh.fetch(RESULTS, desk.folder.arrived(link.box.id))


def bring_home(desk: Desk, link: Link) -> list[Arrived]:
    """Copies all results, verifies each run, and puts those that are complete and whole into desk.results."""
    link.steadily(lambda: sync(desk, link))
    return settle(desk, link.box.id)


def settle(desk: Desk, box: str) -> list[Arrived]:
    """As bring_home, with what was copied from the box so far."""
    arrived = desk.folder.arrived(box)
    if not arrived.is_dir():
        return []
    there = sorted(path for path in arrived.iterdir() if path.is_dir())
    # A run that was copied while it grew has another name now.
    over = {f".{path.name}.partial" for path in there}
    return [_settle(path, desk.results) for path in there if path.name not in over]


def missing(desk: Desk, box: str, runs: Sequence[str], arrived: Sequence[Arrived]) -> list[Arrived]:
    """Those of the runs that did not come, although their stage ended well."""
    came = {run.run for run in arrived}
    problems = (f"did not come from box {box}",)
    return [Arrived(run, desk.folder.arrived(box) / run, problems) for run in runs if run not in came]


def _settle(path: Path, results: Path) -> Arrived:
    if path.name.startswith("."):
        name = path.name.removeprefix(".").removesuffix(".partial")
        closing = f"python -m harness finish {name} --results {path.parent}"
        cut = f"is incomplete; {closing} makes a run of its cells"
        return Arrived(name, path, (cut,))
    if not re.fullmatch(NAME, path.name):
        return Arrived(path.name, path, (f"is no name of a run: {NAME_RULE}",))
    # Here, because their import takes seconds, and most tasks do without.
    from harness.store import StoreError
    from harness.verify import verify

    try:
        problems = verify(path)
    except StoreError as error:
        problems = [str(error)]
    except Exception as error:  # a box may send anything: whatever verifying stumbles over is not whole
        problems = [f"cannot be verified: {type(error).__name__}: {str(error)[:300]}"]
    target = results / path.name
    if not problems and target.exists() and not _same(path, target):
        problems = [f"another run of this name is in {results} already"]
    if problems:
        return Arrived(path.name, path, tuple(problems))
    if not target.exists():
        _copy_whole(path, target)
    return Arrived(path.name, target, ())


def _same(path: Path, other: Path) -> bool:
    """The manifest has the checksum of every other file."""
    ours, theirs = path / "manifest.json", other / "manifest.json"
    return theirs.is_file() and theirs.read_bytes() == ours.read_bytes()


def _copy_whole(path: Path, target: Path) -> None:
    """The folder appears under its name when all of it is there."""
    partial = target.with_name(f".{target.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(path, partial)
        partial.rename(target)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise RemoteError(f"{path} cannot be copied to {target}: {error}; it is kept there") from error
