"""Which code measured: commit, uncommitted changes, lock file.

A checkout carried to a box without git brings `.source.json`, written by `python -m harness source` before it
left. The files it lists are hashed again on the box, so code that was changed there is never called clean.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harness.schema import Source
from harness.store import file_sha256, sha256_of, write_atomically

SOURCE_FILE = ".source.json"
UNKNOWN = "unknown"
# Results and drawn figures are products of the code: a second run must not be called dirty for the first one.
NOT_CODE = (":(exclude)results", ":(exclude,glob)figures/*/**")
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


@dataclass(frozen=True)
class SourceState:
    """`source` for the manifest, and the text of the uncommitted changes (None when clean or not known)."""

    source: Source
    diff: str | None


def read_source(root: Path) -> SourceState:
    """State of the checkout at `root`: by git, else by its source file, else unknown and therefore dirty.

    A repository without a commit knows nothing of where its files are from: the source file does.
    """
    lock = file_sha256(root / "uv.lock") if (root / "uv.lock").is_file() else UNKNOWN
    if (root / ".git").exists() and (_has_commit(root) or not (root / SOURCE_FILE).is_file()):
        return _from_git(root, lock)
    if (root / SOURCE_FILE).is_file():
        return _from_source_file(root, lock)
    return SourceState(_source("unknown", UNKNOWN, dirty=True, lock=lock), None)


def write_source_file(root: Path) -> Path:
    """Writes .source.json for a checkout under git. Raises ValueError when it is not under git."""
    if not (root / ".git").exists():
        raise ValueError(f"{root} is not a git checkout: there is nothing to write {SOURCE_FILE} from")
    state = read_source(root)
    content = {
        "git_commit": state.source.git_commit,
        "dirty": state.source.dirty,
        "lock_sha256": state.source.lock_sha256,
        "diff": state.diff,
        "files": {name: file_sha256(root / name) for name in _code_files(root)},
    }
    path = root / SOURCE_FILE
    write_atomically(path, json.dumps(content, indent=1, sort_keys=True).encode())
    return path


def _source(
    origin: str,
    commit: str,
    *,
    dirty: bool,
    lock: str,
    diff: str | None = None,
    changed: list[str] | None = None,
) -> Source:
    return Source(
        origin=origin,
        git_commit=commit,
        dirty=dirty,
        diff_sha256=sha256_of(diff.encode()) if diff else None,
        changed_since=changed or [],
        lock_sha256=lock,
    )


def _git(root: Path, *arguments: str, index: Path | None = None) -> str:
    environment = os.environ | ({"GIT_INDEX_FILE": str(index)} if index else {})
    done = subprocess.run(
        ["git", "-C", str(root), *arguments],
        capture_output=True,
        check=True,
        env=environment,
        errors="replace",
    )
    return done.stdout


def _has_commit(root: Path) -> bool:
    try:
        return bool(_git(root, "rev-parse", "--verify", "--quiet", "HEAD"))
    except (subprocess.CalledProcessError, FileNotFoundError):
        return False


def _from_git(root: Path, lock: str) -> SourceState:
    try:
        commit = _git(root, "rev-parse", "--verify", "--quiet", "HEAD").strip()
    except subprocess.CalledProcessError:
        commit = UNKNOWN
    except FileNotFoundError:
        return SourceState(_source("unknown", UNKNOWN, dirty=True, lock=lock), None)
    diff = _uncommitted(root, EMPTY_TREE if commit == UNKNOWN else commit)
    return SourceState(_source("git", commit, dirty=bool(diff), lock=lock, diff=diff), diff or None)


def _uncommitted(root: Path, commit: str) -> str:
    """Difference of the working tree to `commit`, files that git does not track yet included.

    A throw-away index gets them as "intended", which neither touches the user's index nor stores objects.
    Binary files stand in it with their full object names only.
    """
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "index"
        _git(root, "read-tree", commit, index=index)
        _git(root, "add", "--intent-to-add", "--", ".", *NOT_CODE, index=index)
        return _git(root, "diff", "--full-index", "--no-ext-diff", commit, "--", ".", *NOT_CODE, index=index)


def _code_files(root: Path) -> list[str]:
    listed = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", ".", *NOT_CODE)
    return sorted(name for name in set(listed.split("\0")) - {""} if (root / name).is_file())


def _from_source_file(root: Path, lock: str) -> SourceState:
    content = json.loads((root / SOURCE_FILE).read_bytes())
    changed = [
        name
        for name, sha256 in content["files"].items()
        if not (root / name).is_file() or file_sha256(root / name) != sha256
    ]
    diff = content["diff"] if not changed else None
    source = _source(
        "source file",
        content["git_commit"],
        dirty=content["dirty"] or bool(changed),
        lock=lock,
        diff=diff,
        changed=changed,
    )
    return SourceState(source, diff)
