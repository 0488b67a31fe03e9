"""The dead-man switch: it ends the work without anyone there, at the right time whatever the clock says."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from remote.box import deadman, job, scripts
from remote.box.deadman import MAX_ONSTART, arm, onstart, status
from remote.errors import RemoteError
from tests.remote.sshd import Box, kill, until

BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def deadline(box: Box) -> Path:
    return box.home / "llm-ladder" / "deadman" / "deadline"


def uptime() -> int:
    return int(float(Path("/proc/uptime").read_text().split()[0]))


def start_job(box: Box, command: str = "sleep 1000") -> None:
    job.start(box.ssh(), "job", command)
    until(lambda: box.running("sleep 1000"))


def test_it_ends_the_job_and_powers_the_box_down_without_a_connection(box: Box) -> None:
    arm(box.ssh(), 1000, "box")
    start_job(box)
    arm(box.ssh(), 1, "box")
    box.drop_connections()
    until(lambda: box.powered_down)
    assert not box.running("sleep 1000")
    assert (box.home / "llm-ladder" / "jobs" / "job" / "rc").read_text().strip() == str(128 + 15)


@pytest.mark.slow
def test_before_its_time_it_does_nothing(box: Box) -> None:
    arm(box.ssh(), 1000, "box")
    start_job(box)
    now = status(box.ssh())
    assert now.state == "armed" and 900 < now.seconds_left <= 1000
    time.sleep(0.5)
    assert box.running("sleep 1000") and not box.powered_down


@pytest.mark.slow
def test_of_a_box_one_owns_only_the_jobs_end(box: Box) -> None:
    arm(box.ssh(), 1000, "jobs")
    start_job(box)
    arm(box.ssh(), 1, "jobs")
    until(lambda: not box.processes())
    assert not box.powered_down
    assert status(box.ssh()).state == "fired"
    arm(box.ssh(), 1000, "jobs")
    assert status(box.ssh()).state == "armed"


@pytest.mark.slow
def test_a_job_that_does_not_obey_is_killed(box: Box) -> None:
    arm(box.ssh(), 1000, "jobs")
    start_job(box, "trap '' TERM; setsid sleep 1000 & while :; do sleep 0.1; done")
    arm(box.ssh(), 1, "jobs")
    until(lambda: not box.processes())
    assert job.status(box.ssh(), "job").rc == 128 + 9


@pytest.mark.slow
def test_it_can_be_extended_and_shortened(box: Box) -> None:
    arm(box.ssh(), 3, "box")
    arm(box.ssh(), 1000, "box")
    time.sleep(4)
    assert status(box.ssh()).state == "armed" and not box.powered_down
    until(lambda: len(box.running("deadman.sh watch")) == 1)
    arm(box.ssh(), 1, "box")
    until(lambda: box.powered_down)


@pytest.mark.slow
def test_a_clock_that_is_set_back_does_not_delay_it(box: Box) -> None:
    arm(box.ssh(), 1000, "box")
    deadline(box).write_text(f"{int(time.time()) + 90_000} {uptime() - 1} {BOOT} box\n")
    until(lambda: box.powered_down)


@pytest.mark.slow
def test_a_clock_that_is_set_forward_does_not_end_the_work(box: Box) -> None:
    arm(box.ssh(), 1000, "box")
    deadline(box).write_text(f"{int(time.time()) - 90_000} {uptime() + 1000} {BOOT} box\n")
    time.sleep(0.5)
    now = status(box.ssh())
    assert now.state == "armed" and 900 < now.seconds_left <= 1000
    assert not box.powered_down


def test_a_wrong_clock_of_the_box_from_the_start_changes_nothing(box: Box) -> None:
    """Only seconds are sent: the deadline is made from the uptime of the box."""
    arm(box.ssh(), 1000, "box")
    _, counted, boot, _ = deadline(box).read_text().split()
    assert boot == BOOT and abs(int(counted) - uptime() - 1000) < 60


@pytest.mark.slow
@pytest.mark.parametrize("late", [True, False])
def test_after_a_restart_of_the_machine_the_date_decides(box: Box, late: bool) -> None:
    box.boot(onstart(1000))
    until(lambda: status(box.ssh()).state == "armed")
    box.restart()
    assert status(box.ssh()).state == "off"
    epoch = int(time.time()) + (-10 if late else 500)
    deadline(box).write_text(f"{epoch} {uptime() + (900 if late else -900)} another-boot box\n")
    box.boot(onstart(1000))
    if late:
        until(lambda: box.powered_down)
    else:
        until(lambda: status(box.ssh()).state == "armed")
        assert 400 < status(box.ssh()).seconds_left <= 500


def test_it_is_armed_at_the_start_of_a_box_that_nobody_connects_to(box: Box) -> None:
    box.boot(onstart(1))
    until(lambda: box.powered_down)


def test_a_restart_does_not_give_more_time(box: Box) -> None:
    box.boot(onstart(1000))
    until(lambda: status(box.ssh()).state == "armed")
    before = deadline(box).read_text()
    box.restart()
    box.boot(onstart(1000))
    until(lambda: status(box.ssh()).state == "armed")
    assert deadline(box).read_text() == before


def test_the_start_script_fits_and_holds_no_key() -> None:
    assert len(onstart(10**6)) <= MAX_ONSTART


@pytest.mark.slow
def test_a_deadline_file_that_is_lost_or_damaged_changes_nothing(box: Box) -> None:
    arm(box.ssh(), 4, "box")
    for text in ("", "garbage\n", "1 2\n", "1 1 x everything\n"):
        time.sleep(0.3)
        deadline(box).write_text(text)
    time.sleep(0.3)
    deadline(box).unlink()
    time.sleep(0.3)
    assert not box.powered_down
    until(lambda: box.powered_down)


def test_a_switch_that_was_killed_is_off(box: Box) -> None:
    arm(box.ssh(), 1000, "box")
    for process in box.running("deadman.sh watch"):
        kill(process)
    until(lambda: status(box.ssh()).state == "off")


@pytest.mark.slow
def test_a_switch_outlives_term(box: Box) -> None:
    arm(box.ssh(), 1000, "box")
    for process in box.running("deadman.sh watch"):
        process.terminate()
    time.sleep(0.3)
    assert status(box.ssh()).state == "armed"


def test_arming_fails_when_nothing_watches(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadman, "STARTS_S", 0.5)
    box.program("setsid", "#!/bin/bash\n")
    with pytest.raises(RemoteError, match="is off just after it was armed"):
        arm(box.ssh(), 1000, "box")


@pytest.mark.parametrize("seconds", [0, -5])
def test_no_time_is_no_deadline(box: Box, seconds: int) -> None:
    with pytest.raises(RemoteError, match=f"{seconds} s, at least 1"):
        arm(box.ssh(), seconds, "box")
    with pytest.raises(RemoteError, match=f"{seconds} s, at least 1"):
        onstart(seconds)


def test_a_box_without_a_switch_says_so(box: Box) -> None:
    with pytest.raises(RemoteError, match=r"deadman\.sh"):
        status(box.ssh())
    scripts.install(box.ssh())
    assert status(box.ssh()).state == "off"
