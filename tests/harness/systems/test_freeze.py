import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from harness.systems import freeze as freezing
from harness.systems.base import ServerError
from harness.systems.freeze import freeze, thaw
from harness.systems.watchdog import descendants

# A tree two deep: each process counts in a thread into a file of its own; the first one spawns a short-lived
# counter over and over where it is asked to.
TREE = """
    import os, subprocess, sys, threading, time
    folder, depth, spawning = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "spawning"
    def count():
        number = 0
        with open(os.path.join(folder, str(os.getpid())), "w") as file:
            while True:
                number += 1
                file.seek(0)
                file.write(str(number))
                file.flush()
                time.sleep(0.001)
    threading.Thread(target=count, daemon=True).start()
    again = [sys.executable, "-S", sys.argv[0], folder]
    children = [subprocess.Popen([*again, str(depth - 1), "-"]) for _ in range(2 if depth else 0)]
    while spawning:
        subprocess.Popen(["sleep", "0.3"])
        time.sleep(0.002)
    time.sleep(600)
"""


class Tree:
    """This process as the root, with a tree of counting processes below it."""

    def __init__(self, folder: Path, spawning: str = "-", depth: int = 2) -> None:
        script = folder / "tree.py"
        script.write_text(textwrap.dedent(TREE))
        self.folder = folder / "counts"
        self.folder.mkdir()
        holder = (
            f"import subprocess, sys; subprocess.run({[sys.executable, '-S', str(script)]!r} + sys.argv[1:])"
        )
        arguments = [str(self.folder), str(depth), spawning]
        self.root = subprocess.Popen([sys.executable, "-S", "-c", holder, *arguments])
        self.size = 2 ** (depth + 1) - 1

    def counts(self) -> dict[int, int]:
        return {int(file.name): int(file.read_text() or 0) for file in self.folder.iterdir()}

    def wait_until_all_count(self) -> dict[int, int]:
        before = self.counts()
        deadline = time.monotonic() + 60
        while True:
            now = self.counts()
            if len(now) == self.size and all(now[pid] > before.get(pid, 0) for pid in now):
                return now
            assert time.monotonic() < deadline, f"{before} became {now}"
            time.sleep(0.01)

    def end(self) -> None:
        pids = descendants(self.root.pid)
        for pid in [self.root.pid, *pids]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.root.wait()


@pytest.fixture
def tree(tmp_path):
    tree = Tree(tmp_path)
    yield tree
    tree.end()


def moved(before: dict[int, int], after: dict[int, int]) -> set[int]:
    return {pid for pid in after if after[pid] != before.get(pid)}


def test_nothing_of_a_frozen_tree_moves_and_all_of_it_does_when_thawed(tree):
    tree.wait_until_all_count()
    freeze(tree.root.pid)
    frozen = tree.counts()
    time.sleep(0.2)
    assert moved(frozen, tree.counts()) == set()
    thaw(tree.root.pid)
    tree.wait_until_all_count()


def test_freezing_twice_and_thawing_twice_changes_nothing(tree):
    tree.wait_until_all_count()
    freeze(tree.root.pid)
    freeze(tree.root.pid)
    frozen = tree.counts()
    time.sleep(0.05)
    assert moved(frozen, tree.counts()) == set()
    thaw(tree.root.pid)
    thaw(tree.root.pid)
    tree.wait_until_all_count()


def test_a_process_that_dies_while_frozen_holds_up_nothing(tree):
    pids = list(tree.wait_until_all_count())
    freeze(tree.root.pid)
    leaf = descendants(tree.root.pid)[-1]
    os.kill(leaf, signal.SIGKILL)
    freeze(tree.root.pid)
    thaw(tree.root.pid)
    (tree.folder / str(leaf)).unlink()
    tree.size = len(pids) - 1
    tree.wait_until_all_count()


def test_children_that_are_spawned_meanwhile_stand_still_too(tmp_path):
    tree = Tree(tmp_path, spawning="spawning", depth=1)
    try:
        tree.wait_until_all_count()
        for _ in range(5):
            freeze(tree.root.pid)
            pids, frozen = descendants(tree.root.pid), tree.counts()
            assert all(map(freezing._stands_still, pids))
            time.sleep(0.05)
            assert moved(frozen, tree.counts()) == set()
            assert descendants(tree.root.pid) == pids
            thaw(tree.root.pid)
            tree.wait_until_all_count()
    finally:
        tree.end()


def test_a_process_that_does_not_stop_is_an_error_and_all_run_again(tree, monkeypatch):
    tree.wait_until_all_count()
    monkeypatch.setattr(freezing, "STOP_LIMIT_S", 0.05)
    monkeypatch.setattr(freezing, "_stands_still", lambda pid: False)
    with pytest.raises(ServerError, match=r"processes \[\d+, .*\] of the server do not stop within 0\.05 s"):
        freeze(tree.root.pid)
    tree.wait_until_all_count()


def test_parents_come_before_their_children(tree):
    tree.wait_until_all_count()
    pids = descendants(tree.root.pid)
    for pid in pids:
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        assert parent == tree.root.pid or pids.index(parent) < pids.index(pid)
    assert tree.root.pid not in pids


def test_a_tree_without_processes_is_frozen_at_once():
    alone = subprocess.Popen(["sleep", "600"])
    try:
        freeze(alone.pid)
        assert freezing._state(Path(f"/proc/{alone.pid}/task/{alone.pid}")) == "S"
        assert freezing._state(Path("/proc/0/task/0")) == "X"
    finally:
        alone.kill()
        alone.wait()
