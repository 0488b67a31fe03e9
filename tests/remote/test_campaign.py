"""Whole campaigns on the fake provider, whose boxes are real ssh servers."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from harness.verify import verify
from remote.box.errors import HostKeyMismatch, Lost
from remote.campaign import campaign
from remote.desk import CHECKOUT, Desk
from remote.errors import RemoteError
from remote.follow import CapReached
from remote.journal import RunHeld
from remote.link import BoxLost
from remote.prepare import SetupFailed
from remote.providers.ssh import Own
from remote.settings import Settings
from tests.remote.fake_vast import KEY, Trouble, make_offer
from tests.remote.rented import SETTINGS, WAITS, Brisk, Street, at_work, go, hook, make_desk, street
from tests.remote.sshd import Box, box, until

__all__ = ["box"]


def steps(desk: Desk) -> list[str]:
    return [entry.step for entry in desk.entries()]


def test_from_offer_to_results_at_home(there: Street, tmp_path: Path) -> None:
    desk = make_desk(there.fake.url, tmp_path)
    outcome = campaign(desk)
    assert outcome.ok and outcome.statuses == {"smoke": 0} and outcome.box == ""
    assert [run.run for run in outcome.arrived] == ["night-smoke"]
    assert verify(desk.results / "night-smoke") == []
    assert there.fake.boxes == {} and len(there.fake.destroyed) == 1
    assert steps(desk) == ["intent", "created", "running", "destroying", "destroyed"]
    assert 0 < outcome.dollars < 0.05 and outcome.hours > 0
    said = desk.say.text  # type: ignore[attr-defined]
    order = (
        "renting",
        "dead-man switch armed: 180 min",
        "pushing",
        "NVIDIA H200",
        "stage smoke begins",
        "gone",
    )
    assert sorted(order, key=said.index) == list(order)
    assert f"night: smoke ok; {outcome.hours:.2f} h, ${outcome.dollars:.2f}" in said


@pytest.mark.slow
def test_the_box_gets_the_source_its_record_and_no_more(there: Street, tmp_path: Path) -> None:
    campaign(make_desk(there.fake.url, tmp_path))
    checkout = there.box.home / CHECKOUT
    record = json.loads((checkout / ".source.json").read_text())
    assert "remote/run_stage.sh" in record["files"] and not record["dirty"]
    assert not (checkout / ".venv").exists() and not (checkout / ".git").exists()


def test_the_account_key_is_nowhere(there: Street, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In no file of the box, the state, the results or the checkout, no line for the user, no argument list,
    no environment of the box, and nothing of a request but its header: a box is given its start script."""
    monkeypatch.setenv("VAST_API_KEY", KEY)
    hook(there, 'tr "\\0" "\\n" </proc/self/environ >"$HOME/environ"; ps -ef >"$HOME/ps"; ' + WAITS)
    desk = make_desk(there.fake.url, tmp_path)
    with ThreadPoolExecutor(1) as threads, argument_lists(monkeypatch) as lists:
        working = threads.submit(campaign, desk)
        until(lambda: at_work(there))
        go(there)
        assert working.result().ok
    assert [words for words in lists if KEY.encode() in words] == []
    seen = {Path(words.split(b"\0")[0].decode()).name for words in lists}
    assert {"bash", "rsync", "ssh", "ssh-keygen", "git"} <= seen, seen
    files = [file for file in tmp_path.rglob("*") if file.is_file() and not file.is_symlink()]
    assert len([file for file in files if file.is_relative_to(there.box.home)]) > 10
    assert [file for file in files if KEY.encode() in file.read_bytes()] == []
    assert KEY not in desk.say.text  # type: ignore[attr-defined]
    requests = [(seen.path, seen.query, seen.body) for seen in there.fake.seen]
    assert len(requests) > 5 and KEY not in repr(requests)
    # The search itself can find it.
    (there.box.home / "leak").write_text(f"key={KEY}\n")
    assert [file for file in tmp_path.rglob("*") if file.is_file() and KEY.encode() in file.read_bytes()]


@contextmanager
def argument_lists(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[bytes]]:
    """The argument list of every process this one starts, however short its life, and of every other process
    that was there at one of many looks."""
    seen: set[bytes] = set()
    over = threading.Event()
    start = subprocess.Popen.__init__

    def noted(self: subprocess.Popen[bytes], args: Sequence[str], *others: object, **options: object) -> None:
        seen.add(b"\0".join(os.fsencode(word) for word in args))
        start(self, args, *others, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess.Popen, "__init__", noted)

    def look() -> None:
        while not over.wait(0.002):
            for file in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    seen.add(file.read_bytes())

    with ThreadPoolExecutor(1) as threads:
        threads.submit(look)
        try:
            yield seen
        finally:
            over.set()


@pytest.mark.slow
def test_files_of_the_run_are_for_its_user_only(there: Street, tmp_path: Path) -> None:
    desk = make_desk(there.fake.url, tmp_path)
    campaign(desk)
    for name in ("settings.json", "id_ed25519", "known_hosts"):
        assert (desk.folder.path / name).stat().st_mode & 0o777 == 0o600
    assert desk.folder.path.stat().st_mode & 0o777 == 0o700
    logs = list(desk.folder.path.glob("boxes/*/*.log"))
    assert len(logs) == 2 and all(log.stat().st_mode & 0o777 == 0o600 for log in logs)


@pytest.mark.slow
def test_failover_to_the_next_offer(there: Street, tmp_path: Path) -> None:
    there.fake.boot_of_machine[102] = ("loading", "exited")
    desk = make_desk(there.fake.url, tmp_path)
    assert campaign(desk).ok
    assert [entry.machine for entry in desk.entries() if entry.step == "running"] == ["101"]
    assert there.fake.boxes == {} and len(there.fake.destroyed) == 2


@pytest.mark.slow
def test_a_machine_that_does_not_pass_its_set_up_is_left_for_another(there: Street, tmp_path: Path) -> None:
    first = tmp_path / "first"
    script = f'[[ -e {first} ]] || {{ touch {first}; echo "driver 535 is too old"; exit 1; }}'
    hook(there, script, "setup-hook")
    desk = make_desk(there.fake.url, tmp_path)
    assert campaign(desk).ok
    assert [entry.machine for entry in desk.entries() if entry.step == "running"] == ["102", "101"]
    assert "driver 535 is too old" in desk.say.text  # type: ignore[attr-defined]
    assert there.fake.boxes == {}


@pytest.mark.slow
def test_no_machine_passes_its_set_up(there: Street, tmp_path: Path) -> None:
    hook(there, "echo no GPU; exit 1", "setup-hook")
    with pytest.raises(SetupFailed, match=r"status 1: .*no GPU"):
        campaign(make_desk(there.fake.url, tmp_path))
    assert there.fake.boxes == {} and len(there.fake.destroyed) == 3


def test_a_disconnect_in_mid_run(there: Street, tmp_path: Path) -> None:
    hook(there, WAITS)
    desk = make_desk(there.fake.url, tmp_path)
    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(campaign, desk)
        until(lambda: at_work(there))
        for _ in range(3):
            there.box.drop_connections()
        there.box.lose()
        threading.Event().wait(1)
        there.box.start()
        go(there)
        assert working.result().ok
    assert desk.say.text.count("stage smoke begins") == 1  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_box_that_restarts_at_another_port_with_another_key(there: Street, tmp_path: Path) -> None:
    """The provider vouches for the new key, and the stage, which died with the container, runs again."""
    hook(there, WAITS)
    desk = make_desk(there.fake.url, tmp_path)
    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(campaign, desk)
        until(lambda: at_work(there))
        (number,) = there.fake.boxes
        there.box.new_host_key()
        there.box.port = 0
        there.box.restart()
        there.fake.restart(number, there.box.port, there.box.host_keys[0])
        go(there)
        assert working.result().ok
    said = desk.say.text  # type: ignore[attr-defined]
    assert f"is at 127.0.0.1:{there.box.port} now" in said and "starting it once more" in said


def test_a_changed_host_key_that_nobody_vouches_for(there: Street, tmp_path: Path) -> None:
    hook(there, WAITS)
    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(campaign, make_desk(there.fake.url, tmp_path))
        until(lambda: at_work(there))
        there.box.new_host_key()
        there.box.lose()
        there.box.start()
        with pytest.raises(HostKeyMismatch):
            working.result()
    assert there.fake.boxes == {}


@pytest.mark.slow
def test_a_wrong_host_key_from_the_start_is_another_machine(there: Street, tmp_path: Path) -> None:
    first: list[int] = []

    def other_key(row: dict[str, object]) -> None:
        there._create(row)
        if not first:
            first.append(1)
            row["host_key"] = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ" + "A" * 42 + "="

    there.fake.on_create = other_key
    desk = make_desk(there.fake.url, tmp_path)
    assert campaign(desk).ok
    assert len(there.fake.destroyed) == 2


def test_a_box_that_is_lost_in_mid_run(there: Street, tmp_path: Path) -> None:
    hook(there, WAITS)
    desk = make_desk(there.fake.url, tmp_path)
    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(campaign, desk)
        until(lambda: at_work(there))
        until(lambda: list(desk.folder.path.glob("boxes/*/results/.night-smoke.partial/manifest.json")))
        (number,) = there.fake.boxes
        with there.fake.lock:
            there.box.close()
            del there.fake.boxes[number]
        with pytest.raises(BoxLost, match="has vanished"):
            working.result()
    assert steps(desk)[-1] == "destroyed"
    assert "night-smoke is NOT at home: is incomplete" in desk.say.text  # type: ignore[attr-defined]
    assert not (desk.results / "night-smoke").exists()


@pytest.mark.slow
def test_a_box_that_is_outbid(there: Street, tmp_path: Path) -> None:
    hook(there, WAITS)
    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(campaign, make_desk(there.fake.url, tmp_path))
        until(lambda: at_work(there))
        there.box.lose()
        there.fake.outbid(next(iter(there.fake.boxes)))
        with pytest.raises(BoxLost, match="is stopped"):
            working.result()
    assert there.fake.boxes == {}


@pytest.mark.slow
def test_a_box_that_runs_but_never_answers_again(there: Street, tmp_path: Path) -> None:
    hook(there, WAITS)
    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(campaign, make_desk(there.fake.url, tmp_path, patience_s=2.0))
        until(lambda: at_work(there))
        there.box.lose()
        with pytest.raises(Lost, match="no contact for 2 s"):
            working.result()
    assert there.fake.boxes == {}


@pytest.mark.slow
def test_a_stage_that_fails(there: Street, tmp_path: Path) -> None:
    """The next one has its turn, what is complete comes home, and the outcome is not well."""
    hook(there, '[[ "$stage" != smoke ]] || { echo "out of memory"; exit 7; }')
    settings = SETTINGS.model_copy(update={"stages": ("smoke", "compare")})
    desk = make_desk(there.fake.url, tmp_path, settings=settings)
    outcome = campaign(desk)
    assert outcome.statuses == {"smoke": 7, "compare": 0} and not outcome.ok
    assert {run.run: bool(run.problems) for run in outcome.arrived} == {
        "night-smoke": True,
        "night-compare": False,
    }
    assert verify(desk.results / "night-compare") == []
    assert there.fake.boxes == {}


@pytest.mark.slow
def test_a_failed_box_is_kept_when_asked(there: Street, tmp_path: Path) -> None:
    hook(there, "exit 7")
    desk = make_desk(there.fake.url, tmp_path)
    outcome = campaign(desk, keep_failed=True)
    assert outcome.box == str(next(iter(there.fake.boxes))) and steps(desk)[-1] == "kept"
    assert "is kept until its deadline: ssh -F /dev/null" in desk.say.text  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_result_that_was_changed_on_its_way_is_not_at_home(there: Street, tmp_path: Path) -> None:
    hook(there, 'echo 1,2 >>"$partial/serving.csv"')
    desk = make_desk(there.fake.url, tmp_path)
    outcome = campaign(desk)
    assert not outcome.ok and "serving.csv: SHA-256 is not the one in" in outcome.arrived[0].problems[0]
    assert list(desk.results.iterdir()) == []


@pytest.mark.slow
def test_the_cap_of_hours_is_reached_in_mid_run(there: Street, tmp_path: Path) -> None:
    """The stage is ended in order, so that what it has comes home, and the box goes."""
    hook(there, f"trap 'echo ended >\"$partial/note\"; exit 143' TERM\n{WAITS}")
    brisk = Brisk()
    desk = make_desk(there.fake.url, tmp_path, brisk=brisk)
    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(campaign, desk)
        until(lambda: at_work(there))
        brisk.ahead = 3 * 3600 - 200
        with pytest.raises(CapReached, match=r"must be gone in \d min by the caps of 3 h"):
            working.result()
    assert there.fake.boxes == {}
    assert (next(desk.folder.path.glob("boxes/*/results/.night-smoke.partial")) / "note").exists()


@pytest.mark.slow
def test_the_cap_of_dollars_counts_all_boxes_of_the_run(there: Street, tmp_path: Path) -> None:
    """Price so far of an earlier box and of this one together."""
    hook(there, WAITS)
    brisk = Brisk()
    desk = make_desk(there.fake.url, tmp_path, brisk=brisk)
    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(campaign, desk)
        until(lambda: at_work(there))
        entry = desk.entries()[0]
        dear = entry.model_copy(update={"label": "llm-ladder/night/1900000000", "dollars_per_hour": 1e6})
        desk.journal.write(dear)
        with pytest.raises(CapReached, match=r"is spent, the cap is \$5.00"):
            working.result()
    assert there.fake.boxes == {}


@pytest.mark.slow
def test_two_controllers(there: Street, tmp_path: Path) -> None:
    hook(there, WAITS)
    desk = make_desk(there.fake.url, tmp_path)
    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(campaign, desk)
        until(lambda: at_work(there))
        with pytest.raises(RunHeld, match="run night is in the hands of another process"):
            campaign(make_desk(there.fake.url, tmp_path))
        go(there)
        assert working.result().ok
    assert len(there.fake.created) == 1


@pytest.mark.slow
def test_other_settings_for_a_run_that_was_begun(there: Street, tmp_path: Path) -> None:
    campaign(make_desk(there.fake.url, tmp_path))
    other = SETTINGS.model_copy(update={"hours": 9.0})
    with pytest.raises(RemoteError, match="run night was begun with other settings"):
        campaign(make_desk(there.fake.url, tmp_path, settings=other))
    assert len(there.fake.created) == 1


@pytest.mark.slow
def test_a_storm_of_errors_while_the_box_is_destroyed(there: Street, tmp_path: Path) -> None:
    hook(there, WAITS)
    desk = make_desk(there.fake.url, tmp_path)
    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(campaign, desk)
        until(lambda: at_work(there))
        there.fake.troubles.append(Trouble("DELETE", ".*", 4, 503))
        go(there)
        assert working.result().ok
    assert there.fake.boxes == {}


@pytest.mark.slow
@pytest.mark.parametrize("size", [20_000_000, 100_000_000])
def test_much_output_that_is_not_text(there: Street, tmp_path: Path, size: int) -> None:
    """The whole log is kept here; what is shown is cut and cannot steer a terminal."""
    hook(there, rf"head -c {size} /dev/zero; printf '\n\e[31mcaf\xe9 \xf0\x9f\x8e\x89\n'")
    desk = make_desk(there.fake.url, tmp_path)
    assert campaign(desk).ok
    (log,) = desk.folder.path.glob("boxes/*/smoke-*.log")
    assert log.stat().st_size > size
    said = desk.say.text  # type: ignore[attr-defined]
    assert "bytes are not shown, see" in said and len(said) < 1_000_000
    assert "\x1b" not in said and "caf\ufffd 🎉" in said


def test_nothing_on_offer(tmp_path: Path) -> None:
    with (
        street(tmp_path / "street", [make_offer(11, 9.0)]) as there,
        pytest.raises(RemoteError, match="nothing is on offer"),
    ):
        campaign(make_desk(there.fake.url, tmp_path))


@pytest.mark.slow
def test_a_box_of_ones_own(box: Box, tmp_path: Path) -> None:
    """It is used, not rented, and left running; its switch ends jobs, never the box."""
    own = Own(box.address, known_hosts=box.known_hosts, say=lambda line: None)
    settings = Settings(
        provider=f"ssh:127.0.0.1:{box.port}", hours=1, stages=("smoke",), systems=("project",), key=box.key
    )
    desk = make_desk("http://127.0.0.1:1", tmp_path, provider=own, settings=settings)
    assert campaign(desk).ok
    assert verify(desk.results / "night-smoke") == []
    assert box.ssh().alive() and not box.powered_down
    deadline = (box.home / "llm-ladder" / "deadman" / "deadline").read_text()
    assert deadline.endswith(" jobs\n")
    assert "$" not in desk.say.text  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_wheelhouse_is_pushed_and_installed_before_the_set_up(there: Street, tmp_path: Path) -> None:
    house = tmp_path / "none.house"
    house.mkdir()
    (house / "MANIFEST.json").write_text("{}")
    settings = SETTINGS.model_copy(update={"wheelhouses": (house,)})
    desk = make_desk(there.fake.url, tmp_path, settings=settings)
    install = 'cat "$2/MANIFEST.json" && echo "installed $(basename "$2")"\n'
    (desk.checkout / "remote" / "wheelhouse.sh").write_text(install)
    assert campaign(desk).ok
    said = desk.say.text  # type: ignore[attr-defined]
    assert said.index("{}") < said.index("installed none.house") < said.index("GPU: NVIDIA H200")


@pytest.mark.slow
def test_a_box_that_forgets_the_key_for_a_while(there: Street, tmp_path: Path) -> None:
    hook(there, WAITS)
    desk = make_desk(there.fake.url, tmp_path)
    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(campaign, desk)
        until(lambda: at_work(there))
        keys = there.box.folder / "authorized_keys"
        kept = keys.read_text()
        keys.write_text("")
        there.box.drop_connections()
        desk.say.wait("refuses the key")  # type: ignore[attr-defined]
        keys.write_text(kept)
        go(there)
        assert working.result().ok
