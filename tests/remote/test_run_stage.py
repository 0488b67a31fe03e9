"""remote/run_stage.sh: stages, set-up, flags, exit codes, signals."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.remote.checkout import ROOT, Checkout


def _one_line(text: str) -> str:
    assert text.count("\n") == 1, text
    return text


def test_help_lists_every_stage(checkout: Checkout) -> None:
    done = checkout.stage("--help")
    assert done.returncode == 0
    assert re.findall(r"^  (\w+)  +\w", done.stdout, re.MULTILINE) == [
        "aa", "ablation", "agreement", "attention", "compare", "correctness", "openloop", "profile",
        "sentinel", "smoke", "tune", "test", "figures", "all",
    ]  # fmt: skip


@pytest.mark.parametrize("folder", ["", "kernels"])
def test_a_stage_is_built_from_when_it_has_a_file(checkout: Checkout, folder: str) -> None:
    (checkout.root / "harness/stages" / folder / "later.toml").write_text('description = "step by step"\n')
    assert "  later        step by step\n" in checkout.stage("--help").stdout


def test_a_stage_that_is_not_there_says_what_is(checkout: Checkout) -> None:
    done = checkout.stage("smok")
    assert done.returncode == 2
    assert "unknown stage 'smok'" in _one_line(done.stderr)
    assert "tune, test, figures, all" in done.stderr


def test_without_a_stage_the_usage_is_shown(checkout: Checkout) -> None:
    done = checkout.stage()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage:")


def test_without_python_it_says_so(checkout: Checkout) -> None:
    done = checkout.stage("test")
    assert done.returncode == 1
    assert "no Python 3.11 or 3.12 found (seen on PATH: none)" in _one_line(done.stderr)


def test_names_that_do_not_run_are_passed_over(checkout: Checkout) -> None:
    checkout.add_python(
        "python3.12", "#!/bin/bash\necho 'pyenv: python3.12: command not found' >&2\nexit 127\n"
    )
    checkout.add_python("python3.11")
    assert checkout.stage("test").returncode == 0
    (checkout.path / "python3.11").unlink()
    (checkout.root / ".venv/bin/python").unlink()
    done = checkout.stage("test")
    assert done.returncode == 1
    assert "python3.12 (does not run)" in done.stderr


def test_a_given_python_must_work(checkout: Checkout) -> None:
    checkout.add_python("python3.11")
    done = checkout.stage("test", PYTHON="/nowhere/python")
    assert done.returncode == 1
    assert "PYTHON=/nowhere/python (does not run) is not a CPython 3.11 or 3.12" in _one_line(done.stderr)


def test_set_up_once_then_the_stage(checkout: Checkout) -> None:
    checkout.add_python()
    assert (
        checkout.stage("test", "-k", "a name", PYTHONPATH="/elsewhere", PYTHONHOME="/elsewhere").returncode
        == 0
    )
    assert checkout.stage("test").returncode == 0
    setup = [line for line in checkout.calls if not line.startswith("{")]
    first, second = checkout.python_calls
    python = str(checkout.root / ".venv/bin/python")
    assert setup == ["installed uv", f"uv --directory {checkout.root} sync --locked with {sys.executable}"]
    assert first == {
        "argv": [python, "-m", "pytest", "-n", "2", "-k", "a name"],
        "cwd": str(checkout.root),
        "PYTHONPATH": None,
        "PYTHONHOME": None,
    }
    assert second["argv"] == [python, "-m", "pytest", "-n", "2"]


def test_a_killed_installation_of_uv_is_done_again(checkout: Checkout) -> None:
    checkout.add_python()
    killed = checkout.stage("test", PIP="killed")
    assert killed.returncode == -signal.SIGKILL
    assert not (checkout.root / ".uv").exists()
    assert checkout.stage("test").returncode == 0
    assert checkout.calls[0] == "installed uv"
    assert not (checkout.root / ".uv.partial").exists()


def test_another_uv_is_replaced(checkout: Checkout) -> None:
    checkout.add_python()
    (checkout.root / ".uv/bin").mkdir(parents=True)
    checkout.write_program(checkout.root / ".uv/bin/uv", "#!/bin/bash\necho uv 0.1.0\n")
    assert checkout.stage("test").returncode == 0
    assert checkout.calls[0] == "installed uv"


def test_a_uv_of_the_wrong_version_is_refused(checkout: Checkout) -> None:
    checkout.add_python()
    done = checkout.stage("test", UV_SAYS="0.13.90")
    assert done.returncode == 1
    assert "not uv 0.13.9: uv 0.13.90" in done.stderr
    assert not (checkout.root / ".uv").exists()


def test_without_pip_it_says_so(checkout: Checkout) -> None:
    checkout.add_python()
    done = checkout.stage("test", PIP="missing")
    assert done.returncode == 1
    assert "no pip for" in _one_line(done.stderr)


def test_a_failed_sync_ends_it(checkout: Checkout) -> None:
    checkout.add_python()
    done = checkout.stage("test", UV_FAILS="error: No space left on device")
    assert done.returncode == 1
    assert "error: No space left on device\nrun_stage.sh: uv could not make the environment" in done.stderr
    assert checkout.python_calls == []


def test_a_full_disk_is_noticed_before_anything_is_loaded(checkout: Checkout) -> None:
    checkout.add_python()
    (checkout.path / "df").unlink()
    checkout.write_program(
        checkout.path / "df", "#!/bin/bash\necho head; echo disk 9000000 8000000 3000000 89% /\n"
    )
    done = checkout.stage("test")
    assert done.returncode == 1
    assert f"needs 8 GB of free disk, the file system of {checkout.root} has 3 GB" in done.stderr


def test_a_given_project_needs_no_uv(checkout: Checkout) -> None:
    given = checkout.write_program(checkout.path.parent / "given python", checkout.add_python().read_text())
    packages = checkout.path.parent / "packages"
    flags = ["--device", "cpu", "--env", "project=given python:packages:/opt/more", "--env=vllm=/v/python"]
    assert checkout.stage("smoke", *flags).returncode == 0
    assert [line for line in checkout.calls if not line.startswith("{")] == []
    (run,) = checkout.python_calls
    import_path = f"{packages}:/opt/more"
    assert run["PYTHONPATH"] == import_path
    assert run["argv"] == [
        str(given), "-m", "harness", "run",
        "--env", f"project={given}:{import_path}", "--env", "vllm=/v/python", "smoke", "--device", "cpu",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "flags, said",
    [
        (["--env"], "--env needs NAME=PYTHON"),
        (["--env", "project"], "--env 'project': must be NAME=PYTHON"),
        (["--env", "project=/nowhere/python"], "/nowhere/python (does not run)"),
    ],
)
def test_a_wrong_env_flag_is_refused(checkout: Checkout, flags: list[str], said: str) -> None:
    done = checkout.stage("smoke", *flags)
    assert done.returncode == 2
    assert said in _one_line(done.stderr)


@pytest.mark.parametrize("status", [0, 1])
def test_a_stored_run_is_drawn_and_the_status_kept(checkout: Checkout, status: int) -> None:
    checkout.add_python()
    (checkout.root / "results/v1/old").mkdir()
    checkout.on_call(
        f'[[ "$2" != harness ]] || {{ mkdir -p results/v1/.x.partial results/v1/new; exit {status}; }}'
    )
    assert checkout.stage("smoke").returncode == status
    assert [call["argv"][2:] for call in checkout.python_calls] == [
        ["harness", "run", "smoke"],
        ["figures.make_figures", "--run", "new"],
    ]


def test_nothing_is_drawn_when_nothing_was_stored(checkout: Checkout) -> None:
    checkout.add_python()
    checkout.on_call("exit 2")
    assert checkout.stage("smoke").returncode == 2
    assert len(checkout.python_calls) == 1


def test_all_runs_every_stage_and_reports_the_failure(checkout: Checkout) -> None:
    checkout.add_python()
    checkout.on_call('[[ "$2" != pytest ]] || exit 1; [[ "$3" != stages ]] || echo compare smoke')
    assert checkout.stage("all").returncode == 1
    calls = [call["argv"][2:] for call in checkout.python_calls]
    assert [call[0] for call in calls] == ["pytest", "harness", "harness", "harness", "figures.make_figures"]
    assert [call[1:] for call in calls[1:4]] == [["stages"], ["run", "compare"], ["run", "smoke"]]
    assert checkout.stage("all", "--device", "cpu").returncode == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_the_stage_once_and_its_end_is_awaited(
    checkout: Checkout, number: signal.Signals
) -> None:
    checkout.add_python()
    checkout.on_call(
        "trap 'echo INT >>got' INT; trap 'echo TERM >>got' TERM; touch ready\n"
        "until [[ -e got ]]; do sleep 0.05; done; sleep 0.3\n"
        "echo cleaned up >>got; mkdir results/v1/new; exit 1\n"
    )
    running = subprocess.Popen(
        checkout.command("remote/run_stage.sh", "smoke"), env=checkout.variables, stdin=subprocess.DEVNULL
    )
    while not (checkout.root / "ready").exists():
        assert running.poll() is None
        time.sleep(0.02)
    running.send_signal(number)
    assert running.wait(timeout=60) == 128 + number
    assert (checkout.root / "got").read_text().split("\n")[:2] == [
        number.name.removeprefix("SIG"),
        "cleaned up",
    ]
    assert len(checkout.python_calls) == 1


def test_uv_is_pinned_to_one_version_everywhere() -> None:
    script = re.search(r"^uv_version=(\S+)$", (ROOT / "remote/lib/environment.sh").read_text(), re.MULTILINE)
    assert script is not None
    assert (ROOT / "remote/uv-requirements.txt").read_text().startswith(f"uv=={script[1]} --hash=sha256:")
    assert f'required-version = "=={script[1]}"' in (ROOT / "pyproject.toml").read_text()


def test_every_script_passes_shellcheck() -> None:
    scripts = [*(ROOT / "remote").rglob("*.sh"), ROOT / ".ci/run"]
    shellcheck = Path(sys.prefix) / "bin" / "shellcheck"
    done = subprocess.run([shellcheck, "-x", *scripts], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == ""
    assert done.returncode == 0
