from __future__ import annotations

import fcntl
import json
import os
import resource
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from remote.errors import RemoteError
from remote.journal import Entry, Journal, RunHeld, state_folder


def entry(number: int = 0, **changes: object) -> Entry:
    fields = dict(
        at=float(number), run="night", step="intent", provider="vast", label="llm-ladder/night/1800000000"
    )
    return Entry.model_validate(fields | dict(deadline=1_800_000_000, offer=str(number)) | changes)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "deep" / "state")


def test_nothing_yet(journal: Journal) -> None:
    assert journal.read() == ([], 0)
    assert not journal.folder.exists()


def test_lines_come_back_in_order(journal: Journal) -> None:
    entries = [entry(n, note="two\nlines, café", dollars_per_hour=0.4) for n in range(5)]
    for one in entries:
        journal.write(one)
    assert journal.read() == (entries, 0)
    assert len(journal.path.read_bytes().splitlines()) == 5


def test_only_the_user_can_read(journal: Journal) -> None:
    old = os.umask(0)
    try:
        journal.write(entry())
        with journal.hold("night"):
            files = [path for path in journal.folder.rglob("*") if path.is_file()]
    finally:
        os.umask(old)
    assert len(files) == 2
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (journal.folder, journal.folder / "runs")} == {
        0o700
    }


def test_a_file_that_others_could_read_is_closed_to_them(journal: Journal) -> None:
    journal.write(entry())
    journal.path.chmod(0o644)
    journal.write(entry(1))
    assert stat.S_IMODE(journal.path.stat().st_mode) == 0o600


def test_a_line_is_on_the_disk_when_write_returns(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    real_write, real_sync = os.pwrite, os.fsync
    monkeypatch.setattr(os, "pwrite", lambda *given: (calls.append("write"), real_write(*given))[1])
    monkeypatch.setattr(os, "fsync", lambda file: (calls.append("sync"), real_sync(file))[1])
    journal.write(entry())
    assert calls == ["write", "sync", "sync", "sync"]  # the file, its folder, and the folder of that
    calls.clear()
    journal.write(entry(1))
    assert calls == ["write", "sync"]


@pytest.mark.parametrize("left", [1, 20, -1])
def test_a_cut_line_is_no_line_and_spoils_no_other(journal: Journal, left: int) -> None:
    journal.write(entry(1))
    whole = journal.path.read_bytes()
    journal.path.write_bytes(whole + whole[:left])
    assert journal.read() == ([entry(1)], 1) if left > 0 else ([entry(1), entry(1)], 0)
    journal.write(entry(2))
    entries, damaged = journal.read()
    assert (entries[0], entries[-1]) == (entry(1), entry(2))
    assert damaged == (left > 0)


@pytest.mark.parametrize("line", [b"{}", b"[1]", b"\xff\xfe", b"\0\0\0", b'{"at": "x"}'])
def test_unreadable_lines_are_counted(journal: Journal, line: bytes) -> None:
    journal.write(entry(1))
    journal.path.write_bytes(line + b"\n" + journal.path.read_bytes())
    assert journal.read() == ([entry(1)], 1)


def test_lines_of_later_versions_are_read(journal: Journal) -> None:
    journal.write(entry(1))
    line = json.loads(journal.path.read_text()) | {"step": "something new", "colour": "red"}
    journal.path.write_text(json.dumps(line) + "\n")
    assert journal.read() == ([entry(1, step="something new")], 0)


def test_writers_at_once_lose_no_line(journal: Journal) -> None:
    def write(writer: int) -> None:
        for number in range(25):
            journal.write(entry(number, run=f"run-{writer}"))

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries, damaged = journal.read()
    assert damaged == 0
    for writer in range(4):
        assert [one.at for one in entries if one.run == f"run-{writer}"] == list(range(25))


def test_a_full_disk_leaves_no_part_of_a_line(journal: Journal) -> None:
    journal.write(entry(1))
    size = journal.path.stat().st_size
    program = (
        "import resource, signal, sys\nfrom pathlib import Path\nfrom remote.journal import Entry, Journal\n"
        "from remote.errors import RemoteError\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size + 40}, resource.RLIM_INFINITY))\n"
        "journal = Journal(Path(sys.argv[1]))\nentry = journal.read()[0][0]\n"
        "try:\n    journal.write(entry)\nexcept RemoteError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(journal.folder)], capture_output=True, text=True
    )
    assert "cannot be written" in done.stdout, done.stderr
    assert journal.path.stat().st_size == size
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    journal = Journal(tmp_path / "file" / "state")
    with pytest.raises(RemoteError, match="cannot be written"):
        journal.write(entry())
    with pytest.raises(RemoteError, match="cannot be used"), journal.hold("night"):
        pass


def test_a_link_in_place_of_the_file_is_not_followed(journal: Journal, tmp_path: Path) -> None:
    journal.folder.mkdir(parents=True)
    journal.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RemoteError, match="cannot be written"):
        journal.write(entry())
    assert not (tmp_path / "elsewhere").exists()


class TestHold:
    @pytest.fixture(autouse=True)
    def hasty(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("remote.journal.LOCK_WAIT_S", 0.1)

    def test_a_reaper_that_looks_is_waited_for(
        self, journal: Journal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("remote.journal.LOCK_WAIT_S", 60.0)
        looking = threading.Event()

        def look() -> None:
            with journal.hold("night", shared=True):
                looking.set()
                time.sleep(0.2)

        reaper = threading.Thread(target=look)
        reaper.start()
        looking.wait()
        with journal.hold("night"):
            pass
        reaper.join()

    def test_once(self, journal: Journal) -> None:
        with journal.hold("night"):
            with pytest.raises(RunHeld, match="run night is in the hands"), journal.hold("night"):
                pass
            with journal.hold("day"):
                pass
        with journal.hold("night"):
            pass

    def test_reapers_share_it_and_controllers_do_not(self, journal: Journal) -> None:
        with journal.hold("night", shared=True):
            with journal.hold("night", shared=True):
                pass
            with pytest.raises(RunHeld), journal.hold("night"):
                pass
        with journal.hold("night"), pytest.raises(RunHeld), journal.hold("night", shared=True):
            pass

    def test_it_ends_with_the_process(self, journal: Journal) -> None:
        program = (
            "import sys\nfrom pathlib import Path\nfrom remote.journal import Journal\n"
            "with Journal(Path(sys.argv[1])).hold('night'):\n"
            "    print('held', flush=True)\n    sys.stdin.read()\n"
        )
        command = [sys.executable, "-c", program, str(journal.folder)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdout and child.stdout.readline() == b"held\n"
            with pytest.raises(RunHeld), journal.hold("night"):
                pass
            child.kill()
        with journal.hold("night"):
            pass

    def test_programs_that_are_started_do_not_inherit_it(self, journal: Journal) -> None:
        with journal.hold("night"):
            child = subprocess.Popen(["sleep", "60"], close_fds=False)
        try:
            with journal.hold("night"):
                pass
        finally:
            child.kill()
            child.wait()

    def test_errors_inside_come_out_as_they_are(self, journal: Journal) -> None:
        with pytest.raises(FileNotFoundError), journal.hold("night"):
            raise FileNotFoundError
        with pytest.raises(BlockingIOError), journal.hold("night"):
            raise BlockingIOError

    @pytest.mark.parametrize("run", ["", "../night", "a/b", ".", "a\n"])
    def test_a_run_id_is_no_path(self, journal: Journal, run: str) -> None:
        with pytest.raises(RemoteError, match="run id"), journal.hold(run):
            pass


def test_state_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("LLM_LADDER_STATE", raising=False)
    assert state_folder() == tmp_path / ".local/state/llm-ladder"
    monkeypatch.setenv("LLM_LADDER_STATE", "/elsewhere")
    assert state_folder() == Path("/elsewhere")


def test_a_reader_waits_for_the_writer(journal: Journal) -> None:
    journal.write(entry(1))
    read = threading.Event()
    with journal.path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        reader = threading.Thread(target=lambda: (journal.read(), read.set()))
        reader.start()
        assert not read.wait(0.2)
    reader.join()
    assert read.is_set()
