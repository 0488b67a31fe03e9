import gzip
import json
import shutil
import subprocess

import pytest

from harness.source import read_source, write_source_file
from harness.store import sha256_of


@pytest.fixture
def checkout(tmp_path):
    """A clean git checkout with a lock file, one module, and a .gitignore."""
    root = tmp_path / "checkout"
    (root / "engine").mkdir(parents=True)
    (root / "uv.lock").write_text("locked\n")
    (root / "engine" / "a.py").write_text("x = 1\n")
    (root / ".gitignore").write_text(".source.json\n.venv/\n")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-q", "-m", "first")
    return root


def git(root, *arguments):
    return subprocess.run(
        ["git", "-C", str(root), *arguments], check=True, capture_output=True, text=True
    ).stdout


def test_a_clean_checkout_is_clean(checkout):
    state = read_source(checkout)
    assert state.diff is None
    assert state.source.origin == "git"
    assert state.source.git_commit == git(checkout, "rev-parse", "HEAD").strip()
    assert not state.source.dirty
    assert state.source.diff_sha256 is None
    assert state.source.lock_sha256 == sha256_of(b"locked\n")


def test_a_change_makes_it_dirty_and_the_diff_holds_it(checkout):
    (checkout / "engine" / "a.py").write_text("x = 2\n")
    state = read_source(checkout)
    assert state.source.dirty
    assert "-x = 1\n+x = 2\n" in state.diff
    assert state.source.diff_sha256 == sha256_of(state.diff.encode())


def test_a_new_file_is_part_of_the_diff_without_touching_the_index(checkout):
    (checkout / "engine" / "new.py").write_text("y = 3\n")
    state = read_source(checkout)
    assert state.source.dirty
    assert "+y = 3\n" in state.diff
    assert git(checkout, "status", "--porcelain") == "?? engine/new.py\n"


def test_results_drawings_and_ignored_files_are_not_code(checkout):
    for name in ("results/v1/r1/serving.csv", "figures/r1/ttft.svg", ".venv/x.py"):
        (checkout / name).parent.mkdir(parents=True)
        (checkout / name).write_text("x")
    assert not read_source(checkout).source.dirty
    (checkout / "figures" / "make_figures.py").write_text("x")
    assert read_source(checkout).source.dirty


def test_a_checkout_without_a_commit_is_dirty_with_everything_in_its_diff(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / "a.py").write_text("x = 1\n")
    state = read_source(tmp_path)
    assert (state.source.git_commit, state.source.dirty) == ("unknown", True)
    assert "+x = 1\n" in state.diff
    assert state.source.lock_sha256 == "unknown"


def test_without_git_and_source_file_nothing_is_claimed(tmp_path):
    source = read_source(tmp_path).source
    assert (source.origin, source.git_commit, source.dirty) == ("unknown", "unknown", True)


def carried(checkout, tmp_path):
    """The checkout as it arrives on a box: its files and its source file, without git."""
    write_source_file(checkout)
    box = tmp_path / "box"
    shutil.copytree(checkout, box, ignore=shutil.ignore_patterns(".git"))
    return box


@pytest.mark.parametrize("change", [None, "x = 2\n"])
def test_a_carried_checkout_says_what_the_original_said(checkout, tmp_path, change):
    if change:
        (checkout / "engine" / "a.py").write_text(change)
    original, arrived = read_source(checkout), read_source(carried(checkout, tmp_path))
    assert arrived.source == original.source.model_copy(update={"origin": "source file"})
    assert arrived.diff == original.diff


@pytest.mark.parametrize("fault", ["changed", "missing"])
def test_a_carried_checkout_that_was_changed_is_never_called_clean(checkout, tmp_path, fault):
    box = carried(checkout, tmp_path)
    if fault == "changed":
        (box / "engine" / "a.py").write_text("x = 99\n")
    else:
        (box / "engine" / "a.py").unlink()
    state = read_source(box)
    assert state.source.dirty
    assert state.source.changed_since == ["engine/a.py"]
    assert state.diff is None


def test_an_empty_repository_does_not_hide_the_source_file(checkout, tmp_path):
    write_source_file(checkout)
    carried = tmp_path / "carried"
    shutil.copytree(checkout, carried, ignore=shutil.ignore_patterns(".git"))
    subprocess.run(["git", "init", "-q", str(carried)], check=True)
    assert read_source(carried).source.git_commit == read_source(checkout).source.git_commit


def test_a_source_file_is_written_from_git_only(tmp_path):
    with pytest.raises(ValueError, match="not a git checkout"):
        write_source_file(tmp_path)


def test_the_diff_applies(checkout, tmp_path):
    """What is stored with a dirty run turns its commit into the code that measured."""
    (checkout / "engine" / "a.py").write_text("x = 2\n")
    (checkout / "engine" / "new.py").write_text("y = 3\n")
    stored = gzip.compress(read_source(checkout).diff.encode())
    git(checkout, "clone", "-q", ".", str(tmp_path / "again"))
    (tmp_path / "diff").write_bytes(gzip.decompress(stored))
    git(tmp_path / "again", "apply", str(tmp_path / "diff"))
    for name in ("a.py", "new.py"):
        assert (tmp_path / "again/engine" / name).read_text() == (checkout / "engine" / name).read_text()


def test_the_source_file_is_json_with_a_hash_of_each_code_file(checkout):
    content = json.loads(write_source_file(checkout).read_bytes())
    assert sorted(content["files"]) == [".gitignore", "engine/a.py", "uv.lock"]
