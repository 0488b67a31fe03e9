"""`fab` as a user calls it, in a checkout of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from invoke import Collection

from harness.verify import verify
from remote import fabfile
from tests.remote.fake_vast import KEY, FakeVast, Trouble, make_offer
from tests.remote.rented import Street, small_checkout
from tests.remote.sshd import Box, until

FAB = str(Path(sys.executable).parent / "fab")
CHANGING = ("campaign", "destroy", "fetch", "prepare", "push", "reap", "rent", "run")
TASKS = sorted((*CHANGING, "attach", "offers", "status"))
READABLE = ("offers", "status", "fetch", "reap", "campaign")
SETTINGS = """
gpu = "RTX 4090"
image = "vendor/image:1"
disk_gb = 73
max_dollars_per_hour = 1.0
hours = 3
dollars = 5
stages = ["smoke"]
systems = ["project"]
"""


class Shell:
    """Calls of `fab` against a fake provider; settings in night.toml, state and results in `folder`."""

    def __init__(self, folder: Path, fake: FakeVast, checkout: Path) -> None:
        self.folder, self.fake, self.checkout = folder, fake, checkout
        self.settings = folder / "night.toml"
        self.settings.write_text(SETTINGS)
        self.environment = os.environ | {
            "VAST_URL": fake.url,
            "VAST_API_KEY": KEY,
            "LLM_LADDER_STATE": str(folder / "state"),
            "PYTHONPATH": "",
            "PYTHONDONTWRITEBYTECODE": "",
            "COLUMNS": "200",
        }

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [FAB, *words],
            cwd=self.checkout / "remote",
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def fab(self, *words: str) -> subprocess.CompletedProcess[str]:
        with self.start(*words) as running:
            out, err = running.communicate(timeout=120)
        return subprocess.CompletedProcess(words, running.returncode, out, err)

    def ok(self, *words: str) -> str:
        done = self.fab(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_checkout(tmp_path_factory.mktemp("shared") / "checkout", with_code=True)


@pytest.fixture
def shell(tmp_path: Path, checkout: Path) -> Iterator[Shell]:
    with FakeVast([make_offer(1011, 0.40), make_offer(1021, 0.35)]) as fake:
        yield Shell(tmp_path, fake, checkout)


def test_the_list_reads_like_a_manual(shell: Shell) -> None:
    listed = json.loads(shell.ok("--list", "--list-format", "json"))["tasks"]
    assert [one["name"] for one in listed] == TASKS
    assert all(len(one["help"]) > 30 and one["help"].endswith((".", ").")) for one in listed)


@pytest.mark.parametrize("task", TASKS)
def test_each_task_explains_its_flags(task: str) -> None:
    flags = {
        argument.name: argument.help for argument in Collection.from_module(fabfile)[task].get_arguments()
    }
    assert ("dry_run" in flags) == (task in CHANGING)
    assert ("json" in flags) == (task in READABLE)
    assert [name for name, text in flags.items() if not text] == []


def test_offers(shell: Shell) -> None:
    rows = json.loads(shell.ok("offers", "--settings", str(shell.settings), "--json"))
    assert [row["machine_id"] for row in rows] == ["102", "101"]
    lines = shell.ok("offers", "--settings", str(shell.settings)).splitlines()
    assert lines[0].startswith("$/h") and "1 x RTX 4090" in lines[1] and len(lines) == 3


def test_a_dry_run_changes_nothing(shell: Shell) -> None:
    said = shell.ok("campaign", "--settings", str(shell.settings), "--run", "night", "--dry-run")
    assert [line.split()[:2] for line in said.splitlines()] == [
        ["run", "night"],
        ["would", "rent"],
        ["would", "arm"],
        ["would", "push"],
        ["would", "run:"],
        ["would", "run:"],
        ["would", "fetch"],
        ["would", "destroy"],
    ]
    assert "machine 102 (1 x RTX 4090) at $0.370/h for at most 3.00 h, $1.11; 1 more offers" in said
    shell.ok("rent", "--settings", str(shell.settings), "--dry-run")
    assert {seen.method for seen in shell.fake.seen} == {"POST"}
    assert not (shell.folder / "state").exists()


def test_errors_are_a_line_and_status_1(shell: Shell) -> None:
    for words, message in (
        (("campaign",), "error: campaign: --settings FILE is needed"),
        (("fetch", "--run", "night"), "error: there is no run night, nor any other yet"),
        (("offers", "--settings", str(shell.settings), "--box", "b"), "error: box 'b': "),
    ):
        done = shell.fab(*words)
        assert done.returncode == 1 and message in done.stderr, done
        assert "Traceback" not in done.stderr


def test_no_run_yet(shell: Shell) -> None:
    assert json.loads(shell.ok("status", "--json")) == []
    assert shell.ok("reap") == "no box\n"


@pytest.mark.parametrize("task", ["campaign", "rent"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_that_is_ended_while_it_waits_for_its_box(
    shell: Shell, task: str, number: signal.Signals
) -> None:
    """By someone impatient, who says it again while the box is being destroyed."""
    shell.fake.boot = (None, "loading")
    shell.fake.troubles.append(
        Trouble("DELETE", ".*", 1, 200, after=True, wait_s=1.0, body={"success": True})
    )
    with shell.start(task, "--settings", str(shell.settings), "--run", "night") as running:
        until(lambda: shell.fake.requests("POST", ".*/ssh/"))
        running.send_signal(number)
        until(lambda: shell.fake.requests("DELETE"))
        running.send_signal(number)
        out, err = running.communicate(timeout=60)
    assert running.returncode == (143 if number == signal.SIGTERM else 1), out + err
    assert shell.fake.boxes == {} and len(shell.fake.created) == 1
    (row,) = json.loads(shell.ok("status", "--json"))
    assert row["step"] == "destroyed"


def test_what_a_provider_says_does_not_steer_the_terminal(shell: Shell) -> None:
    shell.fake.offers[1021]["geolocation"] = "\x1b[2JSweden\r"
    assert "\x1b" not in (out := shell.ok("offers", "--settings", str(shell.settings))) and "[2JSweden" in out


def test_a_key_file_that_others_can_read_is_refused(shell: Shell) -> None:
    folder = shell.folder / "config" / "vastai"
    folder.mkdir(parents=True)
    (folder / "vast_api_key").write_text(KEY)
    (folder / "vast_api_key").chmod(0o644)
    shell.environment |= {"VAST_API_KEY": "", "XDG_CONFIG_HOME": str(shell.folder / "config")}
    done = shell.fab("offers", "--settings", str(shell.settings))
    assert done.returncode == 1 and "has mode 644, the limit is 600: chmod 600" in done.stderr
    assert KEY not in done.stderr and shell.fake.seen == []


@pytest.mark.slow  # a real server
def test_step_by_step(there: Street, tmp_path: Path, checkout: Path) -> None:
    shell = Shell(tmp_path, there.fake, checkout)
    results = tmp_path / "results"
    results.mkdir()
    shell.ok("rent", "--settings", str(shell.settings), "--run", "night")
    assert len(there.fake.boxes) == 1 and "left" in shell.ok("reap")
    assert (
        "has a box already" in shell.fab("rent", "--settings", str(shell.settings), "--run", "night").stderr
    )
    for task in ("prepare", "push", "fetch", "destroy"):
        assert "would " in shell.ok(task, "--run", "night", "--dry-run")
    assert "would run: cd llm-ladder/checkout" in shell.ok("run", "smoke", "--run", "night", "--dry-run")
    assert not (there.box.home / "llm-ladder" / "checkout").exists()
    assert "NVIDIA H200" in shell.ok("prepare", "--run", "night")
    shell.ok("push", "--run", "night")
    assert "nothing of run night is running" in shell.ok("attach", "--run", "night")
    assert "stage smoke is over" in shell.ok("run", "smoke", "--run", "night")
    (row,) = json.loads(shell.ok("status", "--json"))
    assert row["step"] == "kept" and row["dollars"] > 0 and not row["at_work"]
    (arrived,) = json.loads(shell.ok("fetch", "--run", "night", "--results", str(results), "--json"))
    assert arrived["problems"] == [] and verify(results / "night-smoke") == []
    assert "unknown stage 'smoek'" in shell.fab("run", "smoek", "--run", "night").stderr
    assert "destroyed and gone" in shell.ok("destroy", "--run", "night")
    assert there.fake.boxes == {} and "has no box" in shell.ok("destroy", "--run", "night")


@pytest.mark.slow  # a real server
def test_a_campaign_that_is_killed_is_attached_to_and_goes_on(
    there: Street, tmp_path: Path, checkout: Path
) -> None:
    def wait(box: Box) -> None:
        script = 'touch "$HOME/at-work"; until [[ -e "$HOME/go" ]]; do sleep 0.05; done'
        (box.home / "hook").write_text(script)

    there.made = wait
    shell = Shell(tmp_path, there.fake, checkout)
    (tmp_path / "results").mkdir()
    with shell.start("campaign", "--settings", str(shell.settings), "--run", "night") as running:
        until(lambda: there.boxes and (there.box.home / "at-work").exists())
        running.kill()
    with shell.start("attach", "--run", "night") as attached:
        assert attached.stdout and attached.stdout.readline().startswith("following smoke-")
        (there.box.home / "go").touch()
        assert "stage smoke is over" in attached.communicate(timeout=60)[0]
    said = shell.ok("campaign", "--run", "night", "--results", str(tmp_path / "results"), "--json")
    (outcome,) = json.loads(said)
    assert outcome["ok"] and outcome["statuses"] == {"smoke": 0}
    assert there.fake.boxes == {} and len(there.fake.created) == 1


@pytest.mark.slow  # a real server
def test_a_campaign_that_is_ended_destroys_its_box(there: Street, tmp_path: Path, checkout: Path) -> None:
    def wait(box: Box) -> None:
        (box.home / "hook").write_text('touch "$HOME/at-work"; sleep 1000')

    there.made = wait
    shell = Shell(tmp_path, there.fake, checkout)
    with shell.start("campaign", "--settings", str(shell.settings), "--run", "night") as running:
        until(lambda: there.boxes and (there.box.home / "at-work").exists())
        running.terminate()
        out, _ = running.communicate(timeout=60)
    assert running.returncode == 143 and "destroyed and gone" in out
    assert there.fake.boxes == {}
