"""Boxes for tests: real OpenSSH servers on loopback, each with its own home, PATH, host key and port.

`box` is a fixture; `Box.make(folder)` makes more of them. Where there is no sshd the tests are skipped, which
LLM_LADDER_REQUIRE_SSHD=1 turns into a failure.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from remote.box.host_keys import pin
from remote.box.ssh import Ssh
from remote.providers.base import Address

REQUIRE = "LLM_LADDER_REQUIRE_SSHD"
MARK = "LLM_LADDER_TEST_BOX"
SBIN = ":/usr/sbin:/usr/local/sbin"
STARTS_S = 20.0

CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile {folder}/sshd.pid
ForceCommand /bin/bash {folder}/session.sh
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PrintMotd no
"""

# Its power-down is a stand-in, always: the real one is for boxes only.
SESSION = """\
export HOME={folder}/home PATH={folder}/bin:$PATH {mark}={folder}
export LLM_LADDER_POWER_DOWN={folder}/power_down LLM_LADDER_DEADMAN_POLL_S=0.1 LLM_LADDER_DEADMAN_GRACE_S=1
cd "$HOME" || exit
[[ ! -e {folder}/limits ]] || source {folder}/limits
exec bash -c "${{SSH_ORIGINAL_COMMAND:-true}}"
"""
POWER_DOWN = """\
touch {folder}/powered-down
kill "$(<{folder}/sshd.pid)"
"""
NVIDIA_SMI = """\
#!/bin/bash
case "$*" in
    *--query-gpu*noheader*) echo 'NVIDIA H200, GPU-0, 580.65.06, 143771 MiB' ;;
    *) echo 'NVIDIA-SMI 580.65.06  Driver Version: 580.65.06  CUDA Version: 13.0' ;;
esac
"""


def need_sshd() -> str:
    """Path of sshd. Skips the test, or fails it, where sshd, ssh or rsync is missing."""
    sshd = shutil.which("sshd", path=os.environ.get("PATH", "") + SBIN)
    found = {"sshd": sshd, "ssh": shutil.which("ssh"), "rsync": shutil.which("rsync")}
    missing = [name for name, path in found.items() if path is None]
    if not missing:
        return str(sshd)
    reason = f"no {' and no '.join(missing)} here: apt-get install openssh-server openssh-client rsync"
    if os.environ.get(REQUIRE) == "1":
        pytest.fail(f"{reason} ({REQUIRE}=1)")
    pytest.skip(reason)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box.make(tmp_path / "box") as made:
        yield made


@dataclass
class Box:
    """One box. Everything it runs is found by a variable in the environment, and ends with it."""

    folder: Path
    sshd: str
    port: int = 0
    _server: psutil.Popen | None = None

    @classmethod
    @contextlib.contextmanager
    def make(cls, folder: Path) -> Iterator[Box]:
        """A box that is up, in a new folder without spaces in its path."""
        made = cls(folder, need_sshd())
        for name in ("home", "bin"):
            (folder / name).mkdir(parents=True)
        make_key(made.key)
        shutil.copy(made.key.with_suffix(".pub"), folder / "authorized_keys")
        (folder / "session.sh").write_text(SESSION.format(folder=folder, mark=MARK))
        (folder / "power_down").write_text(POWER_DOWN.format(folder=folder))
        made.program("nvidia-smi", NVIDIA_SMI)
        made.new_host_key()
        try:
            made.start()
            made.pin()
            yield made
        finally:
            made.close()

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def key(self) -> Path:
        return self.folder / "key"

    @property
    def public_key(self) -> str:
        return self.key.with_suffix(".pub").read_text().strip()

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.port)

    @property
    def host_keys(self) -> list[str]:
        return [(self.folder / "host_key.pub").read_text().strip()]

    @property
    def powered_down(self) -> bool:
        return (self.folder / "powered-down").exists()

    def pin(self) -> None:
        pin(self.known_hosts, [self.address], self.host_keys)

    def ssh(self, **other: object) -> Ssh:
        """A connection to the box, some of its fields other than they should be."""
        fields = {
            "address": self.address,
            "user": getpass.getuser(),
            "key": self.key,
            "known_hosts": self.known_hosts,
        }
        return Ssh(**(fields | other))

    def program(self, name: str, text: str) -> Path:
        """A program on the PATH of the box."""
        file = self.folder / "bin" / name
        file.write_text(text)
        file.chmod(0o755)
        return file

    def limit(self, script: str) -> None:
        """Bash that every session of the box begins with, `ulimit -f 100` for example."""
        (self.folder / "limits").write_text(script)

    def start(self, port: int | None = None) -> None:
        """Starts the server, at a free port the first time and at the same one later, unless one is given."""
        for _ in range(5):
            self.port = port or self.port or free_port()
            (self.folder / "config").write_text(CONFIG.format(folder=self.folder, port=self.port))
            if os.geteuid() == 0:
                Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
            with (self.folder / "sshd.log").open("ab") as log:
                self._server = psutil.Popen(
                    [self.sshd, "-D", "-e", "-f", str(self.folder / "config")],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={"PATH": os.environ["PATH"] + SBIN, MARK: str(self.folder)},
                )
            if self._listens():
                return
            self.port = 0
        raise RuntimeError(f"sshd does not start: {(self.folder / 'sshd.log').read_text()}")

    def lose(self) -> None:
        """The server and its connections are gone; what runs on the box runs on."""
        if self._server is not None:
            for process in reversed(self._ssh_processes()):
                kill(process)
            self._server.wait(STARTS_S)
        self._server = None

    def restart(self, port: int | None = None) -> None:
        """As when the container is stopped and started: everything on the box ends, files stay."""
        self.lose()
        self.kill_all()
        self.start(port)

    def drop_connections(self) -> None:
        """Cuts every connection; the server goes on."""
        for process in reversed(self._ssh_processes()[1:]):
            kill(process)

    def freeze(self) -> None:
        """Nobody answers any more, though the port is open."""
        for process in self._ssh_processes():
            process.suspend()

    def thaw(self) -> None:
        for process in self._ssh_processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    def new_host_key(self) -> None:
        """Another host key, from the next start of the server on."""
        for name in ("host_key", "host_key.pub"):
            (self.folder / name).unlink(missing_ok=True)
        make_key(self.folder / "host_key")

    def boot(self, script: str) -> None:
        """Runs what a provider runs at the start of a container."""
        environment = {"PATH": os.environ["PATH"], "SSH_ORIGINAL_COMMAND": script}
        subprocess.run(
            ["bash", self.folder / "session.sh"], env=environment, stdin=subprocess.DEVNULL, check=True
        )

    def processes(self) -> list[psutil.Process]:
        """What runs on the box, the ssh server apart."""
        ours = {process.pid for process in self._ssh_processes()}
        return [process for process in _marked(self.folder) if process.pid not in ours]

    def running(self, words: str) -> list[psutil.Process]:
        """Processes of the box whose command line holds these words."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                if words in shlex.join(process.cmdline()):
                    found.append(process)
        return found

    def kill_all(self) -> None:
        for _ in range(100):
            if not (alive := self.processes()):
                return
            for process in alive:
                kill(process)
            time.sleep(0.02)
        raise RuntimeError(f"processes of the box do not end: {alive}")

    def close(self) -> None:
        self.lose()
        self.kill_all()

    def _listens(self) -> bool:
        give_up = time.monotonic() + STARTS_S
        while self._server is not None and self._server.poll() is None and time.monotonic() < give_up:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return True
            time.sleep(0.02)
        return False

    def _ssh_processes(self) -> list[psutil.Process]:
        """The server, then the processes of its connections; not the commands these run."""
        if self._server is None:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            server = psutil.Process(self._server.pid)
            found = [server]
            for child in server.children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if child.name().startswith("sshd"):
                        found.append(child)
            return found
        return []


def make_key(file: Path) -> None:
    """A private key, and FILE.pub."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", file], check=True)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGKILL)


def until(true: Callable[[], object], limit_s: float = 30.0) -> None:
    """Waits until the function gives something true; after the limit the test fails."""
    give_up = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < give_up, "what was waited for did not come"
        time.sleep(0.02)


def _marked(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
