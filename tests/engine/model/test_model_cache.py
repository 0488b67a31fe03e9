"""The cache: whole or absent, checked, shared by processes, and plain about a disk that does not take it."""

import errno
import multiprocessing
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.config import ConfigError
from engine.model import model_cache, progress
from engine.model.model_cache import cache_root, damage, ensure

FILES = ("a.txt", "b.txt")


class Letters:
    """Content of two small files; notes each writing in `log`, and may run into trouble between the files."""

    size = 1000

    def __init__(self, log: Path, trouble: Callable[[], object] = lambda: None) -> None:
        self.log, self.trouble = log, trouble

    def write(self, folder: Path, wrote: Callable[[int], None]) -> None:
        with self.log.open("a") as log:
            log.write("written\n")
        (folder / "a.txt").write_text("a" * 100)
        self.trouble()
        (folder / "b.txt").write_text("b" * 100)
        wrote(200)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "models" / "letters"


def times_written(target: Path) -> int:
    log = target.parents[2] / "log"
    return len(log.read_text().splitlines()) if log.exists() else 0


def make(target: Path, trouble: Callable[[], object] = lambda: None) -> Path:
    return ensure(target, FILES, "letters", lambda: Letters(target.parents[2] / "log", trouble))


def test_made_once_and_kept(target: Path) -> None:
    assert make(target) == target
    assert make(target) == target
    assert times_written(target) == 1
    assert (target / "a.txt").read_text() == "a" * 100
    assert sorted(p.name for p in target.iterdir()) == ["SHA256SUMS", "a.txt", "b.txt"]


def flip_a_byte(target: Path) -> None:
    (target / "b.txt").write_text("b" * 99 + "c")


@pytest.mark.parametrize(
    ("harm", "named"),
    [
        (flip_a_byte, "b.txt does not match its SHA-256"),
        (lambda target: (target / "a.txt").unlink(), "a.txt"),
        (lambda target: (target / "a.txt").write_text(""), "a.txt does not match"),
        (lambda target: (target / "SHA256SUMS").unlink(), "SHA256SUMS"),
        (lambda target: (target / "SHA256SUMS").write_text(""), "SHA256SUMS does not list its files"),
        (lambda target: (target / "SHA256SUMS").write_text("nonsense"), ""),
    ],
)
def test_a_damaged_folder_is_made_again_and_said_so(
    harm: Callable[[Path], object], named: str, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(target)
    harm(target)
    make(target)
    assert damage(target, FILES) is None
    assert times_written(target) == 2
    message = capsys.readouterr().err
    assert f"{target} is damaged" in message
    assert named in message
    assert left_beside(target) == []


def left_beside(target: Path) -> list[str]:
    return sorted(p.name for p in target.parent.iterdir() if p != target and p.suffix != ".lock")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_disk_that_fails_leaves_nothing(number: int, target: Path) -> None:
    def trouble() -> None:
        raise OSError(number, os.strerror(number))

    with pytest.raises(ConfigError) as refusal:
        make(target, trouble)
    assert str(target) in str(refusal.value)
    assert os.strerror(number) in str(refusal.value)
    assert "1,000 bytes" in str(refusal.value)
    assert not target.exists()
    assert left_beside(target) == []
    assert make(target) == target


def test_too_little_space_is_seen_before_writing(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(target.parents[2])._replace(free=999)
    monkeypatch.setattr(model_cache.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ConfigError, match=r"letters: cannot be written \(999 bytes free\).* 1,000 bytes"):
        make(target)
    assert times_written(target) == 0


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    target = tmp_path / "cache" / "models" / "letters"
    with pytest.raises(ConfigError) as refusal:
        make(target)
    assert str(target) in str(refusal.value)
    assert "1,000 bytes" in str(refusal.value)
    assert "LLM_LADDER_CACHE" in str(refusal.value)


def _make_as_nobody(target: Path, answers: multiprocessing.Queue) -> None:
    if os.geteuid() == 0:  # root may write anywhere
        os.setuid(65534)
    try:
        ensure(target, FILES, "letters", lambda: Letters(Path(os.devnull)))
    except ConfigError as error:
        answers.put(str(error))


@pytest.mark.parametrize("mode", [0o555, 0o000])
def test_a_cache_without_permission(mode: int) -> None:
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        target = root / "cache" / "models" / "letters"
        target.parent.mkdir(parents=True)
        root.chmod(0o755)
        target.parent.chmod(mode)
        process = context.Process(target=_make_as_nobody, args=(target, answers))
        process.start()
        process.join()
        target.parent.chmod(0o755)
    assert process.exitcode == 0
    message = answers.get(timeout=10)
    assert f"{target}: cannot be written (Permission denied); it needs 1,000 bytes" in message


def test_an_interrupt_leaves_nothing(target: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(target, interrupt)
    assert not target.exists()
    assert left_beside(target) == []


def _make_and_die(target: Path) -> None:
    make(target, lambda: os._exit(9))


def _make_slowly(target: Path) -> None:
    make(target, lambda: time.sleep(0.3))


def test_what_a_killed_process_left_is_cleared(target: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=_make_and_die, args=(target,))
    process.start()
    process.join()
    assert process.exitcode == 9
    assert not target.exists()
    assert left_beside(target) == [".letters.part"]
    make(target)
    assert damage(target, FILES) is None
    assert left_beside(target) == []


@pytest.mark.parametrize("harmed", [False, True])
def test_processes_at_the_same_time_make_it_once(harmed: bool, target: Path) -> None:
    before = 0
    if harmed:
        make(target)
        flip_a_byte(target)
        before = 1
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_make_slowly, args=(target,)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert times_written(target) == before + 1
    assert damage(target, FILES) is None


def test_a_long_job_says_so_once(
    target: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = threading.Event()
    monkeypatch.setattr(progress, "QUIET_S", 0.0)
    say = progress.Progress._say
    monkeypatch.setattr(progress.Progress, "_say", lambda self: (say(self), said.set()))
    make(target, lambda: said.wait(60))
    assert capsys.readouterr().err.splitlines() == ["preparing letters …"]


def test_a_short_job_is_silent(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(target)
    assert capsys.readouterr() == ("", "")


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLM_LADDER_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root(None) == tmp_path / ".cache" / "llm-ladder"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root(None) == tmp_path / "xdg" / "llm-ladder"
    monkeypatch.setenv("LLM_LADDER_CACHE", str(tmp_path / "own"))
    assert cache_root(None) == tmp_path / "own"
    assert cache_root(tmp_path / "given") == tmp_path / "given"
