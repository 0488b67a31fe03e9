"""remote/box/ssh.py against a real ssh server: results, refusals, drops, frozen peers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from remote.box import ssh as ssh_module
from remote.box.errors import HostKeyMismatch, KeyRefused, Lost, TimedOut
from remote.box.host_keys import pin, scan
from remote.box.ssh import Result
from remote.clock import SYSTEM_CLOCK
from remote.errors import RemoteError
from remote.providers.base import Address
from tests.remote.sshd import Box, free_port, make_key, until


@contextmanager
def meanwhile(action: Callable[[], None]) -> Iterator[None]:
    thread = threading.Thread(target=action)
    thread.start()
    yield
    thread.join()


def test_a_command_gives_status_output_and_errors_apart(box: Box) -> None:
    result = box.ssh().run("echo out; echo err >&2; exit 7")
    assert result == Result(7, "out\n", "err\n")


def test_commands_run_in_the_home_and_see_the_path_of_the_box(box: Box) -> None:
    assert box.ssh().run("pwd; nvidia-smi | head -n 1").out.splitlines()[0] == str(box.home)
    assert "580.65.06" in box.ssh().run("nvidia-smi").out


def test_read_says_what_failed_and_why(box: Box) -> None:
    with pytest.raises(RemoteError, match=r"'ls /nowhere' on .* status 2: .*No such file"):
        box.ssh().read("ls /nowhere")


def test_a_command_that_reads_input_does_not_wait_for_it(box: Box) -> None:
    assert box.ssh().run("cat; echo end").out == "end\n"


def test_bytes_that_are_not_utf8_are_replaced_in_text_and_kept_in_bytes(box: Box) -> None:
    ssh = box.ssh()
    assert ssh.run(r"printf 'caf\xe9 \xf0\x9f\x8e\x89'").out == "caf� 🎉"
    assert ssh.read(r"printf 'caf\xe9\x00'") == b"caf\xe9\x00"


def test_much_output_on_both_streams_does_not_block(box: Box) -> None:
    size = 3 * 2**20  # more than the window of a channel
    result = box.ssh().run(f"head -c {size} /dev/zero >&2; head -c {size} /dev/zero")
    assert (result.status, len(result.out), len(result.err)) == (0, size, size)


@pytest.mark.slow
@pytest.mark.parametrize("stream", ["", ">&2"])
def test_too_much_output_is_refused(box: Box, monkeypatch: pytest.MonkeyPatch, stream: str) -> None:
    monkeypatch.setattr(ssh_module, "MAX_OUTPUT", 100_000)
    ssh = box.ssh()
    with pytest.raises(RemoteError, match="more than 100000 bytes of output: run it as a job"):
        ssh.run(f"yes {stream}")
    assert ssh.run("echo on").out == "on\n"


@pytest.mark.slow
def test_more_calls_than_sessions_of_a_connection(box: Box) -> None:
    ssh = box.ssh()
    assert [ssh.run(f"echo {n}").out for n in range(15)] == [f"{n}\n" for n in range(15)]
    assert (box.folder / "sshd.log").read_text().count("Accepted publickey") == 1


def test_a_file_is_written_whole_and_for_oneself(box: Box) -> None:
    data = bytes(range(256)) * 1000
    box.ssh().write("a folder/it's.bin", data)
    file = box.home / "a folder" / "it's.bin"
    assert file.read_bytes() == data
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["it's.bin"]


def test_another_key_is_refused(box: Box, tmp_path: Path) -> None:
    make_key(tmp_path / "other")
    with pytest.raises(KeyRefused, match=r"127\.0\.0\.1.* refuses the key .*other"):
        box.ssh(key=tmp_path / "other").run("true")


def test_a_key_that_others_may_read_is_not_used(box: Box) -> None:
    box.key.chmod(0o644)
    with pytest.raises(RemoteError, match="mode 0644, the limit is 0600"):
        box.ssh().run("true")


def test_a_missing_key_is_named(box: Box, tmp_path: Path) -> None:
    with pytest.raises(RemoteError, match=r"there is no private key .*/none"):
        box.ssh(key=tmp_path / "none").run("true")


@pytest.mark.parametrize("written", [None, "", "example.org ssh-ed25519 AAAA\n"])
def test_an_unknown_host_key_is_refused(box: Box, written: str | None) -> None:
    if written is None:
        box.known_hosts.unlink()
    else:
        box.known_hosts.write_text(written)
    with pytest.raises(HostKeyMismatch, match=rf"no host key of \[127\.0\.0\.1\]:{box.port} is pinned"):
        box.ssh().run("true")
    assert "Accepted" not in (box.folder / "sshd.log").read_text()


def test_a_key_of_another_kind_than_the_pinned_one_is_refused(box: Box) -> None:
    """A file that has only keys the server lacks must not make the host count as unknown."""
    rsa = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQC7"
    box.known_hosts.write_text(f"[127.0.0.1]:{box.port} {rsa}\n")
    with pytest.raises(HostKeyMismatch):
        box.ssh().run("true")


def test_a_changed_host_key_is_refused_until_it_is_pinned_anew(box: Box) -> None:
    ssh = box.ssh()
    assert ssh.alive()
    box.new_host_key()
    box.restart()
    with pytest.raises(HostKeyMismatch, match="another host key than the pinned one"):
        ssh.run("true")
    with pytest.raises(HostKeyMismatch):
        ssh.wait_until_open(60)
    box.pin()
    assert ssh.alive()


def test_a_changed_port_needs_the_pin_of_the_new_address(box: Box) -> None:
    box.restart(port=free_port())
    with pytest.raises(HostKeyMismatch, match="is pinned"):
        box.ssh().run("true")
    box.pin()
    assert box.ssh().alive()


def test_a_drop_in_mid_run_is_lost_and_the_next_call_reconnects(box: Box) -> None:
    ssh = box.ssh()

    def cut() -> None:
        until(lambda: box.running("sleep 1000"))
        box.drop_connections()

    with meanwhile(cut), pytest.raises(Lost, match="no exit status"):
        ssh.run("echo partial; sleep 1000")
    assert ssh.run("echo on").out == "on\n"
    assert box.running("sleep 1000"), "a quiet command lives on: that is what jobs are for"


def test_a_drop_between_calls_is_not_noticed(box: Box) -> None:
    ssh = box.ssh()
    assert ssh.alive()
    box.drop_connections()
    until(lambda: not ssh._connection.is_connected)
    assert ssh.run("echo on").out == "on\n"


def test_a_command_killed_by_a_signal_has_no_status(box: Box) -> None:
    ssh = box.ssh()
    with pytest.raises(Lost, match="or killed by a signal"):
        ssh.run("kill -KILL $$")
    assert ssh.alive()


def test_a_slow_command_times_out(box: Box) -> None:
    ssh = box.ssh()
    with pytest.raises(TimedOut, match=r"'sleep 1000' on .*: no end within 0.5 s"):
        ssh.run("sleep 1000", timeout_s=0.5)
    assert ssh.alive()


@pytest.mark.slow
def test_a_peer_that_freezes_in_mid_run_times_out(box: Box) -> None:
    ssh = box.ssh()

    def freeze() -> None:
        until(lambda: box.running("sleep 1000"))
        box.freeze()

    with meanwhile(freeze), pytest.raises(TimedOut):
        ssh.run("sleep 1000", timeout_s=2)
    box.thaw()
    assert ssh.alive()


def test_a_peer_that_froze_between_calls_times_out(box: Box) -> None:
    ssh = box.ssh(connect_s=1)
    assert ssh.alive()
    box.freeze()
    with pytest.raises(TimedOut):
        ssh.run("true", timeout_s=0.5)
    assert not ssh.alive(timeout_s=0.5), "nor does a new connection get an answer"
    box.thaw()
    until(lambda: ssh.alive())


def test_a_frozen_peer_does_not_block_what_is_sent(box: Box) -> None:
    ssh = box.ssh()
    assert ssh.alive()
    box.freeze()
    with pytest.raises(TimedOut):
        ssh.write("file", bytes(8 * 2**20), timeout_s=1)
    box.thaw()


def test_a_lost_box_cannot_be_reached(box: Box) -> None:
    ssh = box.ssh()
    assert ssh.alive()
    box.lose()
    with pytest.raises(Lost):
        ssh.run("true")
    with pytest.raises(Lost, match="cannot be reached"):
        ssh.run("true")
    assert not ssh.alive()


def test_waiting_ends_when_the_box_opens(box: Box, tmp_path: Path) -> None:
    """A box that starts: first no server, then a server without the key, then all is well."""
    box.lose()
    accepted = box.folder / "authorized_keys"
    key = accepted.read_text()
    accepted.write_text("")
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            box.start()
        if len(slept) == 4:
            accepted.write_text(key)

    box.ssh().wait_until_open(1000, replace(SYSTEM_CLOCK, sleep=sleep))
    assert len(slept) == 4


def test_waiting_gives_up_with_the_last_reason(box: Box) -> None:
    box.lose()
    now = iter(range(0, 1000, 100))
    clock = replace(SYSTEM_CLOCK, sleep=lambda _: None, monotonic=lambda: next(now))
    with pytest.raises(Lost, match=r"cannot be reached.* \(for 250 s\)"):
        box.ssh().wait_until_open(250, clock)


def test_no_secret_in_what_is_shown_of_a_connection(box: Box) -> None:
    private = box.key.read_text().splitlines()[1]
    ssh = box.ssh()
    assert ssh.alive()
    assert private not in repr(ssh) + " ".join(ssh.command_line())


def test_pins_are_written_for_every_address_and_for_oneself(tmp_path: Path) -> None:
    file = tmp_path / "runs" / "known_hosts"
    keys = ["ssh-rsa QUJD root@box", "ssh-ed25519 QUJDRA=="]
    pin(file, [Address("10.0.0.1", 22), Address("proxy.example.org", 40022)], keys)
    assert file.read_text() == (
        "10.0.0.1 ssh-ed25519 QUJDRA==\n"
        "10.0.0.1 ssh-rsa QUJD\n"
        "[proxy.example.org]:40022 ssh-ed25519 QUJDRA==\n"
        "[proxy.example.org]:40022 ssh-rsa QUJD\n"
    )
    assert file.stat().st_mode & 0o777 == 0o600
    pin(file, [Address("10.0.0.2", 22)], keys[1:])
    assert file.read_text() == "10.0.0.2 ssh-ed25519 QUJDRA==\n"
    assert [path.name for path in file.parent.iterdir()] == ["known_hosts"]


@pytest.mark.parametrize(
    "keys",
    [
        [],
        ["ssh-dss QUJD"],
        ["QUJD"],
        ["ssh-ed25519 QUJD\n* ssh-ed25519 RVZJTA=="],
        ["ssh-ed25519 QUJD c\n* ssh-ed25519 RVZJTA=="],
        ["@cert-authority * ssh-ed25519 QUJD"],
    ],
)
def test_what_is_no_host_key_is_not_pinned(tmp_path: Path, keys: list[str]) -> None:
    with pytest.raises(RemoteError):
        pin(tmp_path / "known_hosts", [Address("10.0.0.1", 22)], keys)
    assert not (tmp_path / "known_hosts").exists()


def test_a_scan_shows_what_the_server_shows(box: Box) -> None:
    (shown,) = scan(box.address)
    assert shown.split()[:2] == box.host_keys[0].split()[:2]
    pin(box.known_hosts, [box.address], [shown])
    assert box.ssh().alive()
    box.lose()
    with pytest.raises(Lost, match="showed no host key"):
        scan(box.address, timeout_s=1)


def test_the_stand_in_box_is_apart_from_this_machine(box: Box) -> None:
    assert box.home != Path.home()
    assert box.ssh().run("echo $HOME $LLM_LADDER_POWER_DOWN").out.split() == [
        str(box.home),
        str(box.folder / "power_down"),
    ]
    started = time.monotonic()
    box.close()
    assert box.processes() == [] and started
