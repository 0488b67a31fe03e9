"""Detached jobs on a real ssh server: what survives, what runs once, and what is told about the end."""

from __future__ import annotations

import threading
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from remote.box import job, scripts
from remote.box.errors import Lost
from remote.box.job import JobStatus, follow, start, status, stop
from remote.box.ssh import Ssh
from remote.clock import SYSTEM_CLOCK
from remote.errors import RemoteError
from tests.remote.sshd import Box, kill, until

QUICK = 0.05


def ended(box: Box, name: str = "job") -> JobStatus:
    until(lambda: status(box.ssh(), name).state != "running")
    return status(box.ssh(), name)


def log_of(box: Box, name: str = "job") -> bytes:
    return b"".join(follow(box.ssh(), name, poll_s=QUICK))


def files(box: Box, name: str = "job") -> Path:
    return box.home / "llm-ladder" / "jobs" / name


@pytest.mark.slow
@pytest.mark.parametrize("rc", [0, 1, 255])
def test_the_exit_status_of_the_command_is_that_of_the_job(box: Box, rc: int) -> None:
    ssh = box.ssh()
    assert start(ssh, "job", f"echo out; echo err >&2; pwd; exit {rc}")
    assert ended(box) == JobStatus("ended", rc, len(log_of(box)))
    assert log_of(box).decode().splitlines() == ["out", "err", str(box.home)]


@pytest.mark.slow
def test_a_running_job_is_running_and_its_log_grows(box: Box) -> None:
    ssh = box.ssh()
    start(ssh, "job", "echo begun; until [[ -e go ]]; do sleep 0.05; done; exit 3")
    until(lambda: status(ssh, "job") == JobStatus("running", None, 6))
    (box.home / "go").touch()
    assert ended(box) == JobStatus("ended", 3, 6)


def test_a_job_outlives_connection_and_server(box: Box) -> None:
    ssh = box.ssh()
    start(ssh, "job", "until [[ -e go ]]; do echo tick; sleep 0.05; done; exit 7")
    box.drop_connections()
    assert status(ssh, "job").state in ("running", "unknown")
    box.lose()
    assert status(ssh, "job") == JobStatus("unknown")
    (box.home / "go").touch()
    box.start()
    assert ended(box).rc == 7


@pytest.mark.slow
def test_a_job_reads_nothing_and_its_start_returns_at_once(box: Box) -> None:
    start(box.ssh(), "job", "cat; sleep 1000")
    until(lambda: box.running("sleep 1000"))
    assert status(box.ssh(), "job").state == "running"


def test_a_command_is_not_in_the_list_of_processes_and_its_files_are_for_oneself(box: Box) -> None:
    start(box.ssh(), "job", "umask; TOKEN='a b \"c\" $HOME' bash -c 'echo $TOKEN'; sleep 1000")
    said = box.ssh().read("umask") + b'a b "c" $HOME\n'
    until(lambda: (files(box) / "log").read_bytes() == said)
    assert not box.running("TOKEN")
    assert [file.name for file in files(box).iterdir() if file.stat().st_mode & 0o077] == []
    assert files(box).stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
def test_a_repeated_start_starts_nothing(box: Box) -> None:
    """As after a lost answer: while it runs, and when it has ended."""
    ssh = box.ssh()
    command = "echo run >>runs; until [[ -e go ]]; do sleep 0.05; done"
    assert [start(ssh, "job", command) for _ in range(3)] == [True, False, False]
    (box.home / "go").touch()
    assert ended(box).rc == 0
    assert not start(ssh, "job", command)
    assert (box.home / "runs").read_text() == "run\n"


@pytest.mark.slow
def test_again_runs_it_once_more_behind_the_same_log(box: Box) -> None:
    ssh = box.ssh()
    command = "echo run; [[ -e done ]] || { touch done; exit 9; }"
    start(ssh, "job", command)
    assert ended(box).rc == 9
    offset = ended(box).log_bytes or 0
    assert start(ssh, "job", command, again=True)
    assert b"".join(follow(ssh, "job", offset, QUICK)) == b"run\n"
    assert ended(box) == JobStatus("ended", 0, 8)


def test_again_does_not_start_what_runs(box: Box) -> None:
    ssh = box.ssh()
    start(ssh, "job", "sleep 1000")
    assert not start(ssh, "job", "sleep 1000", again=True)
    until(lambda: len(box.running("sleep 1000")) == 1)


def test_another_command_under_the_same_name_is_refused(box: Box) -> None:
    ssh = box.ssh()
    start(ssh, "job", "sleep 1000")
    with pytest.raises(RemoteError, match="job 'job' is there with another command"):
        start(ssh, "job", "sleep 2000")


@pytest.mark.slow
def test_two_controllers_start_one_job(box: Box) -> None:
    def controller(_: int) -> bool:
        gate.wait()
        return start(box.ssh(), "job", "echo run >>runs; sleep 1000")

    gate = threading.Barrier(4)
    with ThreadPoolExecutor(4) as pool:
        started = list(pool.map(controller, range(4)))
    until(lambda: box.running("sleep 1000"))
    assert sorted(started) == [False, False, False, True]
    assert (box.home / "runs").read_text() == "run\n"


@pytest.mark.slow
def test_a_command_killed_by_a_signal_is_told(box: Box) -> None:
    start(box.ssh(), "job", "kill -KILL $$")
    assert ended(box).rc == 128 + 9


@pytest.mark.slow
def test_a_job_whose_box_restarts_is_lost_and_can_go_on(box: Box) -> None:
    command = "echo run >>runs; [[ -e go ]] || sleep 1000"
    start(box.ssh(), "job", command)
    until(lambda: box.running("sleep 1000"))
    box.restart()
    assert status(box.ssh(), "job") == JobStatus("lost", None, 0)
    assert not start(box.ssh(), "job", command), "only when told to"
    (box.home / "go").touch()
    assert start(box.ssh(), "job", command, again=True)
    assert ended(box).rc == 0
    assert (box.home / "runs").read_text() == "run\nrun\n"


@pytest.mark.slow
def test_without_its_supervisor_a_job_still_does_not_run_twice(box: Box) -> None:
    start(box.ssh(), "job", "sleep 1000; true")
    until(lambda: box.running("sleep 1000"))
    for process in box.running("supervise"):
        kill(process)
    assert status(box.ssh(), "job").state == "running"
    assert not start(box.ssh(), "job", "sleep 1000; true", again=True)
    for process in box.running("sleep 1000") + box.running("jobs/job/command"):
        kill(process)
    until(lambda: status(box.ssh(), "job").state == "lost")


@pytest.mark.slow
def test_a_stopped_job_can_clean_up(box: Box) -> None:
    start(box.ssh(), "job", "trap 'echo cleaned; exit 4' TERM; echo ready; sleep 1000 & wait")
    until(lambda: status(box.ssh(), "job").log_bytes)
    assert stop(box.ssh(), "job", poll_s=QUICK).rc == 4
    assert log_of(box) == b"ready\ncleaned\n"


@pytest.mark.slow
def test_term_goes_to_the_command_which_ends_its_servers_in_its_own_order(box: Box) -> None:
    server = "setsid bash -c 'trap \"echo told twice\" TERM; while :; do sleep 0.1; done' & "
    start(box.ssh(), "job", f"trap 'echo cleaned; exit 4' TERM; {server} echo ready; wait")
    until(lambda: status(box.ssh(), "job").log_bytes and box.running("told twice"))
    assert stop(box.ssh(), "job", poll_s=QUICK).rc == 4
    assert log_of(box) == b"ready\ncleaned\n"
    until(lambda: box.processes() == [])


@pytest.mark.slow
def test_a_second_signal_does_not_keep_the_exit_status_from_being_noted(box: Box) -> None:
    box.program(
        "mv", '#!/bin/bash\n[[ "$1" != rc.new ]] || { touch moving; sleep 0.5; }\nexec /bin/mv "$@"\n'
    )
    start(box.ssh(), "job", "sleep 1000")
    until(lambda: box.running("sleep 1000"))
    for process in box.running("sleep 1000"):
        kill(process)
    until(lambda: (files(box) / "moving").exists())
    box.ssh().run("bash llm-ladder/box/job.sh signal TERM job")
    assert ended(box).rc == 128 + 9


@pytest.mark.slow
def test_a_job_that_does_not_obey_is_killed_with_all_it_started(box: Box) -> None:
    start(
        box.ssh(),
        "job",
        "trap '' TERM; setsid sleep 1000 & (sleep 2000 9>&- &) ; echo ready; while :; do sleep 0.1; done",
    )
    until(lambda: status(box.ssh(), "job").log_bytes)
    until(lambda: box.running("sleep 1000") and box.running("sleep 2000"))
    assert stop(box.ssh(), "job", grace_s=0.2, poll_s=QUICK).rc == 128 + 9
    until(lambda: box.processes() == [])


@pytest.mark.slow
def test_stop_ends_what_a_job_left_behind_and_no_other_job(box: Box) -> None:
    start(box.ssh(), "job", "setsid sleep 1000 & exit 0")
    start(box.ssh(), "job2", "sleep 2000")
    assert ended(box).rc == 0
    with pytest.raises(RemoteError, match="some of its processes still run: stop it first"):
        start(box.ssh(), "job", "setsid sleep 1000 & exit 0", again=True)
    assert stop(box.ssh(), "job", poll_s=QUICK) == JobStatus("ended", 0, 0)
    until(lambda: not box.running("sleep 1000"))
    assert status(box.ssh(), "job2").state == "running"


@pytest.mark.slow
def test_stop_never_signals_a_stranger_with_the_number_of_an_old_job(box: Box) -> None:
    start(box.ssh(), "job", "true")
    assert ended(box).rc == 0
    start(box.ssh(), "other", "sleep 1000")
    until(lambda: (files(box, "other") / "pid").exists())
    (files(box) / "pid").write_text((files(box, "other") / "pid").read_text())
    stop(box.ssh(), "job", poll_s=QUICK)
    assert status(box.ssh(), "other").state == "running"


@pytest.mark.slow
def test_a_job_that_fills_the_disk_still_tells_its_exit_status(
    box: Box, small_disk: Callable[[Path, int], None]
) -> None:
    small_disk(box.home / "llm-ladder", 400_000)
    start(box.ssh(), "job", "cat /dev/zero; echo full >>~/end; exit 6")
    assert ended(box).rc == 6
    assert (box.home / "end").read_text() == "full\n"


@pytest.mark.parametrize("name", ["", "../x", "a b", "-n", "a;b", "x" * 101])
def test_names_that_are_no_names(box: Box, name: str) -> None:
    for call in (lambda ssh: start(ssh, name, "true"), lambda ssh: status(ssh, name)):
        with pytest.raises(RemoteError, match="at most 100 letters"):
            call(box.ssh())


@pytest.mark.slow
def test_a_job_that_is_not_there(box: Box) -> None:
    scripts.install(box.ssh())
    for call in (lambda: status(box.ssh(), "job"), lambda: list(follow(box.ssh(), "job"))):
        with pytest.raises(RemoteError, match="no job 'job'"):
            call()


@pytest.mark.slow
def test_following_goes_on_by_offset_after_drops(box: Box) -> None:
    """Every byte once, although the connection is cut again and again, and bytes are not UTF-8."""
    script = r"n=0; until [[ -e go ]]; do printf '%s \xe9\n' $((n++)); sleep 0.01; done; exit 5"
    start(box.ssh(), "job", script)
    ssh, got, cuts = box.ssh(), b"", 0
    for chunk in follow(ssh, "job", poll_s=QUICK):
        got += chunk
        if cuts < 5:
            box.drop_connections()
            cuts += 1
        else:
            (box.home / "go").touch()
    assert got == b"".join(b"%d \xe9\n" % n for n in range(got.count(b"\n")))
    assert ended(box).rc == 5
    assert cuts == 5
    assert b"".join(follow(box.ssh(), "job", 100, QUICK)) == got[100:]


@pytest.mark.slow
def test_following_survives_a_box_that_is_away_for_a_while(box: Box) -> None:
    start(box.ssh(), "job", "echo one; until [[ -e go ]]; do sleep 0.05; done; echo two")
    lines = follow(box.ssh(), "job", poll_s=QUICK)
    assert next(lines) == b"one\n"
    box.lose()
    threading.Timer(0.5, lambda: ((box.home / "go").touch(), box.start())).start()
    assert b"".join(lines) == b"two\n"


def test_following_gives_up_on_a_lost_box(box: Box) -> None:
    start(box.ssh(), "job", "echo one; sleep 1000")
    now = [0.0]
    clock = replace(SYSTEM_CLOCK, monotonic=lambda: now[0], sleep=lambda _: now.append(now.pop() + 100))
    chunks = follow(box.ssh(), "job", patience_s=350, clock=clock)
    assert next(chunks) == b"one\n"
    box.lose()
    with pytest.raises(Lost, match="job job: no contact for 350 s, at offset 4"):
        next(chunks)


@pytest.mark.slow
def test_following_from_behind_the_end_is_refused(box: Box) -> None:
    start(box.ssh(), "job", "echo one")
    assert ended(box).rc == 0
    with pytest.raises(RemoteError, match="its log has 4 bytes, the offset is 5"):
        list(follow(box.ssh(), "job", 5))


@pytest.mark.slow
@pytest.mark.parametrize("size", [20_000_000, pytest.param(100_000_000, marks=pytest.mark.slow)])
def test_much_output_comes_once_and_is_not_kept(box: Box, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    start(box.ssh(), "job", f"head -c {size} /dev/zero")
    assert ended(box).log_bytes == size
    asked: list[int] = []
    read = Ssh.read

    def counted(self: Ssh, *arguments: object) -> bytes:
        answer = read(self, *arguments)  # type: ignore[arg-type]
        asked.append(len(answer))
        return answer

    monkeypatch.setattr(Ssh, "read", counted)
    got = 0
    tracemalloc.start()
    for chunk in follow(box.ssh(), "job"):
        got += len(chunk)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert got == size
    assert sum(asked) < size + 100 * len(asked)
    assert len(asked) == size // job.CHUNK + 1
    assert peak < 8 * job.CHUNK


def test_an_answer_that_is_no_status_is_refused(box: Box) -> None:
    scripts.install(box.ssh())
    (box.home / "llm-ladder" / "box" / "job.sh").write_text("echo Welcome to the box\n")
    with pytest.raises(RemoteError, match="not the status of a job: b'Welcome to the box"):
        status(box.ssh(), "job")


def test_the_scripts_are_the_same_bytes_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    before = scripts.archive()
    monkeypatch.setattr(time, "time", lambda: 1.0)
    assert scripts.archive() == before
