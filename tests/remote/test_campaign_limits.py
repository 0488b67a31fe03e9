"""Campaigns at the end of something: of a disk, of the money, of what clocks agree on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.verify import verify
from remote.box.errors import DiskFull
from remote.campaign import campaign
from remote.desk import CHECKOUT, RESULTS
from remote.errors import RemoteError
from remote.follow import CapReached
from tests.remote.rented import SETTINGS, WAITS, Brisk, Street, at_work, hook, make_desk
from tests.remote.sshd import Box, until

pytestmark = pytest.mark.slow  # real servers, seconds each

SmallDisk = Callable[[Path, int], None]


def test_the_disk_at_home_is_full_in_mid_run(there: Street, tmp_path: Path, small_disk: SmallDisk) -> None:
    """The log does not fit, nor does the journal any more: the box is destroyed all the same."""
    hook(there, "head -c 20000000 /dev/zero; sleep 1000")
    small_disk(tmp_path / "state", 4_000_000)
    with pytest.raises(RemoteError, match="No space left on device"):
        campaign(make_desk(there.fake.url, tmp_path))
    assert there.fake.boxes == {} and len(there.fake.destroyed) == 1


def test_the_disk_of_the_results_is_full(there: Street, tmp_path: Path, small_disk: SmallDisk) -> None:
    """What came stays where it is, whole, and no part of it lies beside the other runs."""
    small_disk(tmp_path / "results", 40_000)
    desk = make_desk(there.fake.url, tmp_path)
    with pytest.raises(RemoteError, match=r"No space left on device.*; it is kept there"):
        campaign(desk)
    (kept,) = desk.folder.path.glob("boxes/*/results/night-smoke")
    assert verify(kept) == [] and list(desk.results.iterdir()) == []
    assert there.fake.boxes == {}


def test_the_disk_of_the_box_is_full_for_its_results(
    there: Street, tmp_path: Path, small_disk: SmallDisk
) -> None:
    there.made = lambda box: small_disk(box.home / RESULTS, 40_000)
    desk = make_desk(there.fake.url, tmp_path)
    outcome = campaign(desk)
    assert outcome.statuses == {"smoke": 1} and not outcome.ok
    assert "No space left on device" in desk.say.text  # type: ignore[attr-defined]
    assert list(desk.results.iterdir()) == [] and there.fake.boxes == {}


def test_the_disk_of_the_box_is_full_for_the_source(
    there: Street, tmp_path: Path, small_disk: SmallDisk
) -> None:
    there.made = lambda box: small_disk(box.home / CHECKOUT, 40_000)
    with pytest.raises(DiskFull):
        campaign(make_desk(there.fake.url, tmp_path))
    assert there.fake.boxes == {}


@pytest.mark.parametrize("ahead", [-86_400.0, 86_400.0])
def test_the_clocks_of_controller_and_box_differ_by_a_day(
    there: Street, tmp_path: Path, ahead: float
) -> None:
    """The switch of the box counts seconds; results are told apart by content, whatever their dates."""
    hook(there, 'touch -d "2040-01-01" "$partial"/*')
    brisk = Brisk()
    brisk.ahead = ahead
    desk = make_desk(there.fake.url, tmp_path, brisk=brisk)
    outcome = campaign(desk)
    assert outcome.ok and 0 < outcome.hours < 0.1 and outcome.dollars < 0.1
    assert verify(desk.results / "night-smoke") == []
    armed = (there.box.home / "llm-ladder" / "deadman" / "deadline").read_text().split()
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    assert 0 < int(armed[1]) - uptime <= 3 * 3600 + 1


def test_a_controller_whose_clock_is_set_back_keeps_the_box_of_its_run(there: Street, tmp_path: Path) -> None:
    """No price falls below nothing, and the box still ends by its own count of seconds."""
    hook(there, WAITS)
    brisk = Brisk()
    desk = make_desk(there.fake.url, tmp_path, brisk=brisk)
    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(campaign, desk)
        until(lambda: at_work(there))
        brisk.ahead = -86_400.0
        (there.box.home / "go").touch()
        outcome = working.result()
    assert outcome.ok and outcome.dollars == 0.0 and there.fake.boxes == {}


def test_the_dollars_end_a_run_before_its_hours(there: Street, tmp_path: Path) -> None:
    """At $0.37/h a cap of $0.50 is 66 min with the way out: the run ends in order, within the cap."""
    hook(there, WAITS)
    brisk = Brisk()
    settings = SETTINGS.model_copy(update={"dollars": 0.5})
    desk = make_desk(there.fake.url, tmp_path, brisk=brisk, settings=settings)
    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(campaign, desk)
        until(lambda: at_work(there))
        brisk.ahead = 50 * 60.0
        desk.say.wait("smoke-")  # type: ignore[attr-defined]
        assert not working.done()
        brisk.ahead = 62 * 60.0
        with pytest.raises(CapReached, match=r"by the caps of 3 h and \$0.50"):
            working.result()
    assert there.fake.boxes == {} and 0.3 < desk.spent() <= 0.5


def test_a_machine_whose_ssh_port_never_opens_is_left_for_another(there: Street, tmp_path: Path) -> None:
    brisk = Brisk()

    def closed(box: Box) -> None:
        if len(there.boxes) == 1:
            box.lose()

    there.made = closed
    desk = make_desk(there.fake.url, tmp_path, brisk=brisk)
    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(campaign, desk)
        desk.say.wait("box 5001: running")  # type: ignore[attr-defined]
        brisk.ahead = 901.0
        assert working.result().ok
    assert "900 s without progress" in desk.say.text or "901 s" in desk.say.text  # type: ignore[attr-defined]
    assert len(there.fake.destroyed) == 2
