"""Boxes of the fake provider that are real ssh servers, and a small checkout whose stages take no time."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from remote.clock import Clock
from remote.desk import Desk
from remote.journal import Journal
from remote.providers.base import PRINT_HOST_KEYS
from remote.providers.rest import Api, Key
from remote.providers.vast import Vast
from remote.settings import Settings
from tests.remote.fake_vast import FakeVast, Row, make_offer
from tests.remote.sshd import Box, need_sshd

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "results" / "v1" / "smoke-cpu"
SETTINGS = Settings(
    gpu="RTX 4090",
    gpu_ram_gb=24,
    disk_gb=73,
    image="vendor/image:1",
    max_dollars_per_hour=1.0,
    hours=3,
    dollars=5,
    stages=("smoke",),
    systems=("project",),
    user="root",
)

# The contract of the real ones: exit status, and a run that appears whole when it is complete. What a test
# wants to happen in the middle stands in the file `hook`.
RUN_STAGE = """\
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
stage="$1"; shift
run=''
while (($#)); do case "$1" in --run) run="$2"; shift ;; esac; shift; done
echo "stage $stage begins"
partial="results/v1/.$run.partial"
mkdir -p "$partial"
cp -r sample/. "$partial/"
[[ ! -e "$HOME/hook" ]] || source "$HOME/hook"
rm -rf "results/v1/$run"
mv "$partial" "results/v1/$run"
echo "stage $stage is over"
"""
SETUP = """\
echo "GPU: $(nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader)"
[[ ! -e "$HOME/setup-hook" ]] || source "$HOME/setup-hook"
"""


# A hook: the stage is at work until `go`.
WAITS = 'touch "$HOME/at-work"; until [[ -e "$HOME/go" ]]; do sleep 0.05; done\n'


class Brisk:
    """Real time that a test can put forward, in which no pause is longer than `longest`."""

    def __init__(self, longest: float = 0.05) -> None:
        self.ahead = 0.0
        self.longest = longest

    def now(self) -> float:
        return time.time() + self.ahead

    def sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, self.longest))

    @property
    def clock(self) -> Clock:
        return Clock(now=self.now, monotonic=lambda: time.monotonic() + self.ahead, sleep=self.sleep)


@dataclass
class Street:
    """The fake provider and its boxes: `boxes` by id, also those that are gone."""

    fake: FakeVast
    folder: Path
    boxes: dict[int, Box] = field(default_factory=dict)
    made: Callable[[Box], None] = lambda box: None
    _stack: ExitStack = field(default_factory=ExitStack)

    @property
    def box(self) -> Box:
        """The newest."""
        return self.boxes[max(self.boxes)]

    def _create(self, row: Row) -> None:
        box = self._stack.enter_context(Box.make(self.folder / str(row["id"])))
        (box.folder / "authorized_keys").write_text("")
        row.update(public_ipaddr="127.0.0.1", ssh_host=None, host_key=box.host_keys[0])
        row["ports"] = {"22/tcp": [{"HostIp": "0.0.0.0", "HostPort": str(box.port)}]}
        # The host keys go to the log of the container, which the fake writes itself.
        box.boot(row["onstart"].removeprefix(PRINT_HOST_KEYS))
        self.boxes[row["id"]] = box
        self.made(box)

    def _attach(self, row: Row) -> None:
        (self.boxes[row["id"]].folder / "authorized_keys").write_text("\n".join(row["ssh_keys"]) + "\n")

    def _destroy(self, row: Row) -> None:
        self.boxes[row["id"]].close()


@contextmanager
def street(folder: Path, offers: Sequence[Row] | None = None) -> Iterator[Street]:
    """Three offers, the cheapest on machine 102, then 101 and 103."""
    need_sshd()
    rows = [make_offer(1011, 0.40), make_offer(1021, 0.35), make_offer(1031, 0.50)]
    with FakeVast(rows if offers is None else offers) as fake:
        made = Street(fake, folder)
        fake.boot = ("running",)
        fake.log_polls = 0
        fake.on_create, fake.on_attach, fake.on_destroy = made._create, made._attach, made._destroy
        with made._stack:
            yield made


def hook(there: Street, script: str, name: str = "hook") -> None:
    """Bash that the stages of boxes that are yet to be made run in their middle."""

    def write(box: Box) -> None:
        (box.home / name).write_text(script)

    there.made = write


def at_work(there: Street) -> bool:
    return bool(there.boxes) and (there.box.home / "at-work").exists()


def go(there: Street) -> None:
    (there.box.home / "go").touch()


def small_checkout(folder: Path, with_code: bool = False) -> Path:
    """A git checkout with stand-ins for set-up and stages, and what must not travel.

    `with_code`: it also has the code of `remote` and of `harness`, so that its own fabfile works.
    """
    if with_code:
        for name in ("remote", "harness"):
            shutil.copytree(
                ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.toml")
            )
    for name in ("remote", "harness/stages"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "remote" / "run_stage.sh").write_text(RUN_STAGE)
    (folder / "remote" / "setup_gpu_box.sh").write_text(SETUP)
    for stage in ("smoke", "compare"):
        (folder / "harness" / "stages" / f"{stage}.toml").write_text("")
    (folder / "uv.lock").write_text("lock\n")
    (folder / ".gitignore").write_text("/.venv\n/.source.json\n__pycache__/\n")
    shutil.copytree(SAMPLE, folder / "sample")
    (folder / ".venv").mkdir()
    (folder / ".venv" / "big").write_text("stays at home")
    for command in (
        ["git", "init", "-q"],
        ["git", "add", "."],
        ["git", "-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-qm", "all"],
    ):
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


@dataclass
class Told:
    """Lines for the user; `wait` for one that holds these words."""

    lines: list[str] = field(default_factory=list)
    _news: threading.Condition = field(default_factory=threading.Condition)

    def __call__(self, line: str) -> None:
        with self._news:
            self.lines.append(line)
            self._news.notify_all()

    def wait(self, words: str, limit_s: float = 60.0) -> None:
        with self._news:
            came = self._news.wait_for(lambda: any(words in line for line in self.lines), limit_s)
        assert came, f"{words!r} was not said: {self.lines}"

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def make_desk(street_url: str, folder: Path, run: str = "night", **changes: object) -> Desk:
    """A controller's desk: state, results and checkout in `folder`."""
    brisk = changes.pop("brisk", None) or Brisk()
    assert isinstance(brisk, Brisk)
    checkout = folder / "checkout"
    if not checkout.exists():
        small_checkout(checkout)
    results = folder / "results"
    results.mkdir(exist_ok=True)
    fields = {
        "settings": SETTINGS,
        "provider": Vast(
            Api(street_url, Key("fake-account-key-0123456789abcdef"), brisk.clock, timeout_s=10.0)
        ),
        "journal": Journal(folder / "state"),
        "results": results,
        "say": Told(),
        "clock": brisk.clock,
        "checkout": checkout,
        "poll_s": 0.05,
        "sync_s": 0.3,
        "look_s": 0.3,
        "patience_s": 20.0,
    }
    return Desk(run=run, **(fields | changes))  # type: ignore[arg-type]
