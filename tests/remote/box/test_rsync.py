"""Folders to and from a box: what is deleted, kept, never sent, and what a cut or a full disk leaves."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from remote.box import rsync
from remote.box.errors import DiskFull, HostKeyMismatch, KeyRefused, Lost, TimedOut
from remote.errors import RemoteError
from tests.remote.sshd import Box, make_key, until


def tree(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def write(folder: Path, **files: str) -> None:
    """Files by name; `__` stands for /, a leading `_` for a dot."""
    for name, text in files.items():
        path = folder.joinpath(*name.split("__"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "a checkout"
    write(folder, run="new", engine__model="model")
    (folder / ".gitignore").write_text("# environments\n/.venv*/\n__pycache__/\n/secret.txt\n")
    return folder


def test_a_push_makes_equal_and_deletes_what_is_stale(box: Box, checkout: Path) -> None:
    remote = box.home / "work" / "check out"
    write(remote, run="old", stale="stale", engine__stale="stale")
    os.utime(remote / "run", (checkout / "run").stat()[7:9])  # the same size and time as the new one
    box.ssh().push(checkout, "work/check out")
    assert tree(remote) == tree(checkout)


@pytest.mark.slow
def test_a_push_keeps_results_environments_and_what_git_ignores(box: Box, checkout: Path) -> None:
    remote = box.home / "checkout"
    kept = {
        ".venv/bin/python": "box",
        ".venv-vllm/x": "box",
        "engine/__pycache__/a.pyc": "box",
        "results/v1/run/serving.csv": "box",
    }
    for name, text in kept.items():
        for folder, content in ((remote, text), (checkout, "home")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)
    box.ssh().push(checkout, "checkout")
    box.ssh().push(checkout, "checkout")
    assert {name: text for name, text in tree(remote).items() if name in kept} == kept


def test_a_push_never_sends_what_may_hold_keys(box: Box, checkout: Path) -> None:
    for name in (".git/config", ".env", "engine/.env", "secret.txt", ".ssh/id_ed25519"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text("token")
    box.ssh().push(checkout, "checkout")
    assert "token" not in tree(box.home / "checkout").values()


@pytest.mark.slow
def test_a_fetch_deletes_nothing_and_brings_what_is_new(box: Box, tmp_path: Path) -> None:
    write(box.home / "results", a="new", sub__b="b")
    local = tmp_path / "my results"
    write(local, a="old", mine="mine")
    box.ssh().fetch("results", local)
    assert tree(local) == {"a": "new", "mine": "mine", "sub/b": "b"}
    (box.home / "results" / "a").unlink()
    box.ssh().fetch("results", local)
    assert tree(local) == {"a": "new", "mine": "mine", "sub/b": "b"}


def test_a_fetch_from_a_fresh_box_leaves_all_at_home(box: Box, tmp_path: Path) -> None:
    (box.home / "results").mkdir()
    write(tmp_path / "results", run="mine")
    box.ssh().fetch("results", tmp_path / "results")
    assert tree(tmp_path / "results") == {"run": "mine"}


def test_a_fetch_leaves_out_what_is_excluded_and_links_of_the_box(box: Box, tmp_path: Path) -> None:
    results = box.home / "results"
    write(results, keep="1", skip__x="2")
    (results / "link").symlink_to("/etc/passwd")
    (results / "up").symlink_to("../../..")
    os.mkfifo(results / "pipe")
    box.ssh().fetch("results", tmp_path / "results", exclude=("/skip/",))
    assert tree(tmp_path / "results") == {"keep": "1"}
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["keep"]


def cut_after(box: Box, sent: int) -> None:
    """The rsync of the box dies when it has sent so many bytes."""
    box.program(
        "rsync", f'#!/bin/bash\nPATH="${{PATH#*:}}"; exec rsync "$@" > >(dd bs=1 count={sent} status=none)\n'
    )


@pytest.mark.slow
def test_a_fetch_that_is_cut_off_leaves_the_old_file_and_the_next_one_ends_it(
    box: Box, tmp_path: Path
) -> None:
    data = os.urandom(2**20)
    (box.home / "results").mkdir()
    (box.home / "results" / "rows").write_bytes(data)
    write(tmp_path / "results", rows="old")
    cut_after(box, 300_000)
    with pytest.raises(Lost):
        box.ssh().fetch("results", tmp_path / "results")
    assert (tmp_path / "results" / "rows").read_text() == "old"
    (box.folder / "bin" / "rsync").unlink()
    box.ssh().fetch("results", tmp_path / "results")
    assert (tmp_path / "results" / "rows").read_bytes() == data
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["rows"]


@pytest.mark.slow
def test_a_push_that_is_cut_off_leaves_the_box_as_it_was(box: Box, checkout: Path) -> None:
    box.ssh().push(checkout, "checkout")
    before = tree(box.home / "checkout")
    (checkout / "run").write_text("newer")
    (checkout / "engine" / "model").unlink()
    (checkout / "weights").write_bytes(os.urandom(40 * 2**20))

    def cut() -> None:
        until(lambda: any((box.home / "checkout").rglob(".weights*")))
        box.drop_connections()

    with ThreadPoolExecutor(1) as other:
        cutting = other.submit(cut)
        with pytest.raises(Lost):
            box.ssh().push(checkout, "checkout")
        cutting.result()
    assert {name: text for name, text in _readable(box.home / "checkout").items() if name in before} == before


def _readable(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_bytes().decode(errors="replace")
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_full_disk_at_home_is_named_and_leaves_the_old_file(
    box: Box, tmp_path: Path, small_disk: Callable[[Path, int], None]
) -> None:
    (box.home / "results").mkdir()
    (box.home / "results" / "rows").write_bytes(os.urandom(2**20))
    small_disk(tmp_path / "small", 500_000)
    write(tmp_path / "small", rows="old")
    with pytest.raises(DiskFull, match="No space left on device"):
        box.ssh().fetch("results", tmp_path / "small")
    assert (tmp_path / "small" / "rows").read_text() == "old"


def test_a_full_disk_of_the_box_is_named_and_leaves_the_old_files(
    box: Box, checkout: Path, small_disk: Callable[[Path, int], None]
) -> None:
    small_disk(box.home / "checkout", 500_000)
    write(box.home / "checkout", run="old")
    (checkout / "weights").write_bytes(os.urandom(2**20))
    with pytest.raises(DiskFull, match=r"No space left on device|most likely a full disk"):
        box.ssh().push(checkout, "checkout")
    assert (box.home / "checkout" / "run").read_text() == "old"
    assert not (box.home / "checkout" / "weights").exists()


def test_a_limit_on_file_sizes_counts_as_a_full_disk(box: Box, checkout: Path) -> None:
    box.limit("ulimit -f 100; trap '' XFSZ\n")
    (checkout / "weights").write_bytes(os.urandom(2**20))
    with pytest.raises(DiskFull, match=r"File too large|most likely a full disk"):
        box.ssh().push(checkout, "checkout")


def test_refusals_are_told_apart(box: Box, checkout: Path, tmp_path: Path) -> None:
    make_key(tmp_path / "other")
    with pytest.raises(KeyRefused):
        box.ssh(key=tmp_path / "other").push(checkout, "checkout")
    box.new_host_key()
    box.restart()
    with pytest.raises(HostKeyMismatch, match="Host key verification failed"):
        box.ssh().push(checkout, "checkout")
    box.known_hosts.unlink()
    with pytest.raises(HostKeyMismatch, match="is pinned"):
        box.ssh().push(checkout, "checkout")
    assert not (box.home / "checkout").exists()


def test_a_lost_box_is_lost(box: Box, checkout: Path) -> None:
    box.lose()
    with pytest.raises(Lost, match="Connection refused"):
        box.ssh().push(checkout, "checkout")


def test_a_frozen_box_times_out(box: Box, checkout: Path) -> None:
    box.freeze()
    with pytest.raises(TimedOut, match="no end within 1 s"):
        rsync.push(box.ssh(), checkout, "checkout", limit_s=1)
    box.thaw()


@pytest.mark.slow
def test_rsync_gives_up_on_silence(box: Box, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rsync, "SILENCE_S", 1)
    box.program("rsync", "#!/bin/bash\nexec sleep 1000\n")
    with pytest.raises(Lost, match="timeout in data send/receive"):
        box.ssh().push(checkout, "checkout")


@pytest.mark.slow
def test_a_missing_folder_and_a_missing_rsync_are_named(box: Box, tmp_path: Path) -> None:
    with pytest.raises(RemoteError, match="No such file or directory"):
        box.ssh().fetch("nowhere", tmp_path / "results")
    box.limit(f"PATH={box.folder}/bin\n")
    box.program("bash", '#!/bin/bash\nexec /bin/bash "$@"\n')
    with pytest.raises(RemoteError, match="no rsync on the box"):
        box.ssh().fetch("nowhere", tmp_path / "results")


@pytest.mark.slow
def test_files_that_vanish_are_looked_for_again(box: Box, tmp_path: Path) -> None:
    write(box.home / "results", a="a")
    count = box.folder / "count"
    box.program(
        "rsync",
        f'#!/bin/bash\necho >>{count}\nPATH="${{PATH#*:}}"; rsync "$@" || exit\n'
        f"(($(wc -l <{count}) > 2)) || exit 24\n",
    )
    box.ssh().fetch("results", tmp_path / "results")
    assert tree(tmp_path / "results") == {"a": "a"}
    assert count.read_text() == "\n\n\n"


def test_paths_with_spaces_and_quotes(box: Box, checkout: Path, tmp_path: Path) -> None:
    odd = tmp_path / "it's a run"
    odd.mkdir()
    (odd / "known hosts").write_text(box.known_hosts.read_text())
    (odd / "key").write_text(box.key.read_text())
    (odd / "key").chmod(0o600)
    ssh = box.ssh(known_hosts=odd / "known hosts", key=odd / "key")
    ssh.push(checkout, "work/it's $HOME")
    assert tree(box.home / "work" / "it's $HOME") == tree(checkout)
    ssh.fetch("work/it's $HOME", tmp_path / "back")
    assert tree(tmp_path / "back") == tree(checkout)


def test_a_file_error_without_words_counts_as_a_full_disk() -> None:
    assert isinstance(rsync._error(11, "", "rsync"), DiskFull)
    assert not isinstance(rsync._error(11, "mkdir failed: Permission denied (13)", "rsync"), DiskFull)
